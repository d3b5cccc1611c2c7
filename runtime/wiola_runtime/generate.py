"""The decoding loop: prefill once, then one token at a time."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]  # (V,)
Pick = Callable[[Logits], int]


class StepModel(Protocol):
    """All the loop needs of a model; an opened graph and a test double both fit."""

    def step(self, token_ids: Sequence[int]) -> Logits:
        """Consume `token_ids`, advance the state, return the last logits (V,)."""
        ...


def generate(
    model: StepModel, prompt_ids: Sequence[int], *, pick: Pick, max_new_tokens: int
) -> Iterator[int]:
    """Yield token ids until the budget is spent; who knows a better end stops asking.

    The last token is yielded and never fed: a reply may fill the context to its last position.
    """
    pending: Sequence[int] = prompt_ids
    for _ in range(max_new_tokens):
        token_id = pick(model.step(pending))
        yield token_id
        pending = (token_id,)
