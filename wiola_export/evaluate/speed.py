"""Speed and memory of a bundle, measured in a process that holds nothing but the runtime."""

import dataclasses
from pathlib import Path

from wiola_export.evaluate import speed_worker
from wiola_export.evaluate.child import run_child
from wiola_runtime.devices import Device


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast a bundle runs here; rates and first token are medians of `repeats` runs.

    Attributes:
        load_seconds: Opening the bundle once, hashes checked, files in the system's cache.
        first_token_seconds: From a prompt of `prefill_tokens` tokens to the first token.
        decode_tokens_per_second: One row, over `decode_tokens` tokens after a short prompt.
        peak_memory_bytes: Resident memory of the whole process; None where unknown.
        threads: Of one operator; 0 where ONNX Runtime chose.
        provider: ONNX Runtime's name of where the graph ran.
    """

    load_seconds: float
    first_token_seconds: float
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    peak_memory_bytes: int | None
    prefill_tokens: int
    decode_tokens: int
    repeats: int
    threads: int
    provider: str


def measure_speed(bundle: Path, *, device: Device = "cpu", threads: int | None = None) -> Speed:
    """Time a bundle in a fresh process.

    Raises:
        EvaluationError: The process failed; the message carries its last line.
    """
    request = speed_worker.Request(bundle=str(bundle), device=device, threads=threads)
    return Speed(**run_child(speed_worker, dataclasses.asdict(request)))  # type: ignore[arg-type]
