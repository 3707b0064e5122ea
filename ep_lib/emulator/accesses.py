"""Which thread read and wrote which bytes, in a run under the checker."""

from __future__ import annotations

import ctypes
from ctypes import c_uint64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

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


def keep(machine: Machine, most: int) -> None:
    """From now on the machine, whose checks have begun, keeps each access (the first ``most``)."""
    library.load().epemu_check_keep_accesses(machine.handle, most)


def collect(machine: Machine) -> list[MemoryAccess]:
    """What was kept, in the order in which it happened, without what loops repeat; call it before the checks end."""
    count = c_uint64()
    address = library.load().epemu_check_accesses(machine.handle, ctypes.byref(count))
    if not count.value:
        return []
    raw = (ctypes.c_char * (count.value * _RECORD.itemsize)).from_address(address)
    rows: list[Any] = np.frombuffer(raw, _RECORD).tolist()  # type: ignore[call-overload]
    return [
        MemoryAccess(
            rank,
            block,
            thread,
            where,
            size,
            reads=not flags & _WRITES or bool(also),
            writes=bool(flags & _WRITES),
            is_atomic=bool(flags & _ATOMIC) and not flags & _VOLATILE,
        )
        for where, size, flags, rank, block, thread, also in rows
    ]
