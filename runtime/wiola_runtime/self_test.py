"""Does this machine compute what the machine computed that wrote the bundle?"""

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from wiola_runtime.errors import SelfTestError
from wiola_runtime.manifest import Manifest, SelfTest


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SelfTestReport:
    """What a self-test found.

    Attributes:
        max_abs_difference: Largest |difference| from a golden logit; NaN if a logit is none.
        largest_at: Position and token id of that logit; None where the bundle names none.
        mismatch: The first thing that differs; None where all is well.
    """

    passed: bool
    max_abs_difference: float
    largest_at: tuple[int, int] | None
    tolerance: float
    mismatch: str | None

    def require(self) -> None:
        """Turn a failed test into an error.

        Raises:
            SelfTestError: The test failed.
        """
        if not self.passed:
            raise SelfTestError(f"{self.mismatch}; copy the bundle again or export again")


def check(golden: SelfTest, manifest: Manifest) -> None:
    """Check that golden values are of tokens and positions that there are.

    Raises:
        SelfTestError: They are not.
    """
    length = len(golden.prompt_ids) + len(golden.token_ids)
    points = [(at.position, i) for at in golden.logits for i in at.token_ids]
    ids = {*golden.prompt_ids, *golden.token_ids, *(i for _, i in points)}
    whole = golden.prompt_ids and golden.token_ids and length <= manifest.context_length
    whole = whole and all(len(at.token_ids) == len(at.values) for at in golden.logits)
    known = all(0 <= i < manifest.vocab_size for i in ids)
    if not (whole and known and all(0 <= position < length for position, _ in points)):
        raise SelfTestError(f"the self-test of bundle {manifest.name} is damaged; export again")


def compare(
    golden: SelfTest, logits: NDArray[np.float32], greedy_ids: Sequence[int]
) -> SelfTestReport:
    """Hold logits (T, V) of prompt and continuation and a greedy reply against the golden.

    The logits come from one pass over all tokens, the reply from the decoding loop.
    """
    expected = {
        (point.position, token_id): value
        for point in golden.logits
        for token_id, value in zip(point.token_ids, point.values, strict=True)
    }
    off = {place: abs(float(logits[place]) - value) for place, value in expected.items()}
    # What is no number is farther off than any.
    at = max(
        off, key=lambda place: math.inf if math.isnan(off[place]) else off[place], default=None
    )
    found = [] if at is None else [_far_logit(at, logits[at], expected[at], golden.tolerance)]
    mismatches = filter(None, [*found, *_other_tokens(golden, logits, greedy_ids)])
    mismatch = next(mismatches, None)
    return SelfTestReport(
        passed=mismatch is None,
        max_abs_difference=0.0 if at is None else off[at],
        largest_at=at,
        tolerance=golden.tolerance,
        mismatch=mismatch,
    )


def _far_logit(
    at: tuple[int, int], found: np.float32, expected: float, tolerance: float
) -> str | None:
    if abs(float(found) - expected) <= tolerance:
        return None
    return (
        f"at position {at[0]} the logit of token {at[1]} is {found:.6g}, the bundle says "
        f"{expected:.6g} and allows {tolerance:.3g}"
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
