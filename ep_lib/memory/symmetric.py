"""The symmetric heap's allocator: which part of the heap belongs to which array.

Every rank runs the same allocations in the same order, so the same array lies at the same offset everywhere, and an
address on a peer is known without asking (as in OpenSHMEM).
"""

from __future__ import annotations

from ep_lib.errors import ArgumentError, OutOfSymmetricMemory

ALIGNMENT = 256  # bytes; also keeps arrays out of each other's cache lines
RESERVED = 256  # the first bytes hold the fault record of <ep/wait.cuh>


class SymmetricHeap:
    """First fit over a list of free extents; frees coalesce. ``gap`` bytes after each array stay unused."""

    def __init__(self, nbytes: int, gap: int = 0) -> None:
        if nbytes < RESERVED + ALIGNMENT:
            raise ArgumentError(f"a symmetric heap of {nbytes} bytes is too small; it needs {RESERVED + ALIGNMENT}")
        self.nbytes = nbytes
        self._free = [(RESERVED, nbytes)]  # (begin, end), sorted
        self._gap = gap
        self._used: dict[int, int] = {}  # begin -> end
        self._arrays: dict[int, int] = {}  # begin -> end of what was asked for
        self.top = RESERVED  # end of the highest array ever allocated

    def allocate(self, nbytes: int, *, hint: str) -> int:
        """Offset of ``nbytes`` fresh bytes. Raises OutOfSymmetricMemory, whose message ends with ``hint``."""
        size = max(1, -(-(nbytes + self._gap) // ALIGNMENT)) * ALIGNMENT
        for i, (begin, end) in enumerate(self._free):
            if end - begin >= size:
                self._free[i : i + 1] = [(begin + size, end)] if end - begin > size else []
                self._used[begin] = begin + size
                self._arrays[begin] = begin + nbytes
                self.top = max(self.top, begin + size)
                return begin
        largest = max((end - begin for begin, end in self._free), default=0)
        raise OutOfSymmetricMemory(
            f"the symmetric heap is too small: {size} bytes are wanted and the largest free part of its "
            f"{self.nbytes} bytes has {largest}, so {size - largest} bytes are missing; {hint}",
            requested=size,
            available=largest,
        )

    def free(self, offset: int) -> None:
        """Gives an allocation back. Raises ArgumentError if there is none at this offset."""
        end = self._used.pop(offset, None)
        if end is None:
            raise ArgumentError(f"nothing is allocated at offset {offset} of the symmetric heap (freed twice?)")
        del self._arrays[offset]
        extents = sorted([*self._free, (offset, end)])
        merged = [extents[0]]
        for begin, stop in extents[1:]:
            if begin == merged[-1][1]:
                merged[-1] = (merged[-1][0], stop)
            else:
                merged.append((begin, stop))
        self._free = merged

    @property
    def arrays(self) -> list[tuple[int, int]]:
        """(begin, end) of what may be touched: the reserved bytes at the start, then each array without its padding."""
        return [(0, RESERVED), *sorted(self._arrays.items())]

    def owns(self, offset: int) -> bool:
        """Whether an allocation begins at this offset."""
        return offset in self._used
