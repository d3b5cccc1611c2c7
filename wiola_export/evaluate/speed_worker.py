"""Time a bundle; run as a script in a process of its own, so that its memory is the runtime's.

The arguments are a `Request` as JSON, or a bundle's folder and a `Workload` of a bench as JSON;
JSON is what it prints.
"""

import dataclasses
import json
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import wiola_runtime as wr
from wiola_runtime.devices import Device, default_threads
from wiola_runtime.manifest import Manifest
from wiola_runtime.opening import import_onnxruntime
from wiola_runtime.verify import verify_files

REPEATS = 3
PREFILL_TOKENS = 256
PROMPT_TOKENS = 32
DECODE_TOKENS = 64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to time: a bundle, where, on how many threads (None: the runtime's own choice)."""

    bundle: str
    device: Device
    threads: int | None


def measure(request: Request) -> dict[str, object]:
    """Load the bundle once, then time prompt and reply: medians of 3 after a warm-up.

    Raises:
        WiolaRuntimeError: The bundle cannot be run here.
    """
    model = wr.load(request.bundle, device=request.device, threads=request.threads)
    prompt, prefill, decode = _lengths(model.manifest.context_length)
    first = [_reply(model, prompt_tokens=prefill, new_tokens=1) for _ in range(1 + REPEATS)]
    steps = [_reply(model, prompt_tokens=prompt, new_tokens=1 + decode) for _ in range(1 + REPEATS)]
    return {
        "load_seconds": model.load_seconds,
        "first_token_seconds": median(t.first_token_seconds for t in first[1:]),
        "prefill_tokens_per_second": median(t.prefill_tokens_per_second for t in first[1:]),
        "decode_tokens_per_second": median(t.decode_tokens_per_second for t in steps[1:]),
        "peak_memory_bytes": peak_memory_bytes(),
        "prefill_tokens": prefill,
        "decode_tokens": decode,
        "repeats": REPEATS,
        "threads": request.threads or default_threads(),
        "provider": model.provider,
    }


def take_turn(bundle: str, workload: Mapping[str, Any]) -> dict[str, object]:
    """Do the workload of a bench once; each reply but the very first is warmed up by another.

    Raises:
        WiolaRuntimeError: The bundle cannot be run here.
    """
    import_onnxruntime()  # which loading would do, and count
    imported_at = time.time()
    model = wr.load(bundle, threads=workload["threads"], verify=False)
    prompt, long = workload["prompt_tokens"], workload["prefill_tokens"]
    depth, deep_tokens = workload["depth_tokens"], 1 + workload["deep_reply_tokens"]
    _reply(model, prompt_tokens=prompt, new_tokens=1)
    ready_at = time.time()
    first = _reply(model, prompt_tokens=prompt, new_tokens=1)
    short = _reply(model, prompt_tokens=prompt, new_tokens=1 + workload["reply_tokens"])
    memory = peak_memory_bytes()
    _reply(model, prompt_tokens=long, new_tokens=1)
    prefill = _reply(model, prompt_tokens=long, new_tokens=1)
    deep = _reply(model, prompt_tokens=depth, new_tokens=deep_tokens) if depth else None
    return {
        "imported_at": imported_at,
        "load_seconds": model.load_seconds,
        "verify_seconds": _seconds_to_verify(Path(bundle), model.manifest),
        "first_token_seconds": first.first_token_seconds,
        "decode_tokens_per_second": short.decode_tokens_per_second,
        "deep_tokens_per_second": deep and deep.decode_tokens_per_second,
        "prefill_tokens_per_second": prefill.prefill_tokens_per_second,
        "ready_at": ready_at,
        "memory_bytes": memory,
        "weight_bytes": weight_bytes(model.manifest),
        "versions": {
            name: metadata.version(name) for name in ("wiola-runtime", "onnxruntime", "numpy")
        },
    }


def weight_bytes(manifest: Manifest) -> int:
    """Return the bytes of matrices that one step reads: all but a table for lookups alone."""
    tensors = manifest.quantization.tensors
    tables = [tensor for tensor in tensors if tensor.name.endswith("(embedding)")]
    heads = [tensor for tensor in tensors if tensor.name.endswith("(head)")]
    tied = any(head.size_bytes == 0 for head in heads)
    unread = 0 if tied else sum(table.size_bytes for table in tables)
    return sum(tensor.size_bytes for tensor in tensors) - unread


def peak_memory_bytes() -> int | None:
    """Return the most memory that this process has held; None where the system doesn't say.

    Linux reports in `ru_maxrss` what the parent held when it forked, so the figure is read from
    `VmHWM`, which starts anew with the program.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        lines = status.read_text(encoding="ascii", errors="replace").splitlines()
        kib = (int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
        return next((value << 10 for value in kib), None)
    if sys.platform == "darwin":
        import resource  # noqa: PLC0415 - not there on Windows

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return None


def _lengths(context: int) -> tuple[int, int, int]:
    """Return tokens of the short prompt, of the long prompt, and of the timed reply."""
    return (
        min(PROMPT_TOKENS, context // 4),
        min(PREFILL_TOKENS, context // 2),
        min(DECODE_TOKENS, context // 2),
    )


def _reply(model: wr.Model, *, prompt_tokens: int, new_tokens: int) -> wr.Timings:
    """Reply to a prompt of random tokens; the first new token belongs to the prompt's pass."""
    rng = np.random.default_rng(0)
    prompt = [int(i) for i in rng.integers(0, model.manifest.vocab_size, prompt_tokens)]
    # Nothing ends a reply while it is timed: every run takes the same number of steps.
    config = wr.GenerationConfig(max_new_tokens=new_tokens, ignore_eos=True)
    return model.generate(prompt, config).timings


def _seconds_to_verify(folder: Path, manifest: Manifest) -> float:
    began = time.perf_counter()
    verify_files(folder, manifest)
    return time.perf_counter() - began


def main(*arguments: str) -> int:
    """Print the figures, or the reason why there are none, and return the exit code."""
    *bundle, request = arguments
    chosen = json.loads(request)
    try:
        figures = take_turn(bundle[0], chosen) if bundle else measure(Request(**chosen))
    except wr.WiolaRuntimeError as error:
        print(error, file=sys.stderr)  # noqa: T201 - the parent reads it
        return 2
    print(json.dumps(figures))  # noqa: T201 - the parent reads it
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
