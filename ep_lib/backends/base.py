"""The interface of every backend: allocate, launch, synchronise, and the host's collectives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ep_lib.errors import EpError
from ep_lib.jit.kernel import Dim, Kernel
from ep_lib.jit.operation import Operation, Value
from ep_lib.memory.arrays import Array, ArrayInfo

MAX_SHARED_BYTES = 227 << 10  # of a block (CUDA C++ Programming Guide, Compute Capabilities, 9.0 and 10.0)


class Streams(Protocol):
    """Queues of a GPU, and events that mark a point in one. Both are numbers; on the emulator there is one queue, 0."""

    def current(self, kind: str = "") -> int:
        """The caller's stream: torch's if ``kind`` of the arrays is "torch", else CuPy's."""

    def new(self) -> int:
        """A new stream; lives as long as the rank."""

    def on(self, stream: int) -> AbstractContextManager[None]:
        """Kernels launched inside go to ``stream``, and only that stream's order holds for them."""

    def record(self, stream: int) -> int:
        """An event that completes after all current work of ``stream``. Return it by :meth:`release`."""

    def wait(self, stream: int, event: int) -> None:
        """Makes later work of ``stream`` run after ``event``."""

    def order(self, first: int, second: int) -> None:
        """Makes later work of stream ``second`` run after the current work of ``first``."""

    def is_done(self, event: int) -> bool:
        """Whether the event has completed."""

    def release(self, event: int) -> None:
        """Returns an event for reuse."""

    def settle(self) -> None:
        """Let the array module's own kernels finish, which may run in another stream than ours."""

    def operations(self) -> OperationStreams:
        """The streams of a Buffer's operations."""

    def is_capturing(self, stream: int) -> bool:
        """Whether a CUDA graph is being captured from ``stream``: then no call may wait for the GPU."""


class OperationStreams(Protocol):
    """The stream of each operation of one Buffer: the caller's, or one beside it. Operations run one by one."""

    last: int | None  # the last operation's stream

    def begin(self, kind: str, async_finish: bool) -> AbstractContextManager[None]:
        """The next operation: launches inside run after the caller's stream and the last operation.

        ``kind``: the kind of the caller's arrays; ``async_finish``: run beside the caller's stream. During the capture
        of a CUDA graph, it does not wait for earlier operations, which a graph cannot.
        """


@runtime_checkable
class Backend(Protocol):
    """One object per rank. Users have a :class:`ep_lib.Rank`, which wraps it.

    Attributes: ``name`` ("emulator" or "cuda"), ``rank``, ``world_size``, ``xp`` (the array module: numpy or cupy),
    ``heap_bytes`` (size of this rank's symmetric heap, the same on every rank; its first 256 bytes hold the fault
    record of :mod:`ep_lib.jit.device_state` and are never allocated), ``heap_spread`` and ``heap_generations`` (the
    placement of arrays in it: see :class:`ep_lib.memory.symmetric.SymmetricHeap`), ``streams``, ``sm_count`` (of the
    GPU; None: the emulator runs any number of blocks at once), ``shared_bytes`` (shared memory that a block may have),
    ``checks`` (whether :func:`ep_lib.check` watches), ``host_waits`` (programs read results without the order of a
    stream, so that they must be there when a call returns), ``sees_values`` (arrays lie in the host's memory: to look
    at their values waits for nothing), ``costly_threads`` (each thread of a kernel costs the host time and memory) and
    ``fault_word`` (NumPy, uint32 [1]: not 0 from a kernel's failure until that was raised; reading it does not wait).
    """

    name: str
    rank: int
    world_size: int
    xp: ModuleType
    heap_bytes: int
    heap_spread: int
    heap_generations: int
    streams: Streams
    sm_count: int | None
    shared_bytes: int
    checks: bool
    host_waits: bool
    sees_values: bool
    costly_threads: bool
    fault_word: Array

    @property
    def gave_up(self) -> bool:
        """Whether a call has raised because of another rank, and this one has not continued without it since."""

    def heap_address(self, peer: int) -> int:
        """The first byte of ``peer``'s symmetric heap, as the kernels of this rank see it."""

    def reaches(self, peer: int) -> bool:
        """Whether loads and stores of this rank's kernels reach ``peer``'s symmetric heap."""

    def heap_array(self, offset: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """A view, of type ``xp.ndarray``, of this rank's own heap; ``offset`` is in bytes."""

    def host_array(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A NumPy array of zeros that kernels may write by its address while the host reads it; lives as long as
        this."""

    def heap_reserve(self, offset: int, nbytes: int) -> None:
        """Reserves a part of this rank's heap for an array. Raises OutOfSymmetricMemory."""

    def heap_in_use(self, arrays: Sequence[tuple[int, int]]) -> None:
        """Sets the places of arrays in the heap: (begin, end) offsets, sorted (for checks)."""

    def accessed_by_host(self, array: Array, ends: str = "") -> None:
        """Notes that a method of Rank reads the whole array for its caller, or frees it, by the method ``ends`` (for
        checks)."""

    def watched(self, array: Array) -> Array:
        """Prepares an array that a method of Rank returns (for checks)."""

    def was_freed(self, array: Array) -> bool:
        """Whether free() is known to have freed this symmetric array, or the one that it is a view of."""

    def empty(self, kind: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> ArrayInfo:
        """An uninitialised array of the caller's ``kind`` ("numpy", "cupy" or "torch"), made without a kernel, in
        memory that this rank's kernels may access. bfloat16 and FP8 are uint16 and uint8 in CuPy."""

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An uninitialised ``xp`` array in this rank's own memory, which kernels may access by its address."""

    def copy_of(self, array: Array) -> Array:
        """A copy of an array of NumPy's or CuPy's in such memory."""

    def left_unwritten(self, array: Any) -> None:
        """Marks ``array`` as uninitialised (for the emulator's checks)."""

    def variable(self, kernel: Kernel, symbol: str) -> Any | None:
        """The bytes of a variable of a kernel's module on this rank (uint8); None if there is none of that name."""

    def launch(
        self,
        kernel: Kernel,
        grid: Dim,
        block: Dim,
        args: Sequence[Any],
        shared_bytes: int = 0,
        uses: Sequence[Any] = (),
    ) -> None:
        """Start a kernel and return; the kernels of a rank run one after the other. Raises KernelLaunchError.

        ``uses``: arrays (or their ArrayInfo) that the kernel accesses through addresses in its arguments; kept alive
        until it has finished.
        """

    def executor(self, operation: Operation) -> Callable[[tuple[Value, ...]], Sequence[Array] | None] | None:
        """A native executor for an operation that has run once: it takes the operation's values, allocates arrays,
        launches in the chosen stream, and returns the arrays, or None if it has launched nothing. No executor (None):
        always launch by launch."""

    def synchronize(self) -> None:
        """Wait until all kernels of this rank are done. Raises KernelFault, KernelTimeout, PeerTimeout, ..."""

    def raise_fault(self) -> None:
        """Raise the fault that ``fault_word`` announces, if any, without waiting for running kernels."""

    def watch_faults(self, hook: Callable[[EpError], None]) -> Callable[[], None]:
        """Calls ``hook(error)`` once for each later fault, even if no call waits for kernels; call the result to end
        that."""

    def all_gather(self, obj: object, what: str = "all_gather()") -> list[Any]:
        """Every rank's ``obj`` (small and picklable), in rank order. Collective; raises RankFailed, PeerTimeout.

        ``what`` names the operation: the ranks must agree about it, and errors mention it.
        """

    def network_bytes(self) -> tuple[int, int]:
        """Bytes sent and received over TCP between hosts so far. Raises ArgumentError if unknown."""

    def barrier(self) -> None:
        """Wait for this rank's kernels, then for the other ranks. Collective; raises RankFailed, PeerTimeout."""

    def invitation(self) -> str:
        """The invitation for a process that replaces a rank. Raises BackendUnavailable if that is impossible."""

    def leave_out(self, ranks: Collection[int]) -> None:
        """Continues without these ranks: the end of their processes is no error from now on."""

    def take_back(self, ranks: Collection[int]) -> None:
        """Reaches these left-out ranks again, also in new processes. With this rank itself among them: it returns.
        Raises PeerTimeout if there is no such process."""

    def abandon(self, error: BaseException) -> None:
        """Called before closing because of ``error``, which may be this rank's own: notifies the others, if possible,
        so that none waits for it."""

    def close(self) -> None:
        """Free everything. Calling it twice does no harm."""
