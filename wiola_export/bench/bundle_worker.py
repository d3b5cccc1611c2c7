"""Time a bundle; run as a script in a process of its own, which imports the runtime alone.

The arguments are a folder and a `Workload` as JSON; `Figures` as JSON is what it prints.
"""

import json
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import wiola_runtime as wr
from wiola_runtime.manifest import Manifest
from wiola_runtime.verify import verify_files


def measure(bundle: str, workload: dict[str, Any]) -> dict[str, object]:
    """Load a bundle, then time its replies; each but the very first is warmed up by another.

    Raises:
        WiolaRuntimeError: The bundle cannot be run here.
    """
    model = wr.load(bundle, threads=workload["threads"], verify=False)
    prompt, depth = workload["prompt_tokens"], workload["depth_tokens"]
    _reply(model, prompt, 1)
    ready_at = time.time()
    first = _reply(model, prompt, 1)
    short = _reply(model, prompt, 1 + workload["reply_tokens"])
    memory = _peak_memory_bytes()
    _reply(model, workload["prefill_tokens"], 1)
    prefill = _reply(model, workload["prefill_tokens"], 1)
    deep = _reply(model, depth, 1 + workload["deep_reply_tokens"]) if depth else None
    return {
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


def _reply(model: wr.Model, prompt_tokens: int, new_tokens: int) -> wr.Timings:
    """Reply to random tokens; the first new token belongs to the prompt's pass."""
    rng = np.random.default_rng(0)
    prompt = [int(i) for i in rng.integers(0, model.manifest.vocab_size, prompt_tokens)]
    config = wr.GenerationConfig(max_new_tokens=new_tokens, ignore_eos=True)
    return model.generate(prompt, config).timings


def _seconds_to_verify(folder: Path, manifest: Manifest) -> float:
    began = time.perf_counter()
    verify_files(folder, manifest)
    return time.perf_counter() - began


def _peak_memory_bytes() -> int | None:
    """Read Linux's `VmHWM`, which starts anew with the program; None elsewhere."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return None
    found = [line for line in status.read_text(encoding="ascii").splitlines() if "VmHWM" in line]
    return int(found[0].split()[1]) << 10 if found else None


def main(bundle: str, workload: str) -> int:
    """Print the figures, or the reason why there are none, and return the exit code."""
    try:
        figures = measure(bundle, json.loads(workload))
    except wr.WiolaRuntimeError as error:
        print(error, file=sys.stderr)  # noqa: T201 - the parent reads it
        return 2
    print(json.dumps(figures))  # noqa: T201 - the parent reads it
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
