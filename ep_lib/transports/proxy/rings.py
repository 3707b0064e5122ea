"""The memory of rings, in the layout of ``<ep/proxy_command.cuh>``."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ep_lib.jit.structs import enumerators, header_struct

_HEADER = "ep/proxy_command.cuh"
RING = header_struct(_HEADER, "ProxyRing")
COMMAND = header_struct(_HEADER, "ProxyCommand")
CREDITS = header_struct(_HEADER, "ProxyCredits")
PRODUCER = header_struct(_HEADER, "ProxyProducer")
RINGS = header_struct(_HEADER, "ProxyRings")
_LINE = 64


def op(name: str) -> int:
    """The number of an ep::ProxyOp, such as "kProxyWrite"."""
    return enumerators(_HEADER, "ProxyOp")[name]


class Rings:
    """``count`` rings of ``slots`` slots each; ``address``: the ProxyRing structs'.

    ``memory``: the memory of slots and counts, at least :meth:`shared_bytes` zeros, aligned to 64 bytes: shared memory,
    if another process pushes. By default it is this process's. ``producers``: GPU memory for kernels' counts instead.
    ``sealed``: kernels push over PCIe.
    """

    def __init__(self, count: int, slots: int, memory: Any = None, producers: int = 0, *, sealed: bool = False) -> None:
        self.count, self.slots = count, slots
        self._memory = _aligned(self.shared_bytes(count, slots)) if memory is None else np.frombuffer(memory, np.uint8)
        self._heads = _aligned(count * RING.size)
        self.address = self._heads.ctypes.data
        rings, at = self._heads.view(RING.dtype), self._memory.ctypes.data
        for number in range(count):
            for field, size in (
                ("slots", slots * COMMAND.size),
                ("credits", CREDITS.size),
                ("producer", PRODUCER.size),
            ):
                rings[number][field] = at
                at += size
            if producers:
                rings[number]["producer"] = producers + number * PRODUCER.size
            rings[number]["num_slots"], rings[number]["sealed"] = slots, sealed

    @staticmethod
    def shared_bytes(count: int, slots: int) -> int:
        """The size of the memory that both sides share."""
        return count * (slots * COMMAND.size + CREDITS.size + PRODUCER.size)

    def spans(self) -> list[tuple[int, int]]:
        """(address, bytes) of all memory that kernels touch."""
        return [(part.ctypes.data, part.nbytes) for part in (self._heads, self._memory)]

    def pushed(self, number: int) -> int:
        """The number of commands pushed into a ring, or being pushed."""
        return int(np.frombuffer(self._producer(number), PRODUCER.dtype)[0]["head"])

    def _producer(self, number: int) -> Any:
        address = int(self._heads.view(RING.dtype)[number]["producer"])
        return (ctypes.c_char * PRODUCER.size).from_address(address)

    def ring(self, number: int) -> int:
        """The address of one ring's ProxyRing struct."""
        return self.address + number * RING.size


def _aligned(nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    memory = np.zeros(nbytes + _LINE, np.uint8)
    begin = -memory.ctypes.data % _LINE
    return memory[begin : begin + nbytes]
