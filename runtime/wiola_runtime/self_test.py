"""Does this machine compute what the machine computed that wrote the bundle?"""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from wiola_runtime.errors import SelfTestError
from wiola_runtime.manifest import SelfTest


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SelfTestReport:
    """What a self-test found.

    Attributes:
        max_abs_difference: Largest |difference| from a golden logit; NaN if a logit is none.
        mismatch: The first thing that differs; None where all is well.
    """

    passed: bool
    max_abs_difference: float
    tolerance: float
    mismatch: str | None

    def require(self) -> None:
        """Turn a failed test into an error.

        Raises:
            SelfTestError: The test failed.
        """
        if not self.passed:
            raise SelfTestError(f"{self.mismatch}; copy the bundle again or export again")


def compare(
    golden: SelfTest, logits: NDArray[np.float32], greedy_ids: Sequence[int]
) -> SelfTestReport:
    """Hold logits (T, V) of prompt and continuation and a greedy reply against the golden.

    The logits come from one pass over all tokens, the reply from the decoding loop.
    """
    differences = [
        float(np.abs(logits[point.position, list(point.token_ids)] - point.values).max())
        for point in golden.logits
    ]
    worst = float(np.max(differences, initial=0.0))
    mismatch = next(
        iter([*_far_logits(golden, differences), *_other_tokens(golden, logits, greedy_ids)]),
        None,
    )
    return SelfTestReport(
        passed=mismatch is None,
        max_abs_difference=worst,
        tolerance=golden.tolerance,
        mismatch=mismatch,
    )


def _far_logits(golden: SelfTest, differences: Sequence[float]) -> Iterable[str]:
    for point, difference in zip(golden.logits, differences, strict=True):
        if not difference <= golden.tolerance:
            yield (
                f"a logit at position {point.position} is off by {difference:.3g}, "
                f"the bundle allows {golden.tolerance:.3g}"
            )


def _other_tokens(
    golden: SelfTest, logits: NDArray[np.float32], greedy_ids: Sequence[int]
) -> Iterable[str]:
    start = len(golden.prompt_ids) - 1
    rows = logits[start : start + len(golden.token_ids)]
    diverged = False
    for index, (expected, row) in enumerate(zip(golden.token_ids, rows, strict=True)):
        best = int(row.argmax())
        # Two tokens that nearly tie are both right, and from there on the replies differ.
        tied = _is_tie(row, expected, golden.tolerance)
        if best != expected and not tied:
            yield f"token {index} of the reply is {best}, the bundle says {expected}"
        if not diverged and greedy_ids[index] != expected:
            diverged = True
            if not tied:
                yield f"decoding gives {greedy_ids[index]} as token {index}, not {expected}"


def _is_tie(row: NDArray[np.float32], expected: int, tolerance: float) -> bool:
    best, second = np.sort(row)[[-1, -2]]
    return bool(best - second < 2 * tolerance and row[expected] >= second)
