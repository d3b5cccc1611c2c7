"""Ask Linux for pages of 2 MiB under the weights, all of which a step reads.

With pages of 4 KiB the processor has to look up an address every few thousand weights.
"""

import ctypes
from collections.abc import Iterator
from ctypes import c_size_t, c_void_p
from functools import partial
from pathlib import Path

HUGE = 2 << 20
SMALLEST = 8 << 20  # what is smaller holds no matrices
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25
MAPS = Path("/proc/self/maps")

Spans = set[tuple[int, int]]  # addresses: the first, and the first that doesn't belong to it


def private_memory() -> Spans:
    """Return the writable memory of this process that lies in no file; nothing but on Linux."""
    if not MAPS.is_file():
        return set()
    lines = (line.split(maxsplit=5) for line in MAPS.read_text("utf-8", "replace").splitlines())
    private = (span for span, rights, _, _, inode, *_ in lines if (rights, inode) == ("rw-p", "0"))
    return {(int(first, 16), int(end, 16)) for first, end in (span.split("-") for span in private)}


def _taken(before: Spans) -> Iterator[tuple[int, int]]:
    """Yield what has come since; spans that touch have melted together."""
    earlier = sorted(before)
    for first, end in private_memory():
        begin = first
        for known, known_end in earlier:
            if known < end and begin < known_end:
                yield begin, known
                begin = known_end
        yield begin, end


def enlarge_pages(before: Spans) -> int:
    """Ask for huge pages in the memory that was taken since `before` was looked at.

    Linux goes on with small pages where it has no others or may not give them.

    Returns:
        The bytes that are in huge pages now.
    """
    enlarged = 0
    for first, end in _taken(before) if before else ():
        start = -(-first // HUGE) * HUGE
        size = end // HUGE * HUGE - start
        if size >= SMALLEST:
            advise = partial(ctypes.CDLL(None).madvise, c_void_p(start), c_size_t(size))
            advise(MADV_HUGEPAGE)
            # At once, where Linux is at least 6.1; elsewhere as it finds the time.
            enlarged += size * (advise(MADV_COLLAPSE) == 0)
    return enlarged
