"""Where the text that a bundle writes first differs from the text of the float model."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import wiola_runtime as wr

PROMPTS = 6
PROMPT_TOKENS = 32
NEW_TOKENS = 64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """Two greedy continuations of one prompt.

    Attributes:
        same_tokens: Tokens before the first that differs; `tokens` where none does.
        tokens: Length of each continuation.
    """

    prompt: str
    reference: str
    candidate: str
    same_tokens: int
    tokens: int


def cut_prompts(windows: NDArray[np.int64], context_length: int) -> list[list[int]]:
    """Take the starts of windows (W, T) that lie evenly over all of them, as token ids."""
    chosen = np.linspace(0, len(windows) - 1, min(PROMPTS, len(windows))).round().astype(int)
    length = min(PROMPT_TOKENS, context_length // 2, windows.shape[1])
    prompts: list[list[int]] = windows[chosen, :length].tolist()
    return prompts


def compare_greedy(
    reference: wr.Model, candidate: wr.Model, prompts: Sequence[Sequence[int]]
) -> tuple[Continuation, ...]:
    """Let both models continue every prompt greedily; no token ends a continuation.

    Raises:
        WiolaRuntimeError: A model cannot be run.
    """
    decode = reference.tokenizer.decode
    expected, found = (_replies(model, prompts) for model in (reference, candidate))
    return tuple(
        Continuation(
            prompt=decode(prompt),
            reference=decode(mine),
            candidate=decode(other),
            same_tokens=_common(mine, other),
            tokens=len(mine),
        )
        for prompt, mine, other in zip(prompts, expected, found, strict=True)
    )


def _replies(model: wr.Model, prompts: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    context = model.manifest.context_length
    return [
        model.generate(prompt, greedy(min(NEW_TOKENS, context - len(prompt)))).token_ids
        for prompt in prompts
    ]


def greedy(count: int) -> wr.GenerationConfig:
    """Return the config of a reply of so many likeliest tokens, whatever the bundle prefers."""
    return wr.GenerationConfig(max_new_tokens=count, ignore_eos=True)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    differs = (i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    return next(differs, len(one))
