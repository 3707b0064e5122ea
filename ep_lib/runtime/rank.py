"""What an SPMD program holds: its rank among the others, symmetric memory, and ways to wait."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import warnings
import weakref
from collections.abc import Sequence
from types import ModuleType, TracebackType
from typing import Any

import numpy as np

from ep_lib.backends.base import Backend, Streams
from ep_lib.errors import ArgumentError, BufferClosedError, EpError, OutOfSymmetricMemory, RankMismatchError
from ep_lib.jit import pieces
from ep_lib.jit.device_state import MAX_PIECE_COUNTS, PIECE_COUNTS_OFFSET
from ep_lib.jit.kernel import Dim, Kernel
from ep_lib.memory.arrays import describe, element_type, is_array, like
from ep_lib.memory.symmetric import SymmetricHeap
from ep_lib.require import flag, index, instance, refuse, show
from ep_lib.runtime.call_names import name_of_result

# What pickle raises, and the classes of what it copies
_NO_COPY = (pickle.PickleError, TypeError, AttributeError, ValueError, RuntimeError, LookupError, ImportError)


class Rank:
    """One rank of a world, on any backend.

    Attributes: ``rank`` (0 .. world_size - 1), ``world_size``, ``backend`` ("emulator" or "cuda"), ``xp`` (numpy or
    cupy: the module whose arrays live where this rank's kernels run), ``heap_bytes`` (size of the symmetric heap) and
    ``is_closed`` (whether :meth:`close` was called; true in a process that was forked from the rank's, too).

    Launches are asynchronous and run in order; call :meth:`synchronize` before reading what a kernel wrote. Methods
    called *collective* must be called by every rank, in the same order.

    A Rank equals its number, ``rank == 0``, and works as a number: as an index, a kernel's argument, a key.
    """

    def __init__(self, backend: Backend) -> None:
        if not isinstance(backend, Backend):
            refuse("backend", backend, "a backend; a Rank comes from ep_lib.spawn or ep_lib.init")
        self._backend = backend
        self._heap = SymmetricHeap(backend.heap_bytes, backend.heap_spread, backend.heap_generations)
        self._named: dict[tuple[Any, ...], list[list[tuple[str, str]]]] = {}  # under checks: names of symmetric arrays
        self._is_closed, self._process = False, os.getpid()
        self.buffers: weakref.WeakSet[Any] = weakref.WeakSet()  # those that were made on it
        self.rank = backend.rank
        self.world_size = backend.world_size
        self.backend = backend.name
        self.xp: ModuleType = backend.xp
        self.heap_bytes = backend.heap_bytes
        backend.heap_in_use(self._heap.arrays)

    @property
    def is_closed(self) -> bool:
        """Whether this rank has left its world; always True in a child forked from the rank's process."""
        return self._is_closed or os.getpid() != self._process

    def __index__(self) -> int:
        return self.rank

    def __int__(self) -> int:
        return self.rank

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Rank):
            return self.rank == other.rank
        return NotImplemented if (number := index(other)) is None else self.rank == number

    def __hash__(self) -> int:
        return hash(self.rank)

    def __reduce__(self) -> Any:
        raise ArgumentError(f"{self!r} cannot be copied or sent to another rank: pass rank.rank, its number")

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
        instance("kernel", kernel, Kernel, "an ep_lib.Kernel")
        if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
            refuse("args", args, "a list of the kernel's arguments")
        self._backend.launch(kernel, grid, block, args, shared_bytes, uses)

    @property
    def streams(self) -> Streams:
        """This rank's CUDA streams and events; on the emulator a single stream, 0."""
        return self._backend.streams

    @property
    def sm_count(self) -> int | None:
        """SMs of this rank's GPU; None on the emulator, which runs any number of blocks at once."""
        return self._backend.sm_count

    @property
    def multiprocessors(self) -> int | None:
        """The old name of :attr:`sm_count`."""
        warnings.warn("rank.multiprocessors is now rank.sm_count", DeprecationWarning, stacklevel=2)
        return self.sm_count

    @property
    def shared_bytes(self) -> int:
        """The most shared memory of a block, in bytes."""
        return self._backend.shared_bytes

    # ---- waiting ---------------------------------------------------------------------------------------------
    def synchronize(self) -> None:
        """Wait until this rank's kernels are done.

        Raises KernelFault, DeadlockError or KernelTimeout for errors in kernels, and PeerTimeout when a kernel waited
        too long for another rank.
        """
        self._require_open()
        self._backend.synchronize()

    def barrier(self) -> None:
        """Collective: returns when every rank is here and has finished its kernels. NICs may still be working on
        operations that kernels have posted without a quiet."""
        self.synchronize()
        self._backend.barrier()

    def all_gather(self, obj: object) -> list[Any]:
        """Collective: the ``obj`` of every rank (small, picklable), in rank order."""
        self._require_open()
        try:
            pickle.loads(pickle.dumps(obj))
        except _NO_COPY as error:
            raise ArgumentError(
                f"all_gather() got {show(obj)}, which cannot be copied to other ranks: {error}; pass numbers, texts, "
                "arrays, or lists and dicts of them"
            ) from error
        return self._backend.all_gather(obj)

    def invitation(self) -> str:
        """What another process needs to replace a rank that has ended: see :func:`ep_lib.rejoin`. It names the current
        processes; get a new one after each replacement. Raises BackendUnavailable unless ranks on the emulator are
        processes."""
        self._require_open()
        return self._backend.invitation()

    def network_bytes(self) -> tuple[int, int]:
        """Bytes that this rank's emulated NIC has sent to other hosts and received from them over TCP: data, headers of
        56 bytes an operation, and acknowledgements of 16. Zeros where all ranks are on one host. Raises ArgumentError
        on GPUs."""
        self._require_open()
        return self._backend.network_bytes()

    # ---- symmetric memory ------------------------------------------------------------------------------------
    def symmetric(self, shape: int | tuple[int, ...], dtype: Any, fill: float | None = 0) -> Any:
        """Collective: an array at the same offset of every rank's symmetric heap, which peers' kernels can reach.

        ``fill`` is written to every element (None leaves them as they are). Returns an ``xp`` array. Raises
        RankMismatchError if sizes differ between ranks, OutOfSymmetricMemory if the heap is too small.
        """
        dimensions, dtype = _shape(shape), element_type(dtype)
        if fill is not None:
            _check_fill(fill, dimensions, dtype)
        self.synchronize()
        nbytes = math.prod(dimensions) * dtype.itemsize
        offset: int | None = None
        error: EpError | None = None
        try:
            offset = self._heap.allocate(nbytes, hint="start with a larger heap_bytes= (or EP_LIB_HEAP_BYTES)")
            self._backend.heap_reserve(offset, nbytes)
        except EpError as caught:
            error = caught
            if offset is not None:
                self._heap.free(offset, unused=True)
                offset = None
        # Ranks exchange their request and its outcome before any of them continues or fails.
        name = name_of_result() if self._backend.checks else ("", "")
        said = self._backend.all_gather((dimensions, str(dtype), offset, name), "symmetric()")
        wanted = [each[:3] for each in said]
        if error is None and len(set(wanted)) == 1 and self._backend.checks:
            error = self._find_swapped([each[3] for each in said], wanted[0][:2])
        short = next((rank for rank, (_, _, place) in enumerate(wanted) if place is None), None)
        if error is None and short is not None and len({each[:2] for each in wanted}) == 1:
            error = OutOfSymmetricMemory(
                f"rank {short} has no room for a symmetric array of shape {dimensions}, type {dtype}; its own error "
                "says more",
                requested=nbytes,
                available=0,
            )
        if error is None and len(set(wanted)) > 1:
            error = RankMismatchError(
                "the ranks allocate different symmetric arrays: "
                + "; ".join(f"rank {r}: shape {s}, {d}, offset {o}" for r, (s, d, o) in enumerate(wanted))
                + "; every rank must call symmetric() and free() with the same arguments in the same order"
            )
        if error is not None or offset is None:
            if offset is not None:
                self._heap.free(offset, unused=True)
            assert error is not None
            raise error
        self._backend.heap_in_use(self._heap.arrays)
        array = self._backend.heap_array(offset, dimensions, dtype)
        if fill is not None:
            array[...] = fill
            self._backend.synchronize()
        else:
            self._backend.left_unwritten(array)
        self._backend.all_gather(None, "symmetric()")  # no peer writes into it before it is filled
        return self._backend.watched(array)

    def _find_swapped(self, names: list[tuple[str, str]], kind: tuple[Any, ...]) -> RankMismatchError | None:
        """Finds two arrays that another rank allocates in the other order: a and b here, b and a there. ``names``: the
        name of this array on each rank, and where it is assigned; ``kind``: its shape and type."""
        earlier = self._named.setdefault(kind, [])
        for before in earlier:
            for other, (there, where) in enumerate(names):
                here, line = names[0]
                if before[0][0] == there != here == before[other][0] and here and there:
                    return RankMismatchError(
                        f"the ranks allocate symmetric arrays of shape {kind[0]} and type {kind[1]} in different "
                        f"orders: rank 0 {there} ({before[0][1]}) and then {here} ({line}), rank {other} {here} "
                        f"({before[other][1]}) and then {there} ({where}), so that one rank's {here} is the other's "
                        f"{there}; call symmetric() in the same order on every rank"
                    )
        earlier.append(names)
        return None

    def free(self, array: Any) -> None:
        """Give a symmetric array back. Every rank must free it, after its last use on any rank: a kernel that is
        launched later must not touch it."""
        self._require_open()
        offset = describe(array).address - self._backend.heap_address(self.rank)
        if not self._heap.owns(offset) or self._backend.was_freed(array):
            raise ArgumentError("free() got an array that symmetric() did not return, or that was freed before")
        self._backend.accessed_by_host(array, "rank.free()")
        self._heap.free(offset)
        self._backend.heap_in_use(self._heap.arrays)

    def offset_of(self, array: Any) -> int:
        """Offset in bytes of an array (or a view of one) from the start of the symmetric heap."""
        self._require_open()
        info = describe(array)
        offset = info.address - self._backend.heap_address(self.rank)
        if not self._heap.holds(offset, offset + info.nbytes) or self._backend.was_freed(array):
            raise ArgumentError(
                f"the array at 0x{info.address:x} ({info.nbytes} bytes) is not in rank {self.rank}'s symmetric heap, "
                "or was freed; allocate it with rank.symmetric()"
            )
        return offset

    def peer_address(self, array: Any, peer: int) -> int:
        """Address at which this rank's kernels reach ``peer``'s copy of a symmetric array."""
        number = index(peer)
        if number is None or not 0 <= number < self.world_size:
            raise ArgumentError(f"there is no rank {show(peer)}; ranks are 0 to {self.world_size - 1}")
        return self._backend.heap_address(number) + self.offset_of(array)

    # ---- other memory ----------------------------------------------------------------------------------------
    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        """An uninitialised ``xp`` array in this rank's own memory (not symmetric)."""
        self._require_open()
        return self._backend.watched(self._backend.new_array(_shape(shape), element_type(dtype)))

    def host_array(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        """A NumPy array of zeros that kernels may write by its address while the host reads it (mapped memory)."""
        self._require_open()
        return self._backend.host_array(_shape(shape), element_type(dtype))

    def to_device(self, array: Any) -> Any:
        """A copy of an array, or of nested lists of numbers, in memory of this rank's kernels."""
        self._require_open()
        return self._backend.watched(self._backend.copy_of(_from_host(array)))

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        """A NumPy copy of an ``xp`` array, after this rank's kernels are done."""
        info = describe(array)
        if info.kind == "torch":
            raise ArgumentError(
                f"to_host() got a torch tensor ({show(array)}); it copies NumPy and CuPy arrays: call "
                "rank.synchronize(), then tensor.cpu()"
            )
        self.synchronize()
        self._backend.accessed_by_host(array)
        return np.array(array if info.kind == "numpy" else array.get())

    # ---- the end ---------------------------------------------------------------------------------------------
    def close(self) -> None:
        """End this rank's part in the world. ``spawn`` does it by itself; calling it twice does no harm."""
        if not self.is_closed:
            try:
                if pieces.active():
                    with contextlib.suppress(EpError):  # of a kernel: synchronize() has raised it, or close() does
                        counts = self._backend.heap_array(PIECE_COUNTS_OFFSET, (MAX_PIECE_COUNTS,), np.dtype(np.uint64))
                        pieces.tell(self.rank, self.to_host(counts).tolist())
            finally:
                self._is_closed = True
                self._backend.close()

    def __enter__(self) -> Rank:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ends_well = isinstance(error, SystemExit) and not error.code
        if error is not None and not ends_well and not self.is_closed:
            self._backend.abandon(error)
        self.close()

    def _require_open(self) -> None:
        if self.is_closed:
            if not self._is_closed:
                raise BufferClosedError(
                    f"rank {self.rank} is process {self._process}, and this one ({os.getpid()}) was forked from it: "
                    "use the rank there only"
                )
            raise BufferClosedError(f"rank {self.rank} was closed; start a new world with spawn() or init()")


def _shape(shape: Any) -> tuple[int, ...]:
    numbers = [index(n) for n in (shape if isinstance(shape, tuple | list) else (shape,))]
    dimensions = tuple(n for n in numbers if n is not None)
    if len(dimensions) < len(numbers) or any(n < 0 for n in dimensions):
        refuse("shape", shape, "whole numbers, none of them negative")
    if math.prod(filter(None, dimensions)) >= 2**58 or len(dimensions) > 32:  # NumPy multiplies the non-zero ones
        refuse("shape", shape, "at most 32 numbers, whose product fits into memory")
    return dimensions


def _check_fill(fill: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raises ArgumentError unless every element of this type can be ``fill``, or an array of that shape."""
    numbers = (bool, int, float, complex, np.generic, np.ndarray, tuple)
    if not isinstance(fill, numbers) or isinstance(fill, (str, bytes, np.datetime64, np.timedelta64)):
        refuse("fill", fill, f"a number that is a {dtype}, or None")
    if dtype.kind == "b" and not isinstance(fill, np.ndarray):
        flag("fill", fill)
    if np.iscomplexobj(fill) and dtype.kind != "c":
        refuse("fill", fill, f"a number that is a {dtype}, without an imaginary part")
    try:
        with np.errstate(all="raise"):
            if isinstance(fill, np.ndarray):
                np.broadcast_to(like("numpy", fill), shape).astype(dtype, casting="same_kind")
            else:
                np.full((), fill, dtype)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ArgumentError(f"fill is {show(fill)}; an element of type {dtype} cannot be that: {error}") from error


def _from_host(array: Any) -> Any:
    """An array that NumPy and CuPy can copy, made from an array or nested lists of numbers."""
    if is_array(array):
        return like("numpy" if describe(array).device == "cpu" else "cupy", array)
    if isinstance(array, np.ma.MaskedArray):
        refuse("to_device()'s array", array, "an array without a mask: pass array.filled(value)")
    if not isinstance(array, (bool, int, float, complex, np.generic, list, tuple, range)):
        refuse("to_device()'s array", array, "an array, or nested lists of numbers that are equally long")
    try:
        made = np.array(array)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"to_device() got {show(array)}, which is no array: {error}") from error
    if made.dtype.kind not in "biufc":
        refuse("to_device()'s array", array, "an array, or nested lists of numbers that are equally long")
    return made
