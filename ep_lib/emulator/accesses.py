"""The recorded memory accesses of a run under the checker: which thread read and wrote which bytes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_uint64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from ep_lib.emulator import library

if TYPE_CHECKING:
    from ep_lib.emulator.machine import Machine

# AccessRecord and AccessFlags of runtime/checker.hpp
_RECORD = np.dtype(
    [("address", "u8"), ("size", "u4"), ("flags", "u4")]
    + [(name, "i4") for name in ("rank", "block", "thread", "details")]
)
_WRITES, _ATOMIC, _VOLATILE = 1, 2, 64
_READS_TOO, _OF_PAIR, _FAILED = 1, 4, 8
# The axes of Accesses.kinds, after the ranks.
LOADS, STORES, UPDATES = range(3)  # an update is an atomic that reads and may write, including one that changes nothing
PLAIN, VOLATILE, ATOMIC, OF_PAIR, NIC = range(5)  # of a pair: two words in one access of 16 bytes, each counted
WIDTHS = (1, 2, 4, 8, 16)  # bytes; a last column holds all other sizes
COUNT, BYTES = range(2)
KINDS = (3, 5, len(WIDTHS) + 1, 2)


@dataclass(frozen=True)
class MemoryAccess:
    """One load, store or atomic of a thread, or an access of a NIC (``thread`` is -1, ``rank`` the poster's).

    ``block`` is blockIdx.x, ``thread`` its number in the block. An atomic both reads and writes. ``of_pair``: one
    of the two words of an access of 16 bytes.
    """

    rank: int
    block: int
    thread: int
    address: int
    bytes: int
    reads: bool
    writes: bool
    is_atomic: bool
    of_pair: bool = False


class Accesses(Sequence[MemoryAccess]):
    """The accesses that the runtime has kept; indexing makes a MemoryAccess. ``steps``: Machine.steps of the run."""

    def __init__(self, rows: np.ndarray[Any, Any], steps: int) -> None:
        self._rows = rows
        self.steps = steps

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> MemoryAccess: ...
    @overload
    def __getitem__(self, index: slice) -> Accesses: ...
    def __getitem__(self, index: int | slice) -> MemoryAccess | Accesses:
        if isinstance(index, slice):
            return Accesses(self._rows[index], self.steps)
        where, size, flags, rank, block, thread, details = self._rows[index].item()
        return MemoryAccess(
            rank,
            block,
            thread,
            where,
            size,
            reads=not flags & _WRITES or bool(details & _READS_TOO),
            writes=bool(flags & _WRITES),
            is_atomic=bool(flags & _ATOMIC) and not flags & _VOLATILE,
            of_pair=bool(details & _OF_PAIR),
        )

    def writes(self) -> NDArray[np.int64]:
        """Address and number of bytes of each write."""
        rows = self._rows[self._rows["flags"] & _WRITES != 0]
        return np.stack([rows["address"], rows["size"]], axis=1).astype(np.int64)

    def kinds(self, address: int, size: int, ranks: int) -> NDArray[np.int64]:
        """[ranks, *KINDS]: the number of accesses to these bytes, and their total size, by rank and kind."""
        begins = self._rows["address"].astype(np.int64)
        rows = self._rows[(begins < address + size) & (begins + self._rows["size"] > address)]
        flags, details = rows["flags"], rows["details"]
        updates = details & (_READS_TOO | _FAILED) != 0
        what = np.where(updates, UPDATES, np.where(flags & _WRITES != 0, STORES, LOADS))
        by = (rows["thread"] < 0, details & _OF_PAIR != 0, flags & _VOLATILE != 0, flags & _ATOMIC != 0)
        how = np.select(by, (NIC, OF_PAIR, VOLATILE, ATOMIC), PLAIN)
        width = np.select([rows["size"] == each for each in WIDTHS], range(len(WIDTHS)), len(WIDTHS))
        found = np.zeros((ranks, *KINDS), np.int64)
        for column, each in ((COUNT, np.ones(len(rows), np.int64)), (BYTES, rows["size"])):
            np.add.at(found[..., column], (rows["rank"], what, how, width), each)
        return found


def keep(machine: Machine, most: int) -> None:
    """Makes a machine under checks keep its accesses from now on (the first ``most``)."""
    library.load().epemu_check_keep_accesses(machine.handle, most)


def collect(machine: Machine) -> Accesses:
    """The kept accesses in order, without repetitions by loops; call it before the checks end."""
    count = c_uint64()
    address = library.load().epemu_check_accesses(machine.handle, ctypes.byref(count))
    size = count.value * _RECORD.itemsize
    return Accesses(np.frombuffer(ctypes.string_at(address, size) if size else b"", _RECORD), machine.steps)
