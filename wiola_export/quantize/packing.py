"""Lay rounded blocks out as the kernels read them."""

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def pad_to_blocks(rows: NDArray[np.float32], block_size: int) -> NDArray[np.float32]:
    """Cut rows (n, K) into blocks (n, ceil(K / block_size), block_size), filled with zeros."""
    count = -(-rows.shape[1] // block_size)
    missing = count * block_size - rows.shape[1]
    padded = np.pad(rows, ((0, 0), (0, missing))) if missing else rows
    return padded.reshape(len(rows), count, block_size)


def pack_nibbles(codes: Bytes) -> Bytes:
    """Put two 4-bit codes of the last axis in a byte, the first one low; odd ends get a zero."""
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros_like(codes[..., :1])], axis=-1)
    return codes[..., ::2] | np.left_shift(codes[..., 1::2], 4, dtype=np.uint8)


def unpack_nibbles(packed: Bytes, count: int) -> Bytes:
    """Undo `pack_nibbles`, keeping `count` codes of the last axis."""
    both = np.stack([packed & 15, packed >> 4], axis=-1)
    return both.reshape(*packed.shape[:-1], -1)[..., :count]
