"""Write a reply: the loop that makes tokens, its clock, and what a cancellation leaves."""

from collections.abc import Iterator

from wiola_runtime.cancel import Cancelled
from wiola_runtime.clock import Clock
from wiola_runtime.generate import Guesses, generate, generate_guessing
from wiola_runtime.lookup import PromptLookup
from wiola_runtime.reply import Piece, Reply
from wiola_runtime.row import Watched


def write(reply: Reply, row: Watched) -> Iterator[Piece]:
    """Yield the pieces of a reply; `row` holds a part of its prompt.

    `reply.token_ids` is ahead of the pieces where text is held back.
    """
    clock = Clock()
    try:
        for token_id in clock.timed(_tokens(reply, row)):
            text = reply.add(token_id)
            if text:
                yield Piece(text=text)
            if reply.ended_by is not None:
                break
    except Cancelled:
        reply.ended_by = "cancelled"
    yield reply.finish(clock)


def _tokens(reply: Reply, row: Watched) -> Iterator[int]:
    """Return the loop that makes the tokens."""
    if not reply.config.draft_tokens:
        pending = reply.prompt_ids[row.length :]
        return generate(row, pending, pick=reply.pick, max_new_tokens=reply.budget)
    reply.guesses = Guesses()
    return generate_guessing(
        row,
        PromptLookup(reply.prompt_ids),
        pick=reply.pick,
        max_new_tokens=reply.budget,
        most=reply.config.draft_tokens,
        tally=reply.guesses,
    )
