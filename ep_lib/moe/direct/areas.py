"""Rows that stay where they arrived: further receive areas, each lent to the arrays of one dispatch.

A copy within the GPU takes a quarter to a half of a dispatch's time. So a Buffer may have several receive areas
(``receive_areas``). Rows in area 0 are copied out, or stay valid only until the next operation. Each other area is lent
with a dispatch's results and comes back when the last array in it is gone. Each rank chooses its area by itself and
sends its number at the start of a dispatch: where no area is free, rows arrive in area 0 and are copied.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ep_lib.memory.arrays import Array, as_kind, holding, lend
from ep_lib.moe.config import BufferConfig
from ep_lib.moe.memory import ModeMemory


class Lease:
    """One area, lent as long as this object lives."""

    __slots__ = ("_free", "area")

    def __init__(self, free: list[int], area: int) -> None:
        self._free, self.area = free, area

    def __del__(self) -> None:
        self._free.append(self.area)


class ReceiveAreas:
    """Which of a Buffer's areas are free."""

    def __init__(self, memory: ModeMemory, config: BufferConfig) -> None:
        self._memory = memory
        self._area_bytes = {"rows": config.max_rows * config.row_bytes}
        self._area_bytes["recv_scales"] = memory.parts["recv_scales"].nbytes // max(1, config.receive_areas)
        kind, _, number = memory.device.partition(":")
        self._device = int(number) if kind == "cuda" else -1
        self._free = list(range(config.receive_areas - 1, 0, -1))

    def lend(self) -> Lease | None:
        """The next free area; None if all are lent."""
        return Lease(self._free, self._free.pop()) if self._free else None

    def address(self, lease: Lease, name: str, skipped: int = 0) -> int:
        """The address of the byte ``skipped`` of an area's part ``name``."""
        return self._memory.at[name] + skipped + lease.area * self._area_bytes[name]

    def array(
        self, lease: Lease, name: str, kind: str, shape: tuple[int, int], dtype: np.dtype[Any], skipped: int = 0
    ) -> Array:
        """The part ``name`` of an area, from its byte ``skipped`` on, as an array that holds the lease."""
        inside = lease.area * self._area_bytes[name] + skipped
        if kind == "torch":
            tensor = lend(self.address(lease, name, skipped), shape, dtype, self._device, lease)
            if tensor is not None:
                return tensor
        begin, nbytes = self._memory.parts[name].offset + inside, shape[0] * shape[1] * dtype.itemsize
        stored = dtype if dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")
        held = holding(lease, self._memory.array[begin : begin + nbytes], shape, stored)
        return as_kind(kind, held, dtype)
