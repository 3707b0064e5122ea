"""Starts native proxy threads (native/engine.cpp) and the executors of their commands.

Python is not in their loops: it starts them, reads their counters, and stops them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import weakref
from collections.abc import Mapping, Sequence
from ctypes import POINTER, c_char_p, c_int, c_int64, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib.errors import ArgumentError, BackendUnavailable, PeerTimeout
from ep_lib.jit import device_state
from ep_lib.jit.kernel import library_kernel
from ep_lib.jit.nvrtc import NvrtcImage
from ep_lib.jit.runtime_library import build_host_library
from ep_lib.require import whole_number
from ep_lib.transports.proxy.rings import COMMAND, Rings

SPIN_SECONDS = 1e-3  # an idle thread polls for so long before it sleeps between polls
_NUMA_NODES = Path("/sys/devices/system/node")


class Table(ctypes.Structure):
    """``ep::proxy::Executor`` of native/engine.hpp."""

    _fields_ = [("state", c_void_p), ("post", c_void_p), ("poll", c_void_p), ("destroy", c_void_p)]


_SIGNATURES: dict[str, tuple[list[Any], Any]] = {
    "ep_proxy_start": (
        [c_void_p, c_int, POINTER(Table), c_int, POINTER(c_int), c_uint64, c_void_p, c_uint32],
        c_void_p,
    ),
    "ep_proxy_stop": ([c_void_p], None),
    "ep_proxy_counts": ([c_void_p, c_int, POINTER(c_uint64)], None),
    "ep_proxy_failure": ([c_void_p], c_char_p),
    "ep_proxy_push": ([c_void_p, c_char_p, c_uint64, c_uint64, c_int, c_uint64], c_uint64),
    "ep_proxy_await": ([c_void_p, c_uint64, c_uint64], c_int),
    "ep_executor_nothing": ([POINTER(Table), c_int, c_void_p, c_uint64], None),
    "ep_executor_memory": ([POINTER(Table), c_int, POINTER(c_void_p), c_uint64, c_int, c_int, c_uint64], None),
    "ep_executor_copy_engine": (
        [POINTER(Table), c_char_p, c_int, c_char_p, c_int, POINTER(c_void_p), c_uint64, c_int, c_int, c_char_p],
        c_int,
    ),
    "ep_nixl_open": ([c_char_p, c_char_p, c_void_p, c_uint64, c_int, c_int, c_int, c_int, c_char_p], c_void_p),
    "ep_nixl_metadata": ([c_void_p, c_char_p, c_uint64, c_char_p], c_int64),
    "ep_nixl_connect": ([c_void_p, c_int, c_char_p, c_uint64, c_uint64, c_char_p], c_int),
    "ep_executor_nixl": ([POINTER(Table), c_void_p], None),
}
_TEXT_BYTES = 512  # ep::proxy::kTextBytes
_METADATA_BYTES = 1 << 20


@functools.cache
def load() -> ctypes.CDLL:
    """The native half, compiled at its first use. Raises BackendUnavailable."""
    path = build_host_library("epproxy", Path(__file__).with_name("native"))
    try:
        library = ctypes.CDLL(str(path))
        for name, (arguments, result) in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, result
    except (OSError, AttributeError) as error:
        raise BackendUnavailable(
            f"the native proxy cannot be loaded ({error}): EP_LIB_CXX names another compiler"
        ) from error
    return library


@dataclass(frozen=True)
class Counts:
    """Counters of a thread, or of all threads. ``naps``: the number of sleeps for lack of work."""

    commands: int
    batches: int
    bytes: int
    naps: int


class Proxy:
    """Threads that serve ``rings``. ``cpus``: one entry per thread: its CPU, -1 if it is not pinned.

    ``spin``: seconds that an idle thread polls before it sleeps. ``fault_word``: host address of the word of a rank's
    FaultRecord that a failing thread sets, so that kernels stop waiting.
    """

    def __init__(
        self,
        rings: Rings,
        executor: Executor,
        *,
        cpus: Sequence[int] = (-1,),
        spin: float = SPIN_SECONDS,
        fault_word: int = 0,
    ) -> None:
        available = os.sched_getaffinity(0)
        for cpu in cpus:
            if cpu != -1 and cpu not in available:
                raise ArgumentError(f"a proxy thread cannot be pinned to CPU {cpu}; this process may use {available}")
        whole_number("the number of proxy threads", len(cpus), 1, rings.count)
        self.rings, self.executor, self.threads = rings, executor, len(cpus)
        self._library = load()
        numbers = (c_int * len(cpus))(*cpus)
        spin_ns, fault = int(spin * 1e9), (fault_word or None, device_state.FAULT_PROXY)
        self._engine = self._library.ep_proxy_start(
            rings.address, rings.count, ctypes.byref(executor.table), len(cpus), numbers, spin_ns, *fault
        )
        # Also at the end of the process: the threads must not outlive the memory that they poll.
        self._stop = weakref.finalize(self, _stop, self._library, self._engine, rings, executor)

    def counts(self, thread: int | None = None) -> Counts:
        """The counters of one thread, or of all together."""
        rows = []
        for number in range(self.threads) if thread is None else [thread]:
            row = (c_uint64 * 4)()
            self._library.ep_proxy_counts(self._engine, number, row)
            rows.append(row)
        return Counts(*(sum(column) for column in zip(*rows, strict=True)))

    def failure(self) -> str:
        """Why a thread has failed; empty if none has."""
        return str(self._library.ep_proxy_failure(self._engine).decode()) if self._stop.alive else ""

    @property
    def is_running(self) -> bool:
        """Whether it has neither been stopped nor failed."""
        return self._stop.alive and not self.failure()

    def finish(self, seconds: float) -> None:
        """Lets the threads execute all pushed commands, at most so many seconds per ring, then ends them."""
        with contextlib.suppress(PeerTimeout):  # a failed kernel has left a hole in its ring
            for ring in range(self.rings.count if self.is_running else 0):
                flush(self.rings, ring, seconds)
        self.stop()

    def stop(self) -> None:
        """Ends the threads. The rings may be served by another Proxy after that."""
        self._stop()


def gave_up(rank: int, proxy: Proxy) -> str:
    """Why the proxy of ``rank`` has failed, one sentence; empty while it works."""
    reason = proxy.failure()
    return f"rank {rank}: its proxy has given up: {reason}" if reason else ""


def _stop(library: ctypes.CDLL, engine: int, *_kept_alive: object) -> None:
    library.ep_proxy_stop(engine)


class Executor:
    """An executor of commands; a Proxy takes ownership. ``table``: its functions."""

    def __init__(self, queues: int) -> None:
        self.queues = queues
        self.table = Table()


class Nothing(Executor):
    """Completes every command at once. ``delays_ns``: the last delays of commands pushed with a timestamp, from the
    push to the proxy."""

    def __init__(self, queues: int, delays: int = 0) -> None:
        super().__init__(queues)
        self.delays_ns = np.zeros(delays, np.uint64)
        load().ep_executor_nothing(ctypes.byref(self.table), queues, self.delays_ns.ctypes.data, delays)


class Memory(Executor):
    """Copies between heaps that this process has mapped, and adds to their counters. ``staging_bytes``: copies through
    a buffer of that size, as needed if a NIC cannot reach a GPU's memory."""

    def __init__(
        self, queues: int, addresses: Sequence[int], heap_bytes: int, rank: int, staging_bytes: int = 0
    ) -> None:
        super().__init__(queues)
        bases = (c_void_p * len(addresses))(*addresses)
        load().ep_executor_memory(
            ctypes.byref(self.table), queues, bases, heap_bytes, len(addresses), rank, staging_bytes
        )


class CopyEngine(Executor):
    """CUDA's copy engine; the stream sets signals, and a kernel of one thread adds to them; waiting kernels have to
    leave room for it. ``addresses``: this process's addresses of the heaps on GPU ``device``, 0 for unmapped ones; the
    heaps must still be all zero. ``arch``: that GPU's, such as "sm_90". ``library``: CUDA's driver.

    Raises BackendUnavailable with CUDA's message.
    """

    def __init__(
        self,
        queues: int,
        addresses: Sequence[int],
        heap_bytes: int,
        rank: int,
        *,
        device: int,
        arch: str,
        library: str = "libcuda.so.1",
    ) -> None:
        super().__init__(queues)
        image = library_kernel("transports/proxy/signal.cu", "ep_proxy_signal").compile(arch)
        assert isinstance(image, NvrtcImage)
        bases, text = (c_void_p * len(addresses))(*addresses), ctypes.create_string_buffer(_TEXT_BYTES)
        shape, heaps = (device, image.cubin, queues), (bases, heap_bytes, len(addresses), rank)
        if load().ep_executor_copy_engine(ctypes.byref(self.table), library.encode(), *shape, *heaps, text) < 0:
            raise BackendUnavailable(text.value.decode())


class Nixl(Executor):
    """UCX, by NIXL's C interface: WRITEs with notifications to peers in other processes, also on other hosts.

    ``heap``: this rank's, of ordinary memory. ``name`` is unique among the peers. ``is_loopback``: all peers are on
    this host, so UCX does not monitor them, which would exclude shared memory. Raises BackendUnavailable.
    """

    def __init__(
        self, heap: np.ndarray[Any, Any], name: str, *, ranks: int, rank: int, queues: int = 1, is_loopback: bool = True
    ) -> None:
        super().__init__(queues)
        self._library, self._heap = load(), heap
        self._text = ctypes.create_string_buffer(_TEXT_BYTES)
        path = str(_find_nixl()).encode()
        address, shape = heap.ctypes.data, (ranks, rank, queues)
        self._state = self._library.ep_nixl_open(
            path, name.encode(), address, heap.nbytes, *shape, is_loopback, self._text
        )
        if not self._state:
            raise BackendUnavailable(self._text.value.decode())
        self._library.ep_executor_nixl(ctypes.byref(self.table), self._state)

    def metadata(self) -> bytes:
        """The data for a peer's :meth:`connect`."""
        data = ctypes.create_string_buffer(_METADATA_BYTES)
        count = self._library.ep_nixl_metadata(self._state, data, len(data), self._text)
        if not 0 <= count <= len(data):
            raise BackendUnavailable(self._text.value.decode() or f"NIXL's metadata have {count} bytes")
        return data.raw[:count]

    def connect(self, rank: int, metadata: bytes, address: int) -> None:
        """Connects to a peer. ``address``: its heap's, in its own process."""
        if self._library.ep_nixl_connect(self._state, rank, metadata, len(metadata), address, self._text) < 0:
            raise BackendUnavailable(self._text.value.decode())


def _find_nixl() -> Path:
    """NIXL's C interface in one of its wheels. Raises BackendUnavailable."""
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")  # else it logs every step
    for package in ("nixl_cu13", "nixl_cu12"):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            site = Path(spec.origin).parents[1]
            for library in site.glob(f".{package}.mesonpy.libs/libnixl_capi.so"):
                return library
    raise BackendUnavailable("the proxy's NIXL executor needs NIXL 1.5: pip install --no-deps nixl-cu13")


def push(
    rings: Rings,
    number: int,
    command: Mapping[str, int],
    count: int = 1,
    *,
    pause: float = 0.0,
    stamps: bool = False,
    timeout: float = 30.0,
) -> None:
    """Acts as a kernel from the CPU: pushes a command ``count`` times, ``pause`` seconds apart.

    ``command``: fields of ep::ProxyCommand by name. Raises PeerTimeout if the ring stays full.
    """
    packed = np.zeros(1, COMMAND.dtype)
    for name, value in command.items():
        packed[name] = value
    pushed = load().ep_proxy_push(
        rings.ring(number), packed.tobytes(), count, int(pause * 1e9), stamps, int(timeout * 1e9)
    )
    if pushed < count:
        raise _stuck(f"pushed {pushed} of {count} commands into ring {number} of a proxy", timeout)


def flush(rings: Rings, number: int, timeout: float = 30.0) -> None:
    """Waits until all commands of a ring are complete. Raises PeerTimeout."""
    if not load().ep_proxy_await(rings.ring(number), rings.pushed(number), int(timeout * 1e9)):
        raise _stuck(f"waited for the commands in ring {number} of a proxy", timeout)


def _stuck(what: str, timeout: float) -> PeerTimeout:
    return PeerTimeout(
        f"{what} within {timeout:g} s: does a Proxy serve the ring, and has it failed (Proxy.failure)?",
        rank=-1,
        peer=-1,
        phase="write",
    )


def cpus_of_node(node: int) -> list[int]:
    """The CPUs of a NUMA node that this process may use: a proxy should run near its NIC and its GPU, whose node is in
    ``/sys/class/infiniband/NAME/device/numa_node`` and the like. Raises ArgumentError."""
    try:
        here = _parse_list((_NUMA_NODES / f"node{node}" / "cpulist").read_text())
    except OSError:
        nodes = sorted(place.name for place in _NUMA_NODES.glob("node[0-9]*"))
        raise ArgumentError(f"there is no NUMA node {node}; this host has {', '.join(nodes) or 'none'}") from None
    found = sorted(here & os.sched_getaffinity(0))
    if not found:
        raise ArgumentError(f"this process may use no CPU of NUMA node {node} (`taskset -p {os.getpid()}`)")
    return found


def _parse_list(text: str) -> set[int]:
    """The numbers in a list such as "0-3,8"."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found |= set(range(int(first), int(last or first) + 1))
    return found
