"""The decoding loops: prefill once, then one token at a time, or several that were guessed."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wiola_runtime.lookup import PromptLookup

Logits = NDArray[np.float32]  # (V,)
Pick = Callable[[Logits], int]


class StepModel(Protocol):
    """All the plain loop needs of a model; a row of the graph and a test double both fit."""

    def step(self, token_ids: Sequence[int]) -> Logits:
        """Consume `token_ids`, advance the state, return the last logits (V,)."""
        ...


class RewindableModel(StepModel, Protocol):
    """What the guessing loop needs besides."""

    @property
    def length(self) -> int:
        """Tokens that the model holds."""
        ...

    def score(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Consume `token_ids` in one pass, return the logits after each, (T, V)."""
        ...

    def keep_sums(self) -> None:
        """Prepare to come back to this very position."""
        ...

    def rewind(self, length: int) -> int:
        """Go back to `length` tokens or less; return how many the model still holds."""
        ...


@dataclasses.dataclass(slots=True)
class Guesses:
    """How guessing went.

    Attributes:
        passes: Passes in which a guess was tried.
        guessed: Tokens guessed.
        accepted: Those of them that the model would have chosen.
    """

    passes: int = 0
    guessed: int = 0
    accepted: int = 0


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


def generate_guessing(
    model: RewindableModel,
    lookup: PromptLookup,
    *,
    pick: Pick,
    max_new_tokens: int,
    most: int,
    tally: Guesses,
) -> Iterator[int]:
    """Yield the same token ids, several a pass where guesses are right.

    Every token is picked from the model's own logits, in order; a guess only decides whether the
    logits that follow it are there already. So replies are the same, drawn ones with the same seed.
    `model` holds a part of the text, from its beginning, `lookup` the whole; at most `most` tokens
    are guessed in one pass.
    """
    left = max_new_tokens
    while left > 0:
        pending = lookup.token_ids[model.length :]
        guess = lookup.guess(min(most, left - 1)) if left < max_new_tokens else []
        if guess:
            model.keep_sums()
            scores = model.score([*pending, *guess])[len(pending) - 1 :]
            tally.passes += 1
            tally.guessed += len(guess)
        else:
            scores = model.step(pending)[None]
        right = model.length - len(guess)
        for logits, guessed in zip(scores, [*guess, None], strict=True):
            token_id = pick(logits)
            lookup.note(token_id)
            left -= 1
            yield token_id
            if token_id != guessed:
                break
            right += 1
            tally.accepted += 1
        model.rewind(right)
