"""The cuda backend: a process per rank, kernels compiled by NVRTC, heaps that reach each other over NVLink or PCIe.

Importing this module loads no CUDA library; making a :class:`CudaBackend` does.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from ep_lib.backends.base import Streams
from ep_lib.bootstrap import Bootstrap
from ep_lib.bootstrap.base import DEFAULT_TIMEOUT, meet, within
from ep_lib.bootstrap.stopped import Watched
from ep_lib.cuda import errors as cuda_errors
from ep_lib.cuda import mps, native_host
from ep_lib.cuda.devices import device_for, import_cupy
from ep_lib.cuda.faults import Hook, ShownFault
from ep_lib.cuda.module import LoadedKernel, ModuleCache
from ep_lib.cuda.native_host import launches, look_at_tensors
from ep_lib.cuda.partition import Partition
from ep_lib.cuda.streams import CudaStreams
from ep_lib.cuda.tensors import maker, torch_empty
from ep_lib.errors import (
    ArgumentError,
    BackendUnavailable,
    BufferClosedError,
    EpError,
    KernelLaunchError,
    KernelTimeout,
    PeerTimeout,
)
from ep_lib.jit import device_state
from ep_lib.jit.kernel import Dim, Kernel, Marshalled, dynamic_shared, launch_dimensions, marshal, used_arrays
from ep_lib.jit.operation import Operation, Value
from ep_lib.memory.arrays import Array, ArrayInfo, describe, no_memory
from ep_lib.transports import registry
from ep_lib.transports.base import CanFail, ServedByThreads
from ep_lib.transports.choose import open_transport

Dim3 = tuple[int, int, int]

DEFAULT_HEAP_BYTES = 256 * 2**20
DEFAULT_KERNEL_TIMEOUT = 120.0  # seconds that synchronize() waits
DEVICE_TIMEOUT = 30.0  # seconds of one wait inside a kernel; never more than half of the host's limit
_BUSY_POLL = 0.0005  # seconds of polling without sleeping, for short kernels
_POLL_SLEEP = 0.0002
_STOPPED = 0.1  # seconds between two polls: this process was stopped, or the machine is very busy
_FAREWELL = 0.5  # seconds to tell the other ranks that this one leaves

# cudaDeviceAttr
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76
_MULTIPROCESSORS = 16
_MAX_SHARED_PER_BLOCK = 97  # a kernel's limit, in bytes

_EVENT_DISABLE_TIMING = 2
_STREAM_NON_BLOCKING = 1
_HOST_MAPPED = 2
_HOST_TO_DEVICE = 1


class CudaBackend:
    """One rank on one GPU, or on its part of one. ``ep_lib.spawn(backend="cuda")`` and ``ep_lib.init()`` make it;
    making it is collective.

    ``heap_bytes`` is the size of the symmetric heap in bytes, ``kernel_timeout`` the number of seconds that
    :meth:`synchronize` waits; a wait inside a kernel gives up after half of it, at most 30 s, so that a kernel ends by
    itself before the host gives up. ``transport``: how ranks reach each other (:mod:`ep_lib.transports.choose`);
    ``self.transport`` is the one chosen for "auto". ``gpus``: the ranks of this host share so many GPUs, by MPS, each
    with its own SMs (:mod:`ep_lib.cuda.partition`); the caller's own CuPy or torch kernels use all SMs. Kernels run on
    torch's current stream if torch uses this GPU, else on CuPy's, or on the one of ``self.streams.on(stream)``. Raises
    BackendUnavailable, OutOfSymmetricMemory and RankMismatchError, the same on every rank.
    """

    name = "cuda"
    host_waits = sees_values = costly_threads = False
    gave_up = False  # host collectives do not set it; faults of kernels are in fault_word

    def __init__(
        self,
        bootstrap: Bootstrap,
        *,
        heap_bytes: int | None = None,
        kernel_timeout: float | None = None,
        device: int | None = None,
        transport: str = "auto",
        gpus: int | None = None,
    ) -> None:
        if bootstrap.world_size > device_state.MAX_RANKS:
            raise BackendUnavailable(f"a world has at most {device_state.MAX_RANKS} ranks; got {bootstrap.world_size}")
        self.rank = bootstrap.rank
        self.world_size = bootstrap.world_size
        self.xp: ModuleType = import_cupy()
        self.heap_bytes = DEFAULT_HEAP_BYTES if heap_bytes is None else heap_bytes
        self.heap_spread = self.heap_generations = 1
        self.checks = False
        self.kernel_timeout = DEFAULT_KERNEL_TIMEOUT if kernel_timeout is None else kernel_timeout
        # If a world may span hosts, each host counts its own ranks.
        here = bootstrap.local_rank + 1 if registry.spans_hosts(transport) else bootstrap.world_size
        self.device = device_for(bootstrap.local_rank, here, gpus) if device is None else device
        self._meeting_timeout = max(DEFAULT_TIMEOUT, self.kernel_timeout)  # seconds of a host collective
        self._bootstrap = bootstrap = Watched(bootstrap, self.kernel_timeout, self._meeting_timeout)
        self._runtime = self.xp.cuda.runtime
        self._driver = self.xp.cuda.driver
        self._lost: EpError | None = None  # set once the context is lost or a kernel does not end
        self._closed = False
        self._host_memory: list[int] = []
        self._torch_empty: dict[np.dtype[Any], Callable[..., Any]] = {}  # torch.empty for each dtype
        self._pending: dict[str, int] = {}  # kernels since the last synchronize()
        self._events: dict[int, int] = {}  # stream -> event
        self._kernels: weakref.WeakKeyDictionary[Kernel, LoadedKernel] = weakref.WeakKeyDictionary()

        self._runtime.setDevice(self.device)
        self._runtime.free(0)  # makes the context now, not inside the first measured call
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            torch.cuda.set_device(self.device)
        self._part = None if gpus is None else _part(self.device, bootstrap, gpus)
        self._own_streams = CudaStreams(self.xp, self.device, None if self._part is None else self._part.stream)
        self.streams: Streams = self._own_streams
        self._side_stream = self._runtime.streamCreateWithFlags(_STREAM_NON_BLOCKING)
        self._staging = self._runtime.hostAlloc(4096, 0)
        self._shown = ShownFault(self.host_array((device_state.FAULT_BYTES,), np.uint8))
        self.fault_word: Array = self._shown.word
        self._raised_at: int | None = None  # number of launches when a fault was raised that is not cleared yet
        self._device_timeout = min(DEVICE_TIMEOUT, self.kernel_timeout / 2)
        self._left_out: set[int] = set()
        self._closing_timeout = self.kernel_timeout  # seconds that close() waits for the other ranks
        self._heap = open_transport(transport, bootstrap, self.device, self.heap_bytes, self._meeting_timeout)
        self.transport = self._heap.name
        self._modules = ModuleCache(
            self._driver, self._device_state(), self._copy_to_device, register=self._heap.register_module
        )
        major, minor, self.shared_bytes = (
            int(self._runtime.deviceGetAttribute(which, self.device))
            for which in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR, _MAX_SHARED_PER_BLOCK)
        )
        self.sm_count: int | None = (
            int(self._runtime.deviceGetAttribute(_MULTIPROCESSORS, self.device))
            if self._part is None
            else self._part.sm_count
        )
        self.arch = f"sm_{major}{minor}"
        self._launches = launches(self.device)  # None: every launch goes through Python

    def reaches(self, peer: int) -> bool:
        """Whether the transport has mapped the peer's heap."""
        return self._heap.addresses[peer] != 0

    def heap_address(self, peer: int) -> int:
        """The address at which kernels of this rank reach ``peer``'s heap. Raises ArgumentError if loads and stores do
        not."""
        self._check_open()
        address = self._heap.addresses[peer]
        if not address:
            raise ArgumentError(
                f"rank {self.rank} has no address for rank {peer}'s memory: loads and stores do not reach it, only the "
                f"operations of <ep/net.cuh> do (transport {self.transport})"
            )
        return address

    def heap_array(self, offset: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """A CuPy view of this rank's heap; types that CuPy lacks (bfloat16, FP8) become uint16 or uint8."""
        self._check_open()
        kind = np.dtype(dtype)
        if kind.isbuiltin == 2:  # registered with NumPy by ml_dtypes
            kind = np.dtype(f"u{kind.itemsize}")
        memory = self.xp.cuda.UnownedMemory(self._heap.addresses[self.rank], self.heap_bytes, self, self.device)
        return self.xp.ndarray(shape, dtype=kind, memptr=self.xp.cuda.MemoryPointer(memory, offset))

    def variable(self, kernel: Kernel, symbol: str) -> Any | None:
        """A CuPy view of a variable of the kernel's module."""
        self._check_open()
        found = self._load(kernel).variable(symbol)
        if found is None:
            return None
        address, nbytes = found
        memory = self.xp.cuda.UnownedMemory(address, nbytes, self, self.device)
        return self.xp.ndarray((nbytes,), dtype=np.uint8, memptr=self.xp.cuda.MemoryPointer(memory, 0))

    def host_array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        """Pinned memory, which has one address for host and GPU; freed by :meth:`close`."""
        self._check_open()
        kind = np.dtype(dtype)
        nbytes = max(1, int(np.prod(shape, dtype=np.int64)) * kind.itemsize)
        address = int(self._runtime.hostAlloc(nbytes, _HOST_MAPPED))
        self._host_memory.append(address)
        ctypes.memset(address, 0, nbytes)
        return np.frombuffer((ctypes.c_char * nbytes).from_address(address), kind)[: np.prod(shape)].reshape(shape)

    def heap_reserve(self, offset: int, nbytes: int) -> None:
        """Nothing to do: the whole heap was allocated at the start."""

    def heap_in_use(self, arrays: Sequence[tuple[int, int]]) -> None:
        """Nothing to do: a GPU checks addresses only by its pages."""

    def accessed_by_host(self, array: Array, ends: str = "") -> None:
        """Nothing to do: not checked on GPUs."""

    def watched(self, array: Array) -> Array:
        """The array unchanged."""
        return array

    def was_freed(self, array: Array) -> bool:
        """Always False: CuPy arrays do not record their origin."""
        return False

    def empty(self, kind: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> ArrayInfo:
        """An uninitialised array of the caller's kind. bfloat16 and FP8 are uint16 and uint8 in CuPy. torch's come from
        torch's allocator, which handles its streams and graphs."""
        if kind == "torch":
            make = self._torch_empty.get(dtype)
            if make is None:
                make = self._torch_empty[dtype] = torch_empty(dtype, self.device)
            return describe(make(shape))
        self._check_open()
        bits = np.dtype(f"u{dtype.itemsize}") if dtype.isbuiltin == 2 else dtype  # registered with NumPy by ml_dtypes
        return describe(self.xp.empty(shape, bits))

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A CuPy array from its own pool."""
        return self._made(shape, dtype, lambda: self.xp.empty(shape, dtype))

    def copy_of(self, array: Array) -> Array:
        """A copy by CuPy."""
        return self._made(array.shape, array.dtype, lambda: self.xp.array(array))

    @staticmethod
    def _made(shape: tuple[int, ...], dtype: np.dtype[Any], make: Callable[[], Array]) -> Array:
        try:
            return make()
        except MemoryError as error:
            raise no_memory(shape, error) from error
        except ValueError as error:
            if dtype.isbuiltin != 2:  # of ml_dtypes' types, CuPy has only bfloat16
                raise
            bits = f"uint{8 * dtype.itemsize}"
            raise ArgumentError(
                f"CuPy has no {dtype.name}: use its bits, {bits} (array.view(np.{bits})), which kernels take for it"
            ) from error

    def left_unwritten(self, array: Any) -> None:
        """Nothing to do: compute-sanitizer's initcheck finds such reads on GPUs."""

    def launch(
        self,
        kernel: Kernel,
        grid: Dim,
        block: Dim,
        args: Sequence[Any],
        shared_bytes: int = 0,
        uses: Sequence[Any] = (),
    ) -> None:
        if self._closed or self._lost is not None:
            self._check_open()
        known = self._kernels.get(kernel)
        if known is not None and type(grid) is type(block) is type(shared_bytes) is int:
            again = known.again.get((grid, block, shared_bytes))
            if again is not None and self._launch_again(known, again, (grid, block, shared_bytes), args, uses):
                return
        self._runtime.setDevice(self.device)
        grid3, block3 = launch_dimensions(kernel.name, grid, block)
        loaded = self._load(kernel)
        shared_bytes = dynamic_shared(kernel.name, shared_bytes)
        loaded.check(block3, shared_bytes, self.shared_bytes)
        values = marshal(kernel.name, loaded.params, args)
        reached = [
            (f"argument {position}", info)
            for position, (_, array, inside) in enumerate(values, 1)
            for info in (array, *inside)
            if info is not None
        ] + [("uses", array) for array in used_arrays(kernel.name, uses)]
        for place, info in reached:
            self._check_device(kernel.name, place, info)
        if self._own_streams.chosen is not None:
            self._remember(self._own_streams.chosen)
            self._enqueue(loaded, grid3, block3, values, shared_bytes, self._own_streams.chosen)
        else:
            stream, cupys = self._current_streams()
            self._order(cupys, stream)  # the kernel may read data that CuPy is writing
            self._enqueue(loaded, grid3, block3, values, shared_bytes, stream)
            self._order(stream, cupys)
        self._pending[kernel.name] = self._pending.get(kernel.name, 0) + 1
        self._prepare(loaded, grid3, block3, shared_bytes, values)

    def executor(self, operation: Operation) -> Callable[[tuple[Value, ...]], Sequence[Array] | None] | None:
        """By native code; not on a part of a GPU, and only if the made arrays are torch's."""
        launches, makes = operation.launches, operation.makes
        if self._launches is None or self._part is not None or any(kind != "torch" for kind, _, _ in makes):
            return None
        kernels = [self._kernels.get(launch.kernel) for launch in launches]
        shapes = [(launch.grid, launch.block, launch.shared_bytes) for launch in launches]
        prepared = [None if k is None else k.again.get(s) for k, s in zip(kernels, shapes, strict=True)]
        makers = [maker(dtype) for _, _, dtype in makes]
        if None in prepared or None in makers:
            return None
        native = native_host.operation(operation, prepared, [how for how in makers if how is not None])
        if native is None:
            return None
        names, run = [launch.kernel.name for launch in launches], native.run
        current = sys.modules["torch"]._C._cuda_getDevice if makes else lambda: self.device  # where torch makes arrays

        def natively(values: tuple[Value, ...]) -> Sequence[Array] | None:
            stream = self._own_streams.chosen
            if self._closed or self._lost is not None or stream is None or current() != self.device:
                return None
            done = run(stream, values)
            if type(done) is tuple:
                step, status = done
                (blocks, threads, shared_bytes), loaded = shapes[step], kernels[step]
                assert loaded is not None
                error = self._driver.CUDADriverError(status)
                raise self._launch_error(loaded, (blocks, 1, 1), (threads, 1, 1), shared_bytes, error)
            if done is None:
                return None
            if stream not in self._events:
                self._remember(stream)
            for name in names:
                self._pending[name] = self._pending.get(name, 0) + 1
            return done  # type: ignore[no-any-return]

        return natively

    def synchronize(self) -> None:
        """Wait for this rank's kernels.

        Raises KernelTimeout after ``kernel_timeout`` seconds, KernelFault for a crash, and the error in the fault
        record of a kernel's own checks: PeerTimeout for a wait that reached its limit.
        """
        self._check_open()
        self._runtime.setDevice(self.device)
        self._current_streams()  # adds them to the streams to wait for
        try:
            self._wait_for_kernels()
            for stream in self._events:
                self._runtime.streamSynchronize(stream)  # at once; prints what the kernels printed
        except self._runtime.CUDARuntimeError as error:
            raise self._lose(error.status, str(error)) from error
        raised_before, self._raised_at = self._raised_at == sum(self._pending.values()), None
        self._pending.clear()
        fault = self._shown.error()
        if fault is None:
            return
        self._copy_to_device(self._heap.addresses[self.rank], bytes(device_state.FAULT_BYTES))
        self._shown.clear()
        if not raised_before:
            raise self._noted(fault)

    def _is_capturing(self) -> bool:
        return any(map(self._own_streams.is_capturing, self._events))

    def _wait_for_kernels(self) -> None:
        deadline = time.monotonic() + self.kernel_timeout
        for stream, event in self._events.items():
            self._runtime.eventRecord(event, stream)
        for event in self._events.values():
            self._wait_for(event, deadline)

    def raise_fault(self) -> None:
        """Works even if another program's kernel never ends, or a CUDA graph is being captured. The fault stays, so
        that kernels do no work, until the next synchronize(), which raises it again only after further launches.
        """
        error = self._shown.error()
        if error is not None:
            self._raised_at = sum(self._pending.values())
            raise self._noted(error)

    def watch_faults(self, hook: Hook) -> Callable[[], None]:
        return self._shown.watch(hook)

    def all_gather(self, obj: object, what: str = "all_gather()") -> list[Any]:
        self._check_open()
        return meet(self._bootstrap, what, obj, self._meeting_timeout, self._bootstrap.look(what))

    def network_bytes(self) -> tuple[int, int]:
        """Raises ArgumentError: not available on GPUs."""
        raise ArgumentError("network_bytes(): NICs of GPUs do not tell their traffic here; read their own counters")

    def barrier(self) -> None:
        self.synchronize()
        self.all_gather(None, "barrier()")

    def invitation(self) -> str:
        """Raises BackendUnavailable."""
        raise BackendUnavailable(
            "a process cannot take the place of another's rank on GPUs yet: start all ranks again, or go on without it"
        )

    def leave_out(self, ranks: Collection[int]) -> None:
        """Kernels do not touch their memory, and :meth:`close` does not wait for them."""
        self._left_out |= set(ranks)

    def take_back(self, ranks: Collection[int]) -> None:
        """Their memory has not moved."""
        self._left_out -= set(ranks)

    def abandon(self, error: BaseException) -> None:
        """Nothing to do: other ranks' kernels may be writing to this rank's memory, so it closes normally."""

    def close(self) -> None:
        """Collective: a barrier, then frees memory that others have mapped. It waits at most ``kernel_timeout``
        seconds; after a failed wait for another rank only as long as others' kernels may still wait for this one. After
        a lost context it neither waits nor frees memory.

        Waits for this rank's kernels first, and raises the errors of synchronize().
        """
        if self._closed:
            return
        try:
            if self._lost is None:
                self.synchronize()
        finally:
            self._closed = True
            self._shown.stop()
            deadline = time.monotonic() + self._closing_timeout
            self._bootstrap.leave_out(self._left_out)
            if self._lost is None:
                self._heap.close(orderly=True, timeout=self._closing_timeout)
                with contextlib.suppress(self._runtime.CUDARuntimeError):
                    for event in self._events.values():
                        self._runtime.eventDestroy(event)
                    self._own_streams.close()
                    self._runtime.streamDestroy(self._side_stream)
                    for address in (self._staging, *self._host_memory):
                        self._runtime.freeHost(address)
            # Otherwise memory is not freed: cudaFree would wait for ever for a spinning kernel.
            left = max(0.0, deadline - time.monotonic())
            within(left + _FAREWELL, lambda: self._bootstrap.close(left))

    # Implementation

    def _device_state(self) -> bytes:
        bases = np.zeros(device_state.MAX_RANKS, np.uint64)
        bases[: self.world_size] = self._heap.addresses
        return device_state.DEVICE_STATE.pack(
            rank=self.rank,
            num_ranks=self.world_size,
            heap_bytes=self.heap_bytes,
            fault_record=self._heap.addresses[self.rank],  # at offset 0 of the heap
            shown_fault=describe(self.fault_word).address,
            timeout_ns=int(self._device_timeout * 1e9),
            heap_base=bases.tobytes(),
        )

    def _load(self, kernel: Kernel) -> LoadedKernel:
        loaded = self._kernels.get(kernel)
        if loaded is None:
            image = self._heap.compile(kernel, self.arch)
            if isinstance(self._heap, ServedByThreads) and not self._is_capturing():
                self._wait_for_kernels()
            loaded = self._kernels[kernel] = self._modules.load(kernel.name, image)
        return loaded

    def _enqueue(
        self, loaded: LoadedKernel, grid: Dim3, block: Dim3, values: list[Marshalled], shared_bytes: int, stream: int
    ) -> None:
        """cuLaunchKernel copies the arguments before it returns, so they live in a buffer of this call."""
        offsets, size = loaded.offsets
        buffer = ctypes.create_string_buffer(size)
        base = ctypes.addressof(buffer)
        for offset, (data, _, _) in zip(offsets, values, strict=True):
            ctypes.memmove(base + offset, data, len(data))
        pointers = (ctypes.c_void_p * max(1, len(offsets)))(*[base + offset for offset in offsets])
        place = stream
        if self._part is not None:
            self._check_resident(loaded, grid, block, shared_bytes)
            place = self._part.beside(stream)
            self._own_streams.order(stream, place)
        try:
            shape = (*grid, *block, shared_bytes, place, ctypes.addressof(pointers) if values else 0)
            if loaded.syncs_grid:
                self._driver.launchCooperativeKernel(loaded.function, *shape)
            else:
                self._driver.launchKernel(loaded.function, *shape, 0)
            self._own_streams.order(place, stream)
        except self._driver.CUDADriverError as error:
            raise self._launch_error(loaded, grid, block, shared_bytes, error) from error

    def _launch_error(self, loaded: LoadedKernel, grid: Dim3, block: Dim3, shared_bytes: int, error: Any) -> EpError:
        """The exception for a CUDADriverError."""
        if cuda_errors.is_fault(error.status):  # of an earlier kernel: reported by a later call
            return self._lose(error.status, str(error))
        shape = f"<<<{grid}, {block}, {shared_bytes} B>>>"
        return cuda_errors.launch_error(error.status, str(error), self.rank, loaded.name, shape, loaded.registers)

    def _launch_again(
        self, loaded: LoadedKernel, again: Any, shape: tuple[int, int, int], args: Sequence[Any], uses: Sequence[Any]
    ) -> bool:
        """Repeats a prepared launch natively. False: an unusual case, nothing was launched."""
        chosen = self._own_streams.chosen
        if chosen is None:
            self._runtime.setDevice(self.device)
            stream, cupys = self._current_streams()
            self._order(cupys, stream)  # the kernel may read data that CuPy is writing
        else:
            stream = cupys = chosen
        status = again.run(stream, args, uses)
        if status < 0:
            return False
        if status:
            blocks, threads, shared_bytes = shape
            error = self._driver.CUDADriverError(status)
            raise self._launch_error(loaded, (blocks, 1, 1), (threads, 1, 1), shared_bytes, error)
        if cupys != stream:
            self._order(stream, cupys)
        elif stream not in self._events:
            self._remember(stream)
        self._pending[loaded.name] = self._pending.get(loaded.name, 0) + 1
        return True

    def _prepare(
        self, loaded: LoadedKernel, grid: Dim3, block: Dim3, shared_bytes: int, values: list[Marshalled]
    ) -> None:
        """Prepares a launch, so that it is quick with other addresses."""
        if self._launches is None or self._part is not None or loaded.syncs_grid:
            return
        if grid[1:] != (1, 1) or block[1:] != (1, 1):
            return
        look_at_tensors()
        shape = grid[0], block[0], shared_bytes
        again = loaded.again.get(shape)
        if again is None:
            again = self._launches.prepare(loaded, grid, block, shared_bytes)
            if again is None:
                return
            loaded.again[shape] = again
        for position, (_, array, _) in enumerate(values):
            if array is not None and array.nbytes:
                again.learn(position, array.dtype)

    def _check_resident(self, loaded: LoadedKernel, grid: Dim3, block: Dim3, shared_bytes: int) -> None:
        """On a part of a GPU, refuse a grid that cannot run as a whole at once, if its source uses other ranks."""
        if self.sm_count is None or not loaded.knows_ranks:
            return
        threads, blocks = math.prod(block), math.prod(grid)
        each = loaded.blocks_on_an_sm(threads, shared_bytes)
        if blocks > each * self.sm_count:
            room = each * self.sm_count
            raise KernelLaunchError(
                f"{loaded.name}: {blocks} blocks of {threads} threads and {shared_bytes} bytes of shared memory, but "
                f"rank {self.rank}'s part of the GPU runs {room} at once ({self.sm_count} SMs, {each} on each): "
                "blocks that wait for other ranks must all run at once. Take a smaller grid with a loop, fewer ranks, "
                "or larger gpus=; a kernel that waits for no rank can have any grid in a source without <ep/...>"
            )

    def _current_streams(self) -> tuple[int, int]:
        """The stream for kernels and CuPy's stream, usually the same; both are kept for synchronize()."""
        cupys = stream = self._own_streams.current()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            stream = self._own_streams.current("torch")
        self._remember(stream)
        self._remember(cupys)
        return stream, cupys

    def _remember(self, stream: int) -> None:
        """Notes a stream for synchronize()."""
        if stream not in self._events:
            self._events[stream] = self._runtime.eventCreateWithFlags(_EVENT_DISABLE_TIMING)

    def _order(self, first: int, second: int) -> None:
        """Makes later work of stream ``second`` run after the current work of ``first``."""
        if first != second:
            self._runtime.eventRecord(self._events[first], first)
            self._runtime.streamWaitEvent(second, self._events[first])

    def _check_device(self, kernel: str, place: str, info: ArrayInfo) -> None:
        if info.device != f"cuda:{self.device}":
            where = "in host memory" if info.device == "cpu" else f"on {info.device}"
            raise KernelLaunchError(
                f"{place} of {kernel!r} is a {info.kind} array {where}; rank {self.rank} runs on cuda:{self.device}: "
                "copy it there first, by rank.to_device(array)"
            )

    def _wait_for(self, event: int, deadline: float) -> None:
        start = before = time.monotonic()
        while self._query(event) == cuda_errors.NOT_READY:
            now = time.monotonic()
            if now - before > _STOPPED:  # the answer is outdated, and the limit is for kernels, not for this process
                deadline += now - before
            before = now
            if now > deadline:
                self._lost = KernelTimeout(
                    f"rank {self.rank}: kernels still run after {self.kernel_timeout:g} s. Started since the last "
                    f"synchronize(): {cuda_errors.launch_summary(self._pending)}.{self._hint_from_record()} A loop "
                    "that waits for a flag needs a limit (ep::wait_until_ge has one). This process cannot use the GPU "
                    "any more; end it."
                )
                raise self._lost
            if now - start > _BUSY_POLL:
                time.sleep(_POLL_SLEEP)

    def _query(self, event: int) -> int:
        """0 after the event has completed, NOT_READY before; raises CUDARuntimeError for everything else."""
        try:
            status = int(self._runtime.eventQuery(event))
        except self._runtime.CUDARuntimeError as error:
            if error.status != cuda_errors.NOT_READY:
                raise
            return cuda_errors.NOT_READY
        if status not in (0, cuda_errors.NOT_READY):
            raise self._runtime.CUDARuntimeError(status)
        return status

    def _lose(self, status: int, text: str) -> EpError:
        error = cuda_errors.to_error(status, text, self.rank, self._pending)
        if cuda_errors.is_fault(status) or status == cuda_errors.LAUNCH_TIMEOUT:
            self._lost = error
        return error

    def _noted(self, error: EpError) -> EpError:
        """Adds the transport's reason to an error, and shortens close(): an absent rank will hardly come to it."""
        if isinstance(error, PeerTimeout):
            self._closing_timeout = self._device_timeout
        if isinstance(self._heap, CanFail) and (reason := self._heap.failure()):
            error.add_note(reason)
        return error

    def _hint_from_record(self) -> str:
        """A hint from the fault record while a kernel still runs."""
        error = self._shown.error()
        return "" if error is None else f" One of its waits failed: {error}."

    def _copy_to_device(self, address: int, data: bytes) -> None:
        """Copies small data in a separate stream, past running kernels."""
        ctypes.memmove(self._staging, data, len(data))
        self._runtime.memcpyAsync(address, self._staging, len(data), _HOST_TO_DEVICE, self._side_stream)
        self._runtime.streamSynchronize(self._side_stream)

    def _check_open(self) -> None:
        if self._closed:
            raise BufferClosedError(f"rank {self.rank} was closed; make a new one by ep_lib.spawn or ep_lib.init")
        if self._lost is not None:
            raise self._lost


def _part(device: int, bootstrap: Bootstrap, gpus: int) -> Partition:
    """The part of a GPU for this rank: rank r of a host is on GPU r % gpus. Raises BackendUnavailable."""
    if not mps.is_active(device):
        raise BackendUnavailable(
            f"rank {bootstrap.rank} shares GPU {device} with others, and NVIDIA's MPS does not run: without it they "
            f"only take turns. Start its daemon first ({mps.CONTROL} -d); ep_lib.spawn(..., gpus={gpus}) does so itself"
        )
    gpu, part = bootstrap.local_rank % gpus, bootstrap.local_rank // gpus
    return Partition(device, part, len(range(gpu, bootstrap.world_size, gpus)))
