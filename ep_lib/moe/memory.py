"""A mode's symmetric memory: one allocation on every rank, which holds the mode's arrays one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ep_lib.errors import OutOfSymmetricMemory
from ep_lib.memory.arrays import Array, describe
from ep_lib.runtime.rank import Rank

_ALIGNMENT = 128  # bytes between parts: a cache line of a GPU

Shape = tuple[str, tuple[int, ...], str]  # of an array: name, dimensions, dtype


@dataclass(frozen=True)
class Part:
    """One array inside the memory; ``offset`` is in bytes."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def lay_out(shapes: list[Shape]) -> tuple[dict[str, Part], int]:
    """Arrays one after the other: each one's Part by name, and the bytes of all."""
    parts: dict[str, Part] = {}
    offset = 0
    for name, shape, dtype in shapes:
        parts[name] = Part(offset, shape, np.dtype(dtype))
        offset += -(-parts[name].nbytes // _ALIGNMENT) * _ALIGNMENT
    return parts, offset


class ModeMemory:
    """``at`` has the address of each part by name, ``parts`` its shape; ``array`` is the whole memory, as bytes."""

    def __init__(
        self,
        rank: Rank,
        layout: tuple[dict[str, Part], int],
        unset: str,
        *,
        who: str,
        lower: str | Callable[[int], str],
    ) -> None:
        """Collective: allocate the ``parts`` of :func:`lay_out`, and zero those before ``unset`` before a peer writes
        there.

        Raises OutOfSymmetricMemory: ``who`` needs the memory; ``lower`` names an argument to lower (or describes the
        remedy, given the free bytes).
        """
        parts, nbytes = layout
        zeroed = parts[unset].offset
        self.parts, self._rank, self._zeroed = parts, rank, zeroed
        try:
            self.array: Array = rank.symmetric(nbytes, np.uint8, fill=None)
        except OutOfSymmetricMemory as error:
            if nbytes <= rank._heap.largest_free:  # the heap has room: the host lacks memory, as the error says
                raise
            what = lower if isinstance(lower, str) else lower(error.available)
            raise OutOfSymmetricMemory(
                f"{who} needs {error.requested} bytes of symmetric memory on every rank, and the largest free part has "
                f"{error.available}: {error.short_by} bytes are missing. Lower {what}, or start with "
                f"heap_bytes={rank.heap_bytes + error.short_by} or more",
                requested=error.requested,
                available=error.available,
            ) from error
        self.array[:zeroed] = 0
        rank.streams.settle()
        rank.barrier()  # no signal may arrive before the zeros
        info = describe(self.array)
        self.device, self.kind = info.device, info.kind
        self.at = {name: info.address + part.offset for name, part in parts.items()}

    def clear(self, first: str) -> None:
        """Zero the initially zeroed parts again, from the part ``first`` on, while no rank runs a kernel."""
        self.array[self.parts[first].offset : self._zeroed] = 0
        self._rank.streams.settle()

    def free(self) -> None:
        """Free the memory. Peers may still read it: rank.symmetric() waits for them before reuse."""
        self._rank.free(self.array)


def address_of(array: Array | None) -> int:
    """The address of an array; 0 (a null pointer) for none."""
    return 0 if array is None else describe(array).address
