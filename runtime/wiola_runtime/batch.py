"""Several texts together: each is read by itself, then all are decoded in one pass a token.

A pass reads the weights once for all rows. A row that is finished leaves, and the rest go on in a
smaller pass.

Axes: B rows, V vocabulary.
"""

from collections.abc import Sequence
from numbers import Integral
from typing import TypeGuard

from wiola_runtime.cancel import Cancellation, Cancelled
from wiola_runtime.clock import Clock
from wiola_runtime.config import GenerationConfig
from wiola_runtime.engine import Engine
from wiola_runtime.errors import CapacityError
from wiola_runtime.generate import Logits
from wiola_runtime.reply import Reply, Result
from wiola_runtime.row import Row, Rows

Prompts = list[str] | list[Sequence[int]] | list[list[int]]


def is_several(prompt: object) -> TypeGuard[Prompts]:
    """Tell prompts from one prompt, which may be a list of ids."""
    return isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], Integral)


def generate_together(
    engine: Engine,
    prompts: Prompts,
    config: GenerationConfig,
    cancel: Cancellation | None = None,
) -> list[Result]:
    """Return the reply to each prompt, in their order; every row draws with the same seed.

    Raises:
        GenerationError: A prompt is no text, or no ids of the vocabulary.
        CapacityError: A prompt leaves no room for a reply, or the cache grows by itself and the
            prompts differ in length.
    """
    texts = [engine.ids_of(prompt, begins=True) for prompt in prompts]
    for ids in texts:
        engine.require_room(len(ids))
    lengths = sorted({len(ids) for ids in texts})
    if engine.manifest.cache == "growing" and len(lengths) > 1:
        raise CapacityError(
            f"prompts of this bundle ({engine.manifest.target}) must have one length to be decoded "
            f"together, found {lengths} tokens; give one prompt at a time"
        )
    together = _Together(engine, texts, config, cancel or Cancellation())
    try:
        together.run()
    except Cancelled:
        together.cancel()
    return together.results()


class _Together:
    """Replies on their way in one batch."""

    def __init__(
        self,
        engine: Engine,
        texts: Sequence[list[int]],
        config: GenerationConfig,
        cancel: Cancellation,
    ) -> None:
        self._engine = engine
        self._texts = texts
        self._check = cancel.check
        self._replies = [Reply(engine, ids, config) for ids in texts]
        self._clocks = [Clock() for _ in texts]
        self._picks = [reply.pick for reply in self._replies]

    def run(self) -> None:
        """Read every prompt, then decode the unfinished ones together."""
        rows: dict[int, Row] = {}
        for index, ids in enumerate(self._texts):
            if self._replies[index].budget == 0:
                continue
            row = Row(self._engine.graph)
            self._clocks[index].begin()
            logits = row.step(ids, self._check)
            self._take(index, logits)
            if self._replies[index].ended_by is None:
                rows[index] = row
        batch = Rows(self._engine.graph, rows)
        del rows  # their states have been copied
        while batch.members:
            self._check()
            members = list(batch.members)
            for index in members:
                self._clocks[index].begin()
            tokens = [self._replies[index].token_ids[-1] for index in members]
            logits = batch.step(tokens)
            for index, scores in zip(members, logits, strict=True):
                self._take(index, scores)
            batch.keep([i for i in members if self._replies[i].ended_by is None])

    def cancel(self) -> None:
        """End what has not ended by itself."""
        for reply in self._replies:
            reply.ended_by = reply.ended_by or "cancelled"

    def results(self) -> list[Result]:
        """Return what came of every prompt."""
        found = []
        for reply, clock in zip(self._replies, self._clocks, strict=True):
            result = reply.finish(clock).result
            assert result is not None, "finish gives it"
            found.append(result)
        return found

    def _take(self, index: int, logits: Logits) -> None:
        token_id = self._picks[index](logits)
        self._clocks[index].end()
        self._replies[index].add(token_id)
