"""What an SPMD program holds: its rank among the others, symmetric memory, and ways to wait."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from types import ModuleType, TracebackType
from typing import Any

import numpy as np

from ep_lib.backends.base import Backend, Streams
from ep_lib.errors import ArgumentError, BufferClosedError, EpError, RankMismatchError
from ep_lib.jit.kernel import Dim, Kernel
from ep_lib.memory.arrays import describe
from ep_lib.memory.symmetric import SymmetricHeap


class Rank:
    """One rank of a world, on any backend.

    Attributes: ``rank`` (0 .. world_size - 1), ``world_size``, ``backend`` ("emulator" or "cuda"), ``xp`` (numpy or
    cupy: the module whose arrays live where this rank's kernels run), ``heap_bytes`` (size of the symmetric heap) and
    ``is_closed`` (whether :meth:`close` was called).

    Launches are asynchronous and run in order; call :meth:`synchronize` before reading what a kernel wrote. Methods
    called *collective* must be called by every rank, in the same order.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._heap = SymmetricHeap(backend.heap_bytes, backend.heap_gap)
        self._offsets: dict[int, int] = {}  # address of a symmetric array -> its offset
        self.is_closed = False
        self.rank = backend.rank
        self.world_size = backend.world_size
        self.backend = backend.name
        self.xp: ModuleType = backend.xp
        self.heap_bytes = backend.heap_bytes
        backend.heap_in_use(self._heap.top, self._heap.arrays)

    def __index__(self) -> int:
        return self.rank

    def __repr__(self) -> str:
        return f"Rank({self.rank} of {self.world_size}, backend={self.backend!r}{', closed' if self.is_closed else ''})"

    def launch(
        self,
        kernel: Kernel,
        grid: Dim,
        block: Dim,
        args: Sequence[Any],
        shared_bytes: int = 0,
        uses: Sequence[Any] = (),
    ) -> None:
        """Start a kernel and return; :meth:`ep_lib.Kernel.launch` is the friendlier way to write this."""
        self._require_open()
        self._backend.launch(kernel, grid, block, args, shared_bytes, uses)

    @property
    def streams(self) -> Streams:
        """This rank's CUDA streams and events; on the emulator a single stream, 0."""
        return self._backend.streams

    @property
    def multiprocessors(self) -> int | None:
        """Of this rank's GPU; None on the emulator, which runs any number of blocks at once."""
        return self._backend.multiprocessors

    @property
    def shared_bytes(self) -> int:
        """Shared memory that a block may have, in bytes."""
        return self._backend.shared_bytes

    # ---- waiting ---------------------------------------------------------------------------------------------
    def synchronize(self) -> None:
        """Wait until this rank's kernels are done.

        Raises KernelFault, DeadlockError or KernelTimeout for what went wrong in kernels, and PeerTimeout when a
        kernel waited too long for another rank.
        """
        self._require_open()
        self._backend.synchronize()

    def barrier(self) -> None:
        """Collective: returns when every rank is here and has finished its kernels."""
        self.synchronize()
        self._backend.barrier()

    def all_gather(self, obj: object) -> list[Any]:
        """Collective: the ``obj`` of every rank (small, picklable), in rank order."""
        self._require_open()
        return self._backend.all_gather(obj)

    # ---- symmetric memory ------------------------------------------------------------------------------------
    def symmetric(self, shape: int | tuple[int, ...], dtype: Any, fill: float | None = 0) -> Any:
        """Collective: an array at the same offset of every rank's symmetric heap, which peers' kernels can reach.

        ``fill`` is written to every element (None leaves them as they are). Returns an ``xp`` array. Raises
        RankMismatchError if ranks ask for different sizes, OutOfSymmetricMemory if the heap is too small.
        """
        self.synchronize()
        dimensions = self._shape(shape)
        dtype = np.dtype(dtype)
        nbytes = math.prod(dimensions) * dtype.itemsize
        offset: int | None = None
        error: EpError | None = None
        try:
            offset = self._heap.allocate(nbytes, hint="start with a larger heap_bytes= (or EP_LIB_HEAP_BYTES)")
        except EpError as caught:
            error = caught
        # Every rank says what it wants, and what it got, before any rank goes on or gives up.
        wanted = self._backend.all_gather((dimensions, str(dtype), offset), "symmetric()")
        if error is None and len(set(wanted)) > 1:
            error = RankMismatchError(
                "the ranks allocate different symmetric arrays: "
                + "; ".join(f"rank {r}: shape {s}, {d}, offset {o}" for r, (s, d, o) in enumerate(wanted))
                + "; every rank must call symmetric() and free() with the same arguments in the same order"
            )
        if error is not None or offset is None:
            if offset is not None:
                self._heap.free(offset)
            assert error is not None
            raise error
        self._backend.heap_in_use(self._heap.top, self._heap.arrays)
        array = self._backend.heap_array(offset, dimensions, dtype)
        if fill is not None:
            array[...] = fill
            self._backend.synchronize()
        self._offsets[describe(array).address] = offset
        self._backend.all_gather(None, "symmetric()")  # no peer writes into it before it is filled
        return array

    def free(self, array: Any) -> None:
        """Give a symmetric array back. Every rank must free it, after its last use on any rank."""
        self._require_open()
        address = describe(array).address
        offset = self._offsets.pop(address, None)
        if offset is None:
            raise ArgumentError("free() got an array that symmetric() did not return, or that was freed before")
        self._heap.free(offset)
        self._backend.heap_in_use(self._heap.top, self._heap.arrays)

    def offset_of(self, array: Any) -> int:
        """Offset in bytes of an array (or a view of one) from the start of the symmetric heap."""
        info = describe(array)
        offset = info.address - self._backend.heap_address(self.rank)
        if not 0 <= offset <= offset + info.nbytes <= self.heap_bytes:
            raise ArgumentError(
                f"the array at 0x{info.address:x} ({info.nbytes} bytes) is not in rank {self.rank}'s symmetric heap; "
                f"allocate it with rank.symmetric()"
            )
        return offset

    def peer_address(self, array: Any, peer: int) -> int:
        """Address at which this rank's kernels reach ``peer``'s copy of a symmetric array."""
        if not 0 <= operator.index(peer) < self.world_size:
            raise ArgumentError(f"there is no rank {peer}; ranks are 0 to {self.world_size - 1}")
        return self._backend.heap_address(peer) + self.offset_of(array)

    # ---- other memory ----------------------------------------------------------------------------------------
    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        """An uninitialised ``xp`` array in this rank's own memory (not symmetric)."""
        self._require_open()
        array = self.xp.empty(self._shape(shape), dtype=dtype)
        self._backend.register_array(array)
        return array

    def host_array(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        """A NumPy array of zeros that kernels may write by its address while the host reads it (mapped memory)."""
        self._require_open()
        return self._backend.host_array(self._shape(shape), dtype)

    def to_device(self, array: Any) -> Any:
        """A copy of a NumPy array where this rank's kernels can use it."""
        self._require_open()
        copy = self.xp.array(array)
        self._backend.register_array(copy)
        return copy

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        """A NumPy copy of an ``xp`` array, after this rank's kernels are done."""
        self.synchronize()
        return np.array(_to_numpy(array))

    # ---- the end ---------------------------------------------------------------------------------------------
    def close(self) -> None:
        """End this rank's part in the world. ``spawn`` does it by itself; calling it twice does no harm."""
        if not self.is_closed:
            self.is_closed = True
            self._backend.close()

    def __enter__(self) -> Rank:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require_open(self) -> None:
        if self.is_closed:
            raise BufferClosedError(f"rank {self.rank} was closed; start a new world with spawn() or init()")

    @staticmethod
    def _shape(shape: int | tuple[int, ...]) -> tuple[int, ...]:
        try:
            dimensions = tuple(operator.index(n) for n in (shape if isinstance(shape, tuple | list) else (shape,)))
        except TypeError:
            dimensions = (-1,)
        if any(n < 0 for n in dimensions):
            raise ArgumentError(f"shape is {shape!r}; it must be whole numbers, none of them negative")
        return dimensions


def _to_numpy(array: Any) -> np.ndarray[Any, Any]:
    """The array itself if it is NumPy's, a copy of a CuPy array."""
    return array if isinstance(array, np.ndarray) else np.asarray(array.get())
