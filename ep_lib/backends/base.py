"""What every backend offers: allocate, launch, synchronise, and the collectives of the host."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ep_lib.errors import EpError
from ep_lib.jit.kernel import Dim, Kernel
from ep_lib.jit.operation import Operation, Value
from ep_lib.memory.arrays import Array

MAX_SHARED_BYTES = 227 << 10  # of a block (CUDA C++ Programming Guide, Compute Capabilities, 9.0 and 10.0)


class Streams(Protocol):
    """Queues of a GPU, and events that mark a point in one. Both are numbers; on the emulator there is one queue, 0."""

    def current(self, kind: str = "") -> int:
        """The caller's stream: torch's where ``kind`` of the arrays is "torch", else CuPy's."""
        ...

    def new(self) -> int:
        """A stream of one's own; lives as long as the rank."""
        ...

    def on(self, stream: int) -> AbstractContextManager[None]:
        """Kernels launched inside go to ``stream``, and nothing but that stream's order holds for them."""
        ...

    def record(self, stream: int) -> int:
        """An event that has passed when everything in ``stream`` so far is done. Give it back by :meth:`release`."""
        ...

    def wait(self, stream: int, event: int) -> None:
        """What is put into ``stream`` from now on runs after ``event``."""
        ...

    def order(self, first: int, second: int) -> None:
        """What is put into stream ``second`` from now on runs after what is in ``first``."""
        ...

    def is_done(self, event: int) -> bool:
        """Whether the event has passed."""
        ...

    def release(self, event: int) -> None:
        """The event is not needed any more."""
        ...

    def settle(self) -> None:
        """Let the array module's own kernels finish, which may run in another stream than ours."""
        ...

    def operations(self) -> OperationStreams:
        """The streams of a Buffer's operations."""
        ...

    def is_capturing(self, stream: int) -> bool:
        """Whether a CUDA graph is being captured from ``stream``: then nothing may wait for the GPU."""
        ...


class OperationStreams(Protocol):
    """The stream of each operation of one Buffer: the caller's, or one beside it. Operations run one by one."""

    last: int | None  # in which the last operation ran

    def begin(self, kind: str, async_finish: bool) -> AbstractContextManager[None]:
        """The next operation: what is launched inside runs behind what the caller's stream and the last operation do.

        ``kind``: of the caller's arrays; ``async_finish``: beside the caller's stream. In a CUDA graph that is being
        captured, operations before it are not waited for: a graph cannot.
        """
        ...


@runtime_checkable
class Backend(Protocol):
    """One object per rank. Users hold a :class:`ep_lib.Rank`, which stands in front of it.

    Attributes: ``name`` ("emulator" or "cuda"), ``rank``, ``world_size``, ``xp`` (the array module: numpy or cupy),
    ``heap_bytes`` (size of this rank's symmetric heap, the same on every rank; its first 256 bytes hold the fault
    record of :mod:`ep_lib.jit.device_state` and are never given out), ``heap_spread`` and ``heap_generations`` (how
    arrays lie in it: see :class:`ep_lib.memory.symmetric.SymmetricHeap`), ``streams``, ``sm_count`` (of the GPU;
    None: the emulator runs any number of blocks at once), ``shared_bytes`` (shared memory that a block may have),
    ``checks`` (whether :func:`ep_lib.check` watches), ``host_waits`` (programs read results without the
    order of a stream, so that they must be there when a call returns), ``sees_values`` (arrays lie in the host's
    memory: to look at their values waits for nothing), ``costly_threads`` (each thread of a kernel costs the host time
    and memory) and ``fault_word`` (NumPy, uint32 [1]: not 0 from the moment at which a kernel of this rank gave up
    until that was raised; looking at it waits for nothing).
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
        """Whether a call has raised because of another rank, and this one has not gone on without it since."""
        ...

    def heap_address(self, peer: int) -> int:
        """The first byte of ``peer``'s symmetric heap, as the kernels of this rank see it."""
        ...

    def reaches(self, peer: int) -> bool:
        """Whether loads and stores of this rank's kernels reach ``peer``'s symmetric heap."""
        ...

    def heap_array(self, offset: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """A view, of type ``xp.ndarray``, of this rank's own heap; ``offset`` is in bytes."""
        ...

    def host_array(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A NumPy array of zeros that kernels may write by its address while the host reads it; lives as long as
        this."""
        ...

    def heap_reserve(self, offset: int, nbytes: int) -> None:
        """Told that an array will lie there in this rank's heap. Raises OutOfSymmetricMemory."""
        ...

    def heap_in_use(self, arrays: Sequence[tuple[int, int]]) -> None:
        """Told where arrays lie in the heap: (begin, end) offsets, sorted (for checks)."""
        ...

    def accessed_by_host(self, array: Array, ends: str = "") -> None:
        """A method of Rank reads all of it for its caller, or ends its life, which ``ends`` names (for checks)."""
        ...

    def watched(self, array: Array) -> Array:
        """An array that a method of Rank gives to its caller (for checks)."""
        ...

    def was_freed(self, array: Array) -> bool:
        """Whether free() has given a symmetric array back, or the one that this is a view of, as far as is known."""
        ...

    def empty(self, kind: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An uninitialised array of the caller's ``kind`` ("numpy", "cupy" or "torch"), made without a kernel, where
        kernels of this rank may reach it. bfloat16 and FP8 are uint16 and uint8 in CuPy."""
        ...

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An uninitialised ``xp`` array in this rank's own memory, which kernels may reach by its address."""
        ...

    def copy_of(self, array: Array) -> Array:
        """A copy of an array of NumPy's or CuPy's in such memory."""
        ...

    def left_unwritten(self, array: Any) -> None:
        """Told that ``array`` has no value yet (for the emulator's checks)."""
        ...

    def variable(self, kernel: Kernel, symbol: str) -> Any | None:
        """The bytes of a variable of a kernel's module on this rank (uint8); None if it has none of that name."""
        ...

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

        ``uses``: arrays (or what ``describe`` says of them) that the kernel reaches through addresses inside its
        arguments; kept alive until it is done.
        """
        ...

    def executor(self, operation: Operation) -> Callable[[tuple[Value, ...]], Sequence[Array] | None] | None:
        """What runs an operation natively, which ran once: it takes the operation's values, makes arrays, launches in
        the stream that is chosen, and returns the arrays; or None, and then it has launched nothing. None instead of
        it: launch by launch, always."""
        ...

    def synchronize(self) -> None:
        """Wait until all kernels of this rank are done. Raises KernelFault, KernelTimeout, PeerTimeout, ..."""
        ...

    def raise_fault(self) -> None:
        """Raise what ``fault_word`` announces, if it does, without waiting for kernels that still run."""
        ...

    def watch_faults(self, hook: Callable[[EpError], None]) -> Callable[[], None]:
        """``hook(error)`` is called once for each fault from now on, whether anybody waits for kernels or not; what is
        returned ends that."""
        ...

    def all_gather(self, obj: object, what: str = "all_gather()") -> list[Any]:
        """Every rank's ``obj`` (small and picklable), in rank order. Collective; raises RankFailed, PeerTimeout.

        ``what`` names the operation: the ranks must agree about it, and errors mention it.
        """
        ...

    def network_bytes(self) -> tuple[int, int]:
        """Sent and received over TCP between hosts so far. Raises ArgumentError where that is not known."""
        ...

    def barrier(self) -> None:
        """Wait for this rank's kernels, then for the other ranks. Collective; raises RankFailed, PeerTimeout."""
        ...

    def invitation(self) -> str:
        """For a process that is to take the place of a rank. Raises BackendUnavailable where that cannot be."""
        ...

    def leave_out(self, ranks: Collection[int]) -> None:
        """Told that this rank goes on without these: that their processes end is no error from now on."""
        ...

    def take_back(self, ranks: Collection[int]) -> None:
        """Reach these ranks again, which were left out: also where new processes have taken their place. With this
        rank itself: it comes back. Raises PeerTimeout if there is no such process."""
        ...

    def abandon(self, error: BaseException) -> None:
        """This rank is about to close because of ``error``, which may be its own: where the others can be told, none
        waits for it."""
        ...

    def close(self) -> None:
        """Give everything back. Calling it twice does no harm."""
        ...
