"""The symmetric heap's allocator: which part of the heap belongs to which array.

Every rank runs the same allocations in the same order, so each array has the same offset everywhere, and a peer's
address is known without communication (as in OpenSHMEM).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from ep_lib.errors import ArgumentError, OutOfSymmetricMemory

ALIGNMENT = 256  # bytes; also keeps arrays out of each other's cache lines
RESERVED = 256  # the first bytes hold the fault record of <ep/wait.cuh>


class _Freed(NamedTuple):
    begin: int
    end: int
    number: int  # of the call of free


class SymmetricHeap:
    """First fit over a list of free extents; frees coalesce.

    With ``spread`` 2 every offset is doubled: behind each array as many bytes stay unused as it has, so an index past
    its end hits no other array. The heap holds the same arrays in twice the address space.

    With ``generations`` 2 that address space exists twice, and a new array in the place of a freed one is in the other
    generation: a pointer to the freed array does not hit the new one.
    """

    def __init__(self, nbytes: int, spread: int = 1, generations: int = 1) -> None:
        if nbytes < RESERVED + ALIGNMENT:
            raise ArgumentError(f"a symmetric heap of {nbytes} bytes is too small; it needs {RESERVED + ALIGNMENT}")
        self.nbytes = nbytes
        self._spread = spread
        self._past: list[list[_Freed]] = [[] for _ in range(generations)]
        self._frees = 0
        self._free = [(RESERVED, nbytes)]  # (begin, end), sorted, without the spread
        self._used: dict[int, int] = {}  # offset -> bytes taken
        self._arrays: dict[int, int] = {}  # offset -> end of the requested bytes

    def allocate(self, nbytes: int, *, hint: str) -> int:
        """Offset of ``nbytes`` fresh bytes. Raises OutOfSymmetricMemory, whose message ends with ``hint``."""
        size = max(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT
        for i, (begin, end) in enumerate(self._free):
            if end - begin >= size:
                self._free[i : i + 1] = [(begin + size, end)] if end - begin > size else []
                offset = (self._generation(begin, begin + size) * self.nbytes + begin) * self._spread
                self._used[offset] = size
                self._arrays[offset] = offset + nbytes
                return offset
        largest = self.largest_free
        raise OutOfSymmetricMemory(
            f"the symmetric heap is too small: {size} bytes are wanted and the largest free part of its "
            f"{self.nbytes} bytes has {largest}, so {size - largest} bytes are missing; {hint}",
            requested=size,
            available=largest,
        )

    @property
    def largest_free(self) -> int:
        """Bytes of the largest free part."""
        return max((end - begin for begin, end in self._free), default=0)

    def _generation(self, begin: int, end: int) -> int:
        """The generation in which these bytes were never used, or freed longest ago."""
        lasts = [max((f.number for f in past if f.begin < end and begin < f.end), default=0) for past in self._past]
        return lasts.index(min(lasts))

    def free(self, offset: int, *, unused: bool = False) -> None:
        """Frees an allocation. ``unused``: it was never handed out. Raises ArgumentError if there is none at this
        offset."""
        size = self._used.pop(offset, None)
        if size is None:
            raise ArgumentError(f"nothing is allocated at offset {offset} of the symmetric heap (freed twice?)")
        del self._arrays[offset]
        generation, begin = divmod(offset // self._spread, self.nbytes)
        if not unused:
            self._frees += 1
            kept = [f for f in self._past[generation] if f.begin < begin or f.end > begin + size]
            self._past[generation] = [*kept, _Freed(begin, begin + size, self._frees)]
        extents = sorted([*self._free, (begin, begin + size)])
        merged = [extents[0]]
        for begin, stop in extents[1:]:
            if begin == merged[-1][1]:
                merged[-1] = (merged[-1][0], stop)
            else:
                merged.append((begin, stop))
        self._free = merged

    @property
    def arrays(self) -> list[tuple[int, int]]:
        """(begin, end) of accessible parts: the reserved bytes at the start, then each array without its padding."""
        return [(0, RESERVED), *sorted(self._arrays.items())]

    def holds(self, begin: int, end: int) -> bool:
        """Whether all these bytes are in one allocated array."""
        arrays = self.arrays
        first, last = arrays[max(0, bisect_right(arrays, begin, key=lambda array: array[0]) - 1)]
        return first <= begin <= end <= last

    def owns(self, offset: int) -> bool:
        """Whether an allocation begins at this offset."""
        return offset in self._used
