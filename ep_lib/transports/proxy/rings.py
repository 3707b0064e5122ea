"""The memory of rings, as ``<ep/proxy_command.cuh>`` lays it out."""

from __future__ import annotations

import numpy as np

from ep_lib.jit.structs import header_struct

_HEADER = "ep/proxy_command.cuh"
RING = header_struct(_HEADER, "ProxyRing")
COMMAND = header_struct(_HEADER, "ProxyCommand")
CREDITS = header_struct(_HEADER, "ProxyCredits")
PRODUCER = header_struct(_HEADER, "ProxyProducer")
_LINE = 64


class Rings:
    """``count`` rings of ``slots`` slots each, in one array of the host, which begins with the ProxyRing structs."""

    def __init__(self, count: int, slots: int) -> None:
        self.count, self.slots = count, slots
        each = slots * COMMAND.size + CREDITS.size + PRODUCER.size
        heads = -(-count * RING.size // _LINE) * _LINE
        self.nbytes = heads + count * each
        self._memory = np.zeros(self.nbytes + _LINE, np.uint8)
        begin = -self._memory.ctypes.data % _LINE
        self.address = self._memory.ctypes.data + begin
        self.rings = self._memory[begin : begin + count * RING.size].view(RING.dtype)
        for number in range(count):
            at = self.address + heads + number * each
            for field, size in (
                ("slots", slots * COMMAND.size),
                ("credits", CREDITS.size),
                ("producer", PRODUCER.size),
            ):
                self.rings[number][field] = at
                at += size
            self.rings[number]["num_slots"] = slots
