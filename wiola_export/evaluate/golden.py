"""The self-test of a bundle: what a target machine must reproduce."""

import dataclasses
from pathlib import Path
from typing import cast

from wiola_export.evaluate import golden_worker
from wiola_export.evaluate.child import run_child
from wiola_runtime.manifest import GoldenLogits, Precision, SelfTest

# Shares of the logits' deviation. Machines differ in the order of float sums, and where weights
# are quantized in whether kernels round activations (docs/decisions/0003-self-test-tolerance.md).
TOLERANCES: dict[Precision, float] = {"fp32": 1e-3, "fp16": 3e-2, "int8": 1e-1, "int4": 1e-1}


def record_self_test(bundle: Path, precision: Precision, *, half: bool) -> SelfTest:
    """Run a bundle on this machine and keep what it gives.

    Args:
        bundle: Folder with graph, tokenizer and manifest.
        precision: Decides the tolerance.
        half: Whether activations are float16, which allows at least the tolerance of `fp16`.

    Raises:
        EvaluationError: The bundle does not run.
    """
    tolerance = max(TOLERANCES[precision], TOLERANCES["fp16"] if half else 0.0)
    request = golden_worker.Request(bundle=str(bundle), relative_tolerance=tolerance)
    found = run_child(golden_worker, dataclasses.asdict(request))
    points = cast("list[dict[str, object]]", found["logits"])
    return SelfTest(
        prompt_ids=_ints(found["prompt_ids"]),
        token_ids=_ints(found["token_ids"]),
        logits=tuple(
            GoldenLogits(
                position=cast("int", point["position"]),
                token_ids=_ints(point["token_ids"]),
                values=tuple(cast("list[float]", point["values"])),
            )
            for point in points
        ),
        tolerance=cast("float", found["tolerance"]),
    )


def _ints(values: object) -> tuple[int, ...]:
    return tuple(cast("list[int]", values))
