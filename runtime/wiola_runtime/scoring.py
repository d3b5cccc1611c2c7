"""Feed token ids to a graph in chunks.

Axes: B batch row, T positions, V vocabulary.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wiola_runtime.errors import CapacityError, GenerationError
from wiola_runtime.graph import Graph
from wiola_runtime.manifest import Manifest
from wiola_runtime.row import CHUNK_TOKENS


def score(
    graph: Graph, manifest: Manifest, token_ids: NDArray[np.int64], chunk_tokens: int = CHUNK_TOKENS
) -> NDArray[np.float32]:
    """Return the logits (B, T, V) of rows (B, T) of one length.

    Rows share a call while they fit in one chunk whole; longer ones go alone, in chunks.
    """
    batch_size, length = token_ids.shape
    result = np.empty((batch_size, length, manifest.vocab_size), np.float32)
    rows = max(1, chunk_tokens // length)
    for row in range(0, batch_size, rows):
        ids, out = token_ids[row : row + rows], result[row : row + rows]
        state = graph.start(ids.shape[0])
        for start in range(0, length, chunk_tokens):
            chunk = ids[:, start : start + chunk_tokens]
            # A chunk is shorter than its row only where the row is alone, so the slice of the
            # result is one block of memory and the graph writes straight into it.
            graph.run(state, chunk, np.arange(chunk.shape[1]), out[:, start : start + chunk_tokens])
    return result


def check_ids(
    token_ids: ArrayLike, manifest: Manifest, *, any_length: bool = False
) -> NDArray[np.int64]:
    """Return token ids (T,) or (B, T) as an array, or say what is wrong with them.

    With `any_length`, T may be more than the context.

    Raises:
        GenerationError: The ids are none, no integers, or outside the vocabulary.
        CapacityError: T is more than the context.
    """
    try:
        ids = np.asarray(token_ids)
    except ValueError as error:
        raise GenerationError("token ids have unequal lengths; expected (T,) or (B, T)") from error
    if ids.dtype.kind == "U":
        raise GenerationError("token ids are texts; give several prompts as a list")
    if ids.size == 0 or ids.ndim not in (1, 2) or ids.dtype.kind not in "iu":
        raise GenerationError(
            f"token ids have shape {ids.shape} and type {ids.dtype}; "
            "expected integers (T,) or (B, T), at least one"
        )
    # numpy makes integers of truth values among integers.
    flat = () if ids is token_ids else np.asarray(token_ids, object).flat
    if any(isinstance(i, bool | np.bool_) for i in flat):
        raise GenerationError("token ids hold truth values; expected integers")
    lowest, highest = int(ids.min()), int(ids.max())
    if lowest < 0 or highest >= manifest.vocab_size:
        raise GenerationError(
            f"token id {lowest if lowest < 0 else highest} is outside the vocabulary "
            f"of {manifest.vocab_size}; expected 0 to {manifest.vocab_size - 1}"
        )
    if ids.shape[-1] > manifest.context_length and not any_length:
        raise CapacityError(
            f"{ids.shape[-1]} tokens do not fit the context of {manifest.context_length}; "
            "shorten the text"
        )
    return ids.astype(np.int64)
