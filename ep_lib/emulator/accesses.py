"""Which thread read and wrote which bytes, in a run under the checker."""

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
    [
        ("address", "u8"),
        ("size", "u4"),
        ("flags", "u4"),
        ("rank", "i4"),
        ("block", "i4"),
        ("thread", "i4"),
        ("also", "i4"),
    ]
)
_WRITES, _ATOMIC, _VOLATILE = 1, 2, 64


@dataclass(frozen=True)
class MemoryAccess:
    """One load, store or atomic of a thread, or what a NIC did (``thread`` is -1, ``rank`` the one that posted it).

    ``block`` is blockIdx.x, ``thread`` the thread's number in its block. An atomic both reads and writes.
    """

    rank: int
    block: int
    thread: int
    address: int
    bytes: int
    reads: bool
    writes: bool
    is_atomic: bool


class Accesses(Sequence[MemoryAccess]):
    """What the runtime has kept; an object of one is made when it is asked for."""

    def __init__(self, rows: np.ndarray[Any, Any]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> MemoryAccess: ...
    @overload
    def __getitem__(self, index: slice) -> Accesses: ...
    def __getitem__(self, index: int | slice) -> MemoryAccess | Accesses:
        if isinstance(index, slice):
            return Accesses(self._rows[index])
        where, size, flags, rank, block, thread, also = self._rows[index].item()
        return MemoryAccess(
            rank,
            block,
            thread,
            where,
            size,
            reads=not flags & _WRITES or bool(also),
            writes=bool(flags & _WRITES),
            is_atomic=bool(flags & _ATOMIC) and not flags & _VOLATILE,
        )

    def writes(self) -> NDArray[np.int64]:
        """Address and number of bytes of each write."""
        rows = self._rows[self._rows["flags"] & _WRITES != 0]
        return np.stack([rows["address"], rows["size"]], axis=1).astype(np.int64)


def keep(machine: Machine, most: int) -> None:
    """From now on the machine, whose checks have begun, keeps each access (the first ``most``)."""
    library.load().epemu_check_keep_accesses(machine.handle, most)


def collect(machine: Machine) -> Accesses:
    """What was kept, in the order in which it happened, without what loops repeat; call it before the checks end."""
    count = c_uint64()
    address = library.load().epemu_check_accesses(machine.handle, ctypes.byref(count))
    size = count.value * _RECORD.itemsize
    return Accesses(np.frombuffer(ctypes.string_at(address, size) if size else b"", _RECORD))
