"""The emulator backend: one rank of an emulated world."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ep_lib.backends.base import MAX_SHARED_BYTES
from ep_lib.callers import is_ours
from ep_lib.emulator.host_watch import HostWatch, Watched
from ep_lib.emulator.machine import HEAP_SPREAD
from ep_lib.emulator.recording import parameter_names, parameter_types, read_only_parameters
from ep_lib.errors import ArgumentError, BufferClosedError, EpError, KernelLaunchError
from ep_lib.jit import device_state
from ep_lib.jit.gxx import MAX_THREADS
from ep_lib.jit.kernel import dynamic_shared, launch_dimensions, marshal, require_threads, used_arrays
from ep_lib.jit.structs import header_struct
from ep_lib.memory.arrays import Array, ArrayInfo, as_kind, describe, no_memory
from ep_lib.transports import registry
from ep_lib.transports.base import CanFail, EmulatorSetup, Transport

if TYPE_CHECKING:
    from ep_lib.backends.base import Streams
    from ep_lib.emulator.machine import Entry, Machine
    from ep_lib.emulator.process_world import ProcessWorld
    from ep_lib.emulator.world import SoloWorld, World
    from ep_lib.jit.gxx import EmulatorImage
    from ep_lib.jit.kernel import Kernel, Marshalled
    from ep_lib.jit.operation import Operation, Value
    from ep_lib.jit.signature import Param


_NOTHING = contextlib.nullcontext()
_MARKED_BYTES = 1 << 20  # of an uninitialised array
_ALIGNMENT, _SMALLEST_GAP, _LARGEST_GAP = 64, 4096, 1 << 20  # bytes, for a rank's own arrays


class NoStreams:
    """One stream, 0, which runs all work in the order of calls. The event 0 is always complete: later work of the one
    stream runs after it, and the host reads results after ``synchronize()``."""

    def current(self, kind: str = "") -> int:
        return 0

    def new(self) -> int:
        return 0

    def on(self, stream: int) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def record(self, stream: int) -> int:
        return 0

    def wait(self, stream: int, event: int) -> None:
        pass

    def order(self, first: int, second: int) -> None:
        pass

    def is_done(self, event: int) -> bool:
        return True

    def release(self, event: int) -> None:
        pass

    def is_capturing(self, stream: int) -> bool:
        return False

    def settle(self) -> None:
        pass

    def operations(self) -> NoStreams:
        return self

    last: int | None = 0

    def begin(self, kind: str, async_finish: bool) -> contextlib.AbstractContextManager[None]:
        return _NOTHING


class _Allocation:
    """A symmetric array's allocation, which every view of the array refers to, with whether it was freed."""

    def __init__(self, heap: np.ndarray[Any, Any], offset: int, nbytes: int) -> None:
        self.freed = False
        self._heap = heap  # keeps the memory alive
        address = heap.__array_interface__["data"][0] + offset
        self.__array_interface__ = {"version": 3, "data": (address, False), "shape": (nbytes,), "typestr": "|u1"}


def _memory_of(array: np.ndarray[Any, Any]) -> Any:
    """What ``array`` lies in, also through views: an _Allocation, a _Memory, or None if it is not of here."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base


class _Memory:
    """A rank's own array: its ``bytes``, between two empty gaps of the array's size (4 KiB to 1 MiB), so that a kernel
    that runs over its end is found, independent of the C library's placement. The array and its views keep it alive.

    Cleanup before freeing waits for this object and not for the array: from 2.5 on, NumPy frees an array's data before
    it runs the array's finalizers.
    """

    bytes: np.ndarray[Any, np.dtype[np.uint8]]
    __array_interface__: dict[str, Any]


class _Loaded(NamedTuple):
    """A kernel that this rank can launch."""

    image: EmulatorImage
    entry: Entry
    parameters: str  # for reports, as :func:`_names` has them


class EmulatedModule:
    """A compiled kernel's library, loaded on first use."""

    def __init__(self, machine: Machine, rank: int, image: EmulatorImage) -> None:
        self._machine, self._rank, self._image = machine, rank, image

    @property
    def handle(self) -> int:
        """The runtime's handle of the library."""
        return self._machine.load(self._image, self._rank)

    def symbol(self, name: str) -> int | None:
        """The address of a variable that the library exports; None if there is none of that name."""
        return self._machine.symbol(self.handle, name)


class EmulatorBackend:
    """One rank of an emulated world, a :class:`ep_lib.backends.base.Backend`. Arrays are NumPy arrays (torch CPU
    tensors also work as arguments)."""

    name = "emulator"
    host_waits = sees_values = costly_threads = True

    def __init__(self, world: World | SoloWorld | ProcessWorld, rank: int, transport: str = "emulated") -> None:
        self.rank = rank
        self.world_size = world.size
        self.xp: ModuleType = np
        self.heap_bytes = world.machine.heap_bytes
        self.heap_spread = HEAP_SPREAD
        self.heap_generations = world.machine.heap_generations
        self.checks = world.machine.checks
        self._watch = HostWatch(rank, world.machine.host_accesses, world.machine.host_access) if self.checks else None
        self.streams: Streams = NoStreams()
        self.sm_count: int | None = None
        self.shared_bytes = MAX_SHARED_BYTES
        self._world = world
        self._thread = threading.get_ident()  # the rank's own
        self._machine = world.machine
        self._heap = world.machine.heap_view(rank)
        self.fault_word: Array = self._heap[:4].view(np.uint32)  # the code of the record
        self._hooks: list[Callable[[EpError], None]] = []
        setup = EmulatorSetup(world.machine, rank)
        self._transport: Transport[EmulatorImage] = registry.heap_class(transport, "emulator")(setup)
        self.transport = transport
        self._heap_begin = world.machine.heap_address(rank)
        self._heaps = world.machine.heap_address(0), world.machine.heap_address(world.size - 1) + len(self._heap)
        self._allocations: weakref.WeakValueDictionary[int, _Allocation] = weakref.WeakValueDictionary()  # by offset
        self._loaded: dict[Kernel, _Loaded] = {}
        self._last_ticket = 0
        self._in_use: list[list[ArrayInfo]] = []  # arrays of running launches
        self._closed = False

    @property
    def gave_up(self) -> bool:
        return self._world.gave_up

    def heap_address(self, peer: int) -> int:
        return self._transport.addresses[peer]

    def reaches(self, peer: int) -> bool:
        """Whether the fabric's loads and stores reach the peer."""
        return self._machine.fabric.reaches(self.rank, peer)

    def heap_array(self, offset: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        dtype = np.dtype(dtype)
        allocation = _Allocation(self._heap, offset, math.prod(shape) * dtype.itemsize)
        self._allocations[offset] = allocation
        return np.ndarray(shape, dtype, np.asarray(allocation))

    def host_array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        """An array in host memory, where kernels run too."""
        array: np.ndarray[Any, Any] = self.empty("numpy", shape, np.dtype(dtype)).owner
        array.fill(0)
        if self._watch is not None:
            self._watch.share(array.__array_interface__["data"][0], array.nbytes)
        return array

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An uninitialised array that kernels may access by address. Under checks, reads of unwritten elements in its
        first MiB are findings."""
        array = self.empty("numpy", shape, dtype).owner
        self.left_unwritten(array)
        if self._machine.checks:  # the next array at this place would be marked as well
            memory = _memory_of(array)
            weakref.finalize(memory, memory.bytes[:_MARKED_BYTES].fill, 0).atexit = False
        return array

    def empty(
        self, kind: str, shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...] | None = None
    ) -> ArrayInfo:
        """An uninitialised NumPy array, or a torch tensor if ``kind`` is "torch". Kernels of this rank may access it by
        address while it or a view lives."""
        nbytes = math.prod(shape) * dtype.itemsize
        gap = min(max(-(-nbytes // _ALIGNMENT) * _ALIGNMENT, _SMALLEST_GAP), _LARGEST_GAP)
        memory = _Memory()
        try:
            memory.bytes = np.empty(gap + nbytes + gap, np.uint8)[gap : gap + nbytes]
        except MemoryError as error:
            raise no_memory(shape, error) from error
        memory.__array_interface__ = memory.bytes.__array_interface__
        array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, np.asarray(memory), strides=strides)
        address, _ = memory.__array_interface__["data"]
        if nbytes:
            self._machine.register(self.rank, address, address + nbytes, True)
            weakref.finalize(memory, self._machine.stale.append, (self.rank, address, address + nbytes))
        if self._machine.checks:  # earlier data here may look like marked memory
            memory.bytes[:_MARKED_BYTES].fill(0)
        if kind != "numpy":
            return describe(as_kind(kind, array, dtype))
        return ArrayInfo(address, shape, dtype, strides, "cpu", kind, False, array, array.nbytes)

    def heap_reserve(self, offset: int, nbytes: int) -> None:
        """Reserves memory for an array, if it must be reserved in advance."""
        self._world.reserve(offset, nbytes)

    def heap_in_use(self, arrays: Sequence[tuple[int, int]]) -> None:
        """Sets the arrays of the heap: a later kernel that touches other parts faults."""
        begins = {begin for begin, _ in arrays}
        for offset in [offset for offset in self._allocations if offset not in begins]:
            self._allocations.pop(offset).freed = True
        self._machine.set_arrays(self.rank, arrays)

    def was_freed(self, array: Array) -> bool:
        allocation = _memory_of(array)
        return isinstance(allocation, _Allocation) and allocation.freed

    def copy_of(self, array: Array) -> np.ndarray[Any, Any]:
        """A copy with the strides of NumPy's own copy."""
        strides = np.empty_like(array, subok=False).strides
        copy: np.ndarray[Any, Any] = self.empty("numpy", array.shape, array.dtype, strides).owner
        copy[...] = array
        return copy

    def watched(self, array: Array) -> Array:
        """An array for the program: under checks one that reports reads by the host."""
        if self._watch is None or is_ours(sys._getframe(2)):  # the caller of a method of Rank
            return array
        watched = array.view(Watched)
        watched.watch = self._watch.number
        return watched

    def accessed_by_host(self, array: Array, ends: str = "") -> None:
        """Under checks: notes that a method of Rank reads the whole array, or that the method ``ends`` frees it."""
        frame = sys._getframe(2)
        if self._watch is not None and isinstance(array, np.ndarray) and array.size and not is_ours(frame):
            self._watch.accessed(array.view(np.ndarray), bool(ends), frame, ends)

    def left_unwritten(self, array: np.ndarray[Any, Any]) -> None:
        """Under checks: marks the first MiB as uninitialised, so that kernels' reads before a write are findings."""
        if self._machine.checks:
            address = array.__array_interface__["data"][0]
            self._machine.left_unwritten(address, min(array.nbytes, _MARKED_BYTES))

    def variable(self, kernel: Kernel, symbol: str) -> Array | None:
        """A view of a variable of the kernel's library; each kernel of each rank has its own copy."""
        self._check_open()
        image = (self._loaded.get(kernel) or self._load(kernel)).image
        return self._machine.variable(image, self.rank, symbol)

    def executor(self, operation: Operation) -> Callable[[tuple[Value, ...]], Sequence[Array]] | None:
        """Its launches without another look at the types of their arguments: the first run was checked."""
        operation = weakref.proxy(operation)  # it holds what is returned
        kernels = {launch.kernel for launch in operation.launches}
        if not kernels <= self._loaded.keys():  # what stands in for one launches others
            return None
        params = {kernel: self._loaded[kernel].image.params for kernel in kernels}

        def run(values: tuple[Value, ...]) -> Sequence[Array]:
            if self._closed:
                self._check_open()
            made, filled = operation.prepare(values)
            for launch, args, uses in filled:
                packed: list[Marshalled] = []
                for param, arg in zip(params[launch.kernel], args, strict=True):
                    array = arg if type(arg) is ArrayInfo else None
                    word = arg if array is None else array.address
                    packed.append(
                        (word if type(word) is bytes else (word or 0).to_bytes(param.size, "little"), array, ())
                    )
                self._queue(launch.kernel, (launch.grid, 1, 1), (launch.block, 1, 1), packed, uses, launch.shared_bytes)
            return made

        return run

    def launch(
        self,
        kernel: Kernel,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[Any],
        shared_bytes: int = 0,
        uses: Sequence[Any] = (),
    ) -> None:
        """Queues a kernel; compiles it first if need be. Raises before anything runs if the launch is invalid."""
        self._check_open()
        grid3, block3 = launch_dimensions(kernel.name, grid, block)
        image = (self._loaded.get(kernel) or self._load(kernel)).image
        if image.most_threads < MAX_THREADS:
            require_threads(kernel.name, block3, image.most_threads)
        shared_bytes = dynamic_shared(kernel.name, shared_bytes)
        _check_shared_bytes(kernel.name, image.static_shared_bytes, shared_bytes)
        marshalled = marshal(kernel.name, image.params, args)
        self._queue(kernel, grid3, block3, marshalled, used_arrays(kernel.name, uses), shared_bytes)

    def _queue(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        marshalled: Sequence[Marshalled],
        uses: Sequence[ArrayInfo],
        shared_bytes: int,
    ) -> None:
        """Raises for arrays that this rank's kernels may not have."""
        if threading.get_ident() != self._thread:
            self._world.require_own(self.rank)
        loaded = self._loaded[kernel]
        arrays, data = [], []
        for words, array, inside in marshalled:
            data.append(words)
            if array is not None:
                arrays.append(array)
            arrays.extend(inside)
        arrays.extend(uses)
        ranges = []
        for info in arrays:
            if info.device != "cpu":
                raise ArgumentError(
                    f"kernel '{kernel.name}' got an array on {info.device}; the emulator runs on the CPU: pass "
                    f"NumPy arrays or torch CPU tensors, or run with backend='cuda'"
                )
            if 0 <= info.address - self._heap_begin < len(self._heap):
                _require_allocated(kernel.name, info)
            elif self._heaps[0] <= info.address < self._heaps[1]:
                raise ArgumentError(
                    f"kernel '{kernel.name}' of rank {self.rank} got an array (shape {info.shape}, type {info.dtype}) "
                    "of another rank; pass this rank's own, and reach the other's by ep::peer_ptr or rank.peer_address"
                )
            if info.nbytes:
                ranges.append((info.address, info.address + info.nbytes, not info.readonly))
        if self._watch is not None:
            self._watch.look()
        read_only = []
        if self.checks:
            flags = read_only_parameters(kernel.source, kernel.name)
            pointers = (array for (_, array, _), flag in zip(marshalled, flags, strict=False) if flag)
            read_only = [
                (array.address, array.address + array.nbytes, False) for array in pointers if array is not None
            ]
        self._last_ticket = self._machine.launch(
            self.rank,
            kernel.name,
            loaded.entry,
            grid,
            block,
            data,
            ranges,
            shared_bytes,
            loaded.parameters,
            read_only=read_only,
        )
        if self._machine.notes is not None:
            given = [list(inside) if array is None else [array] for _, array, inside in marshalled]
            self._machine.notes.launched(self.rank, self._last_ticket, kernel.name, kernel.source, given)
        if self._world.runs_in_background:
            self._world.launched(self.rank, self._last_ticket)
        if self._watch is not None:
            self._watch.launched(kernel.name, kernel.path, arrays)
        self._in_use.append(arrays)

    def _load(self, kernel: Kernel) -> _Loaded:
        image = self._transport.compile(kernel, "emulator")
        self._transport.register_module(EmulatedModule(self._machine, self.rank, image), image)
        names = _names(kernel.source, kernel.name, kernel.path, image.params)
        self._loaded[kernel] = _Loaded(image, self._machine.entry(image, self.rank), names)
        return self._loaded[kernel]

    def synchronize(self) -> None:
        """Waits until this rank's launches have finished; other ranks run meanwhile."""
        if self._closed:
            self._check_open()
        if self._watch is not None:
            self._watch.look()
        self._world.wait_for_ticket(self.rank, self._last_ticket)
        self._in_use.clear()
        if self._watch is not None:
            self._watch.waited(all_ended=True)
        if not self.fault_word[0]:
            return
        record = self._heap[: device_state.FAULT_BYTES]
        fault = device_state.decode_fault(record.tobytes())
        if fault is not None:
            record[:] = 0
            reason = self._transport.failure() if isinstance(self._transport, CanFail) else ""
            error = self._world.explained(device_state.to_error(fault, reason))
            for hook in tuple(self._hooks):
                hook(error)
            raise error

    def raise_fault(self) -> None:
        """Synchronises: a rank's host runs only when no kernel does, so this takes no time."""
        self.synchronize()

    def watch_faults(self, hook: Callable[[EpError], None]) -> Callable[[], None]:
        """Registers a hook, which is called where a fault is raised: kernels run only while a rank waits for them."""
        self._hooks.append(hook)
        return lambda: self._hooks.remove(hook)

    def all_gather(self, obj: object, what: str = "all_gather()") -> list[Any]:
        if self._watch is not None:
            self._watch.look()
        gathered = self._world.all_gather(self.rank, what, obj)
        if self._watch is not None:
            self._watch.waited(all_ended=False)
        return gathered

    def network_bytes(self) -> tuple[int, int]:
        """Bytes over TCP; zeros in a world of one host."""
        return self._machine.forwarded_bytes()

    def barrier(self) -> None:
        self.synchronize()
        self.all_gather(None, "barrier()")

    def invitation(self) -> str:
        """The invitation for a new process. Raises BackendUnavailable if ranks are threads."""
        return self._world.invitation()

    def leave_out(self, ranks: Collection[int]) -> None:
        self._world.leave_out(ranks)

    def take_back(self, ranks: Collection[int]) -> None:
        self._world.take_back(ranks)

    def abandon(self, error: BaseException) -> None:
        """Notifies other processes. If ranks are threads, ``spawn`` does it."""
        self._world.abandon(error)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._transport.close(orderly=True)
        self._world.leave(self.rank)

    def _check_open(self) -> None:
        if self._closed:
            raise BufferClosedError(f"rank {self.rank} was closed; start a new world with spawn() or init()")


@functools.lru_cache(maxsize=256)  # every rank of every run of a check loads its kernels
def _names(source: str, kernel: str, path: Path | None, params: tuple[Param, ...]) -> str:
    """The pointers among a kernel's parameters, and in its structs: a line each, in the format of the runtime's
    ``Launch``."""
    names, types = parameter_names(source, kernel), parameter_types(source, kernel)
    if len(names) != len(params):
        return ""
    lines = []
    for position, (param, kind, name) in enumerate(zip(params, types, names, strict=True)):
        if param.kind == "pointer":
            lines.append(f"{position} 0 {param.element_size} {name}")
        elif param.kind == "struct":
            for member, (offset, element) in _pointers(path, kind, param.size).items():
                lines.append(f"{position} {offset} {element} {name}.{member}")
    return "\n".join(lines)


def _pointers(file: Path | None, struct: str, size: int) -> dict[str, tuple[int, int]]:
    """The pointers in a struct that a kernel's file declares or includes; {} if it cannot be read, or has changed since
    it was."""
    if file is None:
        return {}
    try:
        found = header_struct(file.resolve(), struct)
    except (LookupError, ValueError):
        return {}
    return found.pointers if found.size == size else {}


def _require_allocated(kernel: str, info: ArrayInfo) -> None:
    """Raises BufferClosedError for a symmetric array that was freed, even if another array now has its place."""
    allocation = _memory_of(info.owner)
    if isinstance(allocation, _Allocation) and allocation.freed:
        raise BufferClosedError(
            f"kernel '{kernel}' got a symmetric array (shape {info.shape}, type {info.dtype}) that rank.free() has "
            "given back; allocate it again, or free it after its last use"
        )


def _check_shared_bytes(kernel: str, static: int, dynamic: int) -> None:
    """Raises KernelLaunchError if a block needs more shared memory than a GPU has."""
    if static + dynamic > MAX_SHARED_BYTES:
        raise KernelLaunchError(
            f"kernel '{kernel}': {static} bytes of static and {dynamic} of dynamic shared memory are more than the "
            f"{MAX_SHARED_BYTES} bytes that a block can have"
        )
