"""Measure where the time of a reply goes."""

import dataclasses
import time
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Where the time of a reply went; a slow reader of the stream does not count.

    Attributes:
        prefill_seconds: The prompt's pass and the choice of the first token.
        first_token_seconds: The same and the allocation of the state.
        decode_seconds: All later tokens.
        prefill_tokens_per_second: Tokens of the prompt that were not there already.
    """

    prefill_seconds: float
    first_token_seconds: float
    decode_seconds: float
    prefill_tokens_per_second: float
    decode_tokens_per_second: float


class Clock:
    """Times each token while it is made, not while its reader is busy."""

    def __init__(self) -> None:
        self._started = self._began = time.perf_counter()
        self._first_token = 0.0
        self._steps: list[float] = []

    def timed(self, tokens: Iterator[int]) -> Iterator[int]:
        """Yield the tokens of a loop."""
        self.begin()
        while (token_id := next(tokens, None)) is not None:
            self.end()
            yield token_id
            self.begin()

    def begin(self) -> None:
        """Start to make a token."""
        self._began = time.perf_counter()

    def end(self) -> None:
        """Take the time of the token since `begin` into account."""
        now = time.perf_counter()
        self._steps.append(now - self._began)
        self._first_token = self._first_token or now - self._started

    def timings(self, prefilled: int) -> Timings:
        """Return the times of a reply for which so many tokens were fed beforehand."""
        prefill, decode = sum(self._steps[:1]), sum(self._steps[1:])
        return Timings(
            prefill_seconds=prefill,
            first_token_seconds=self._first_token,
            decode_seconds=decode,
            prefill_tokens_per_second=_rate(prefilled, prefill),
            decode_tokens_per_second=_rate(len(self._steps) - 1, decode),
        )


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if seconds else 0.0
