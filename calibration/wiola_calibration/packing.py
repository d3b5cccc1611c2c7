"""Cut texts into windows of equal length, and account for every token.

Axes: W windows, T tokens of a window (the context).
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from wiola_calibration.corpus import Text
from wiola_calibration.errors import CorpusError
from wiola_calibration.tokenization import Encode, Tokenization

MIN_CONTEXT = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TextRecord:
    """What became of one text.

    Attributes:
        size_bytes: Of the whole file.
        context: Tokens of a window.
        windows: Windows cut, without overlap, from the start of the text.
        tokens: Tokens read, the one that starts the document included.
        dropped_tokens: Tokens read that fill no window.
        complete: Whether the text was read to its end; false where the limit came first.
    """

    name: str
    description: str
    sha256: str
    size_bytes: int
    context: int
    windows: int
    tokens: int
    dropped_tokens: int
    complete: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Windows (W, T) of token ids, text after text, and the record of each text."""

    windows: NDArray[np.int64]
    texts: tuple[TextRecord, ...]


def pack_all(
    texts: Sequence[Text], encode: Encode, *, context: int, max_windows: int, bos_id: int | None
) -> Packed:
    """Pack each text by itself, at most `max_windows` from each: no window spans two.

    Raises:
        CorpusError: There is no text, or one of them does not fill a window.
    """
    if not texts:
        raise CorpusError("no text to measure on; name a packaged one or give a text file")
    packed = [
        pack(text, encode, context=context, max_windows=max_windows, bos_id=bos_id)
        for text in texts
    ]
    return Packed(
        windows=np.concatenate([part.windows for part in packed]),
        texts=tuple(record for part in packed for record in part.texts),
    )


def pack(
    text: Text, encode: Encode, *, context: int, max_windows: int, bos_id: int | None
) -> Packed:
    """Cut the start of one text into at most `max_windows` windows of `context` tokens.

    Args:
        text: What to read; reading stops at the limit.
        encode: Text to token ids, whether or not it adds the document start itself.
        context: Tokens of a window.
        max_windows: Limit, which also bounds memory.
        bos_id: Token put once in front of the text, where the model has one.

    Raises:
        CorpusError: A number is out of range, or the text does not fill one window.
    """
    if context < MIN_CONTEXT:
        raise CorpusError(f"context is {context}; a window needs at least {MIN_CONTEXT} tokens")
    if max_windows < 1:
        raise CorpusError(f"max_windows is {max_windows}; measure on at least 1 window")
    wanted = context * max_windows
    ids: list[int] = [] if bos_id is None else [bos_id]
    tokenization = Tokenization(encode=encode, bos_id=bos_id)
    pieces: Iterator[Sequence[int]] = map(tokenization.content, text.pieces())
    while len(ids) < wanted and (piece := next(pieces, None)) is not None:
        ids.extend(piece)
    complete = next(pieces, None) is None
    return _cut(text, ids, context=context, max_windows=max_windows, complete=complete)


def _cut(
    text: Text, ids: Sequence[int], *, context: int, max_windows: int, complete: bool
) -> Packed:
    windows = min(len(ids) // context, max_windows)
    if windows == 0:
        raise CorpusError(
            f"{text.path} gives {len(ids)} tokens, fewer than one window of {context}; "
            "give a longer text"
        )
    kept = np.asarray(ids[: windows * context], dtype=np.int64)
    record = TextRecord(
        name=text.name,
        description=text.description,
        sha256=text.sha256,
        size_bytes=text.size_bytes,
        context=context,
        windows=windows,
        tokens=len(ids),
        dropped_tokens=len(ids) - windows * context,
        complete=complete,
    )
    return Packed(windows=kept.reshape(windows, context), texts=(record,))
