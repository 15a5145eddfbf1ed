"""Large memory: planned in bytes before a byte is taken, then taken once, in huge pages."""

import mmap

import numpy as np
from numpy.typing import NDArray

_HUGE_PAGE_BYTES = 1 << 21
_ALIGNMENT_BYTES = 64


class Region:
    """One stretch of memory, planned piece by piece.

    ``place`` says where a piece will lie; ``allocate`` takes all of it, zero; then ``address`` and
    ``bytes_at`` give the pieces. What is planned is exactly what is taken.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self._memory: NDArray[np.uint8] | None = None

    def place(self, num_bytes: int) -> int:
        """The offset of the next ``num_bytes`` bytes, aligned to a cache line."""
        offset = self.num_bytes
        self.num_bytes += -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        return offset

    def allocate(self) -> None:
        """Take the memory. Zero, and backed by huge pages where the system has them."""
        self._memory = zero_bytes(self.num_bytes)

    def address(self, offset: int) -> int:
        """Where a placed piece lies, as an integer."""
        assert self._memory is not None, "allocate first"
        return self._memory.ctypes.data + offset

    def bytes_at(self, offset: int, num_bytes: int) -> NDArray[np.uint8]:
        """A placed piece, as a view."""
        assert self._memory is not None, "allocate first"
        return self._memory[offset : offset + num_bytes]


def zero_bytes(num_bytes: int) -> NDArray[np.uint8]:
    """``num_bytes`` of zero memory at the start of a page; untouched pages take no room yet."""
    # Private, which is not Python's default: shared memory seldom has huge pages, and what a forked
    # child writes would be seen by its parent.
    mapping = mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if num_bytes >= _HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, np.uint8, num_bytes)
