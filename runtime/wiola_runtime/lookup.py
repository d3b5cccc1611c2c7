"""Guess what comes next from what came before: prompt-lookup drafts.

A text that repeats its context (code, quotations, edits) is continued as it went on the last time.
A guess costs a place in the next pass; the graph tells in one pass how much of it is right.
"""

from collections.abc import Sequence

# The more tokens agree, the likelier is the continuation; so the longest are tried first.
GRAMS = (3, 2)


class PromptLookup:
    """Continues the last tokens as they went on at their latest earlier occurrence.

    Attributes:
        token_ids: The whole text.
    """

    def __init__(self, token_ids: Sequence[int]) -> None:
        self.token_ids: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}
        for token_id in token_ids:
            self.note(token_id)

    def note(self, token_id: int) -> None:
        """Take the next token of the text into account."""
        # What ends at the last token may only be found once it is followed by something.
        for size in GRAMS:
            if len(self.token_ids) >= size:
                self._ends[tuple(self.token_ids[-size:])] = len(self.token_ids)
        self.token_ids.append(token_id)

    def guess(self, count: int) -> list[int]:
        """Return so many tokens that may come next; none where nothing recurs.

        A repetition that reaches up to here goes on in the guess itself.
        """
        for size in GRAMS:
            end = self._ends.get(tuple(self.token_ids[-size:]))
            if end is not None:
                period = len(self.token_ids) - end
                return [self.token_ids[end + i % period] for i in range(count)]
        return []
