"""Text to token ids, and the special tokens that begin and end a text."""

import dataclasses
from collections.abc import Callable, Sequence

Encode = Callable[[str], Sequence[int]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tokenization:
    """How a model sees a text.

    Attributes:
        encode: Text to token ids, whether or not it adds special tokens itself.
        bos_id: Token in front of each text, where the model has one.
        eos_id: Token behind each text, where the model has one and it is wanted.
    """

    encode: Encode
    bos_id: int | None = None
    eos_id: int | None = None

    def content(self, piece: str) -> Sequence[int]:
        """Return the token ids of a part of a text, without the tokens that begin and end one."""
        ids = self.encode(piece)
        begins = self.bos_id is not None and len(ids) > 0 and ids[0] == self.bos_id
        ids = ids[1:] if begins else ids
        ends = self.eos_id is not None and len(ids) > 0 and ids[-1] == self.eos_id
        return ids[:-1] if ends else ids

    @property
    def before(self) -> tuple[int, ...]:
        """Token ids in front of a text."""
        return () if self.bos_id is None else (self.bos_id,)

    @property
    def after(self) -> tuple[int, ...]:
        """Token ids behind a text."""
        return () if self.eos_id is None else (self.eos_id,)
