"""One emulated machine: heaps, kernels, launches and runs, in Python's terms."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import itertools
import json
import math
import os
import queue
import sys
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ep_lib.emulator import findings, library, outcomes, recording
from ep_lib.emulator.fabric import KINDS, Fabric
from ep_lib.emulator.host_watch import HostAccess
from ep_lib.emulator.symbols import Place
from ep_lib.errors import BackendUnavailable, EpError, KernelLaunchError
from ep_lib.jit.elf import SHN_UNDEF, STT_OBJECT, Elf

if TYPE_CHECKING:
    from ep_lib.jit.gxx import EmulatorImage

HEAP_SPREAD = 2  # bytes of address space per byte of a symmetric heap: the space behind an array stays unused
_POLL_SECONDS = 0.02  # interval of showing a run's output and checking its limit


@dataclass
class _Run:
    machine: int
    awaited: ctypes.Array[ctypes.c_int64] | None  # None: until services wait for work, and nothing is in flight
    finished: threading.Event = field(default_factory=threading.Event)
    outcome: int = library.DONE
    error: BackendUnavailable | None = None


def start_thread(thread: threading.Thread) -> None:
    """Starts it. Raises BackendUnavailable if this process cannot have more threads."""
    try:
        thread.start()
    except RuntimeError as error:
        raise BackendUnavailable(
            f"this process cannot start another thread ({error}): use fewer ranks, or raise the limit of `ulimit -u`"
        ) from error


class _Runner:
    """The one thread that runs kernels; the caller stays free to handle an interrupt or a time limit."""

    def __init__(self) -> None:
        self._runs: queue.SimpleQueue[_Run] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="ep_lib emulator", daemon=True)
        start_thread(self._thread)
        self._clock = time.pthread_getcpuclockid(self._thread.ident or 0)

    def cpu_seconds(self) -> float:
        """CPU time of the thread so far. Limits use it, since the machine may be busy with other work."""
        return time.clock_gettime(self._clock)

    def seconds(self) -> tuple[float, float]:
        """CPU time of the thread so far, and the time for which it was ready but had no CPU."""
        try:
            used, delayed, _ = Path(f"/proc/self/task/{self._thread.native_id}/schedstat").read_text().split()
        except OSError:  # a kernel without CONFIG_SCHED_INFO
            return self.cpu_seconds(), 0.0
        return int(used) * 1e-9, int(delayed) * 1e-9

    def _work(self) -> None:
        lib = library.load()
        lib.epemu_prepare_thread()
        while True:
            run = self._runs.get()
            try:
                run.outcome = lib.epemu_run(run.machine, run.awaited)
            except BackendUnavailable as error:
                run.error = error.with_traceback(None)
            run.finished.set()

    def submit(self, run: _Run) -> None:
        self._runs.put(run)


@functools.cache
def _runner() -> _Runner:
    return _Runner()


os.register_at_fork(after_in_child=_runner.cache_clear)  # threads do not survive a fork

# Held while kernels run: the runtime has one scheduler for all threads that call spawn().
_running = threading.Lock()
# Unused machines. They are destroyed between runs, never by a finaliser during one.
_graveyard: list[int] = []


def _bury() -> None:
    if _graveyard and _running.acquire(blocking=False):
        try:
            while _graveyard:
                library.load().epemu_destroy(_graveyard.pop())
        finally:
            _running.release()


@contextlib.contextmanager
def stacks_kept() -> Iterator[None]:
    """A run leaves the memory of its stacks to the next one: to clear it takes the kernel longer than many runs."""

    def keep(more: int) -> None:
        with _running:
            library.load().epemu_keep_stacks(more)

    keep(1)
    try:
        yield
    finally:
        keep(-1)


def pct_depth(seed: int) -> int:
    """How this seed's schedule is made: by PCT with this depth (runtime/pct.cpp), or by a random walk if it is 0."""
    return int(library.load().epemu_pct_depth(seed))


@contextlib.contextmanager
def _copy_in_memory(library: Path) -> Iterator[str]:
    """The path of an in-memory copy of a file, valid within this context. A loaded library no longer needs it."""
    try:
        handle = _unnamed_file(library.name)
    except OSError as error:
        raise _no_copy(library, error) from error
    try:
        try:
            with os.fdopen(handle, "wb", closefd=False) as file:
                file.write(library.read_bytes())
        except OSError as error:
            raise _no_copy(library, error) from error
        # The loader identifies libraries by the spelling of their paths, and descriptors are reused.
        spelling = "".join("/." if bit == "1" else "/" for bit in f"{next(_copies):b}")
        yield f"/proc/self/fd{spelling}/{handle}"
    finally:
        os.close(handle)


def _unnamed_file(name: str) -> int:
    try:
        return os.memfd_create(name)
    except PermissionError:  # behind the grader's walls, where files in memory are forbidden
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())


_copies = itertools.count(1)


def _no_copy(library: Path, error: OSError) -> BackendUnavailable:
    return BackendUnavailable(
        f"a compiled kernel with variables of its own ({library}) cannot be copied in memory: {error.strerror}; free "
        "some memory, or close some files"
    )


class _Memory:
    """The C++ machine. Arrays that a rank's main returns are views of its heaps, so it lives as long as one of them
    does. It does not live as long as an error, whose traceback refers to the :class:`Machine`."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        weakref.finalize(self, _graveyard.append, handle)


def _nanoseconds(seconds: float) -> int:
    return 2**64 - 1 if seconds == math.inf else max(1, int(seconds * 1e9))


class Launched(NamedTuple):
    """A launch by a host."""

    rank: int
    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    args: tuple[bytes, ...]
    parameters: str  # as :meth:`Machine.launch` takes them


class Entry(NamedTuple):
    """A kernel in a loaded library."""

    library: int
    address: int
    static_shared_bytes: int


class Machine:
    """Owns a C++ machine. Not thread safe: only the world's driver or the rank that holds the baton calls it."""

    def __init__(
        self,
        ranks: int,
        *,
        seed: int,
        heap_bytes: int,
        stack_bytes: int,
        max_resident_threads: int,
        fabric: Fabric,
        max_resident_blocks: int = 0,
        program_steps: int = 0,
        home: int = -1,
    ) -> None:
        """``home``: this process's rank, if each rank is a process; heaps then come from :meth:`map_heap`."""
        _bury()
        self.ranks = ranks
        self.heap_bytes = heap_bytes
        self.fabric = fabric
        self.has_other_processes = home >= 0
        # Heaps that processes share reserve their memory in advance, once.
        self.heap_generations = 1 if self.has_other_processes else 2
        self.heap_span = heap_bytes * HEAP_SPREAD * self.heap_generations
        self._lib = library.load()
        settings = library.Settings(
            seed=seed & (2**64 - 1),
            heap_bytes=heap_bytes,
            heap_span=self.heap_span,
            stack_bytes=stack_bytes,
            max_resident_threads=max_resident_threads,
            max_resident_blocks=max_resident_blocks,
            program_steps=program_steps,
            home=home,
            fabric=library.FabricSettings(
                KINDS.index(fabric.kind),
                fabric.ranks_per_node,
                fabric.p2p,
                fabric.queue_pairs,
                fabric.queue_depth,
                fabric.global_atomics,
            ),
        )
        handle = self._lib.epemu_create(ranks, ctypes.byref(settings))
        if not handle:
            raise BackendUnavailable(
                f"this process cannot reserve {ranks} symmetric heaps of {heap_bytes} bytes of address space; "
                f"lower heap_bytes (or EP_LIB_HEAP_BYTES), or the limit of `ulimit -v`"
            )
        self.handle = int(handle)
        self._memory = _Memory(self.handle)
        for source, target in fabric.broken_links:
            self._lib.epemu_break_link(self.handle, int(source), int(target))
        for (source, target, after), seconds in fabric.stalled_links.items():
            self._lib.epemu_stall_link(self.handle, int(source), int(target), int(after), _nanoseconds(seconds))
        for (source, target, number), seconds in fabric.delayed_messages.items():
            self._lib.epemu_delay_message(self.handle, int(source), int(target), int(number), _nanoseconds(seconds))
        for rank, after in fabric.stopped_ranks.items():
            self._lib.epemu_stop_rank(self.handle, int(rank), int(after))
        self._images: dict[tuple[str, int, str], int] = {}  # (path, rank or -1, its entry or "") -> Image*
        self.error: EpError | None = None
        self.checks = False
        self.host_accesses: list[HostAccess] = []  # under checks: to arrays that a kernel may be using
        self.notes: recording.Notes | None = None  # while the run is recorded
        self.runs_in_virtual_time = False
        self._has_services = self._has_failed = False
        self.has_launched: set[int] = set()  # ranks
        self.launches: list[Launched] | None = None  # a list if they are to be kept
        # register(rank, begin, end, writable): kernels of the rank may access these addresses
        self.register = functools.partial(self._lib.epemu_register, self.handle)
        # Such (rank, begin, end) to forget before the runtime looks at them: finalisers, which run in any thread at any
        # time, append them.
        self.stale: list[tuple[int, int, int]] = []
        self.done_ticket: Callable[[int], int] = functools.partial(self._lib.epemu_done_ticket, self.handle)
        self._kept: list[object] = []
        self._other_values, self._warned = 0, set[Place]()

    def begin_checks(self, plain_volatile: bool = False, weak_memory: bool = False) -> None:
        """Switches the checker on; call before the first launch. Raises BackendUnavailable.

        ``plain_volatile``: whether two unordered volatile accesses to memory that no thread polls are a race.
        ``weak_memory``: whether loads may return older values, as far as the memory model of PTX allows it.
        """
        if not self._lib.epemu_check_begin(self.handle, plain_volatile, weak_memory):
            raise BackendUnavailable(
                f"this process cannot reserve the checker's address space, four times {self.ranks} heaps of "
                f"{self.heap_bytes} bytes: lower heap_bytes (or EP_LIB_HEAP_BYTES), or the limit of `ulimit -v`"
            )
        self.checks = True

    def begin_recording(self, whole: bool = False) -> None:
        """Records events from here on, up to ``limit``; call after :meth:`begin_checks`. ``whole``: each access and its
        value, also where those of neighbours are one event else."""
        self._lib.epemu_record_begin(self.handle, recording.LIMIT, whole)
        self.notes = recording.Notes()

    def recorded(self) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        """The events so far (as ``recording.EVENT``), and the runtime's data about them; call before
        :meth:`end_checks`."""
        count = ctypes.c_uint64()
        first = self._lib.epemu_record_events(self.handle, ctypes.byref(count))
        size = count.value * recording.EVENT.itemsize
        events = np.frombuffer(ctypes.string_at(first, size) if size else b"", dtype=recording.EVENT)
        return events, json.loads(self._lib.epemu_record_info(self.handle).decode())

    def left_unwritten(self, address: int, nbytes: int) -> None:
        """Under checks: marks memory as uninitialised, so that reads before the first write are findings."""
        self._lib.epemu_check_unwritten(self.handle, address, address + nbytes)

    def end_checks(self) -> str:
        """The findings as JSON (see :mod:`ep_lib.emulator.findings`); frees the checker's memory."""
        report = str(self._lib.epemu_findings(self.handle).decode())
        self._lib.epemu_check_end(self.handle)
        self.checks = False
        return report

    def host_waited(self, rank: int, ticket: int) -> None:
        """Records, for checker and clock, that the rank's host has waited for its launches up to this ticket."""
        if self.runs_in_virtual_time:
            self._lib.epemu_time_host(self.handle, rank, ticket)
        if self.checks:
            self._lib.epemu_host_sync(self.handle, rank, ticket)

    def hosts_met(self) -> None:
        """Records, for checker and clock, that the hosts of all ranks have met in a collective operation."""
        if self.runs_in_virtual_time:
            self._lib.epemu_time_host(self.handle, -1, 0)
        if self.checks:
            self._lib.epemu_host_sync(self.handle, -1, 0)

    def host_access(self, rank: int, address: int, nbytes: int, writes: bool, where: str) -> None:
        """Records, for the checker, that the rank's host reads or writes memory at a line of its program
        (``file:line``)."""
        if self.checks and nbytes:
            self._lib.epemu_host_access(self.handle, rank, address, nbytes, writes, where.encode())

    def heap_address(self, rank: int) -> int:
        return int(self._lib.epemu_machine_heap(self.handle, rank))

    def map_heap(self, rank: int, descriptor: int) -> None:
        """Maps this file as a rank's heap. Raises OSError."""
        if number := self._lib.epemu_map_heap(self.handle, rank, descriptor):
            raise OSError(number, os.strerror(number))

    def forward(self, rank: int, ours: int, theirs: int) -> None:
        """Connects NICs to ``rank`` on another host by two TCP connections, which the machine closes: one for this
        rank's operations, one for the other's."""
        self._lib.epemu_forward(self.handle, rank, ours, theirs)

    def forwarded_bytes(self) -> tuple[int, int]:
        """Bytes sent to other hosts and received from them over TCP."""
        sent, received = ctypes.c_uint64(), ctypes.c_uint64()
        self._lib.epemu_forwarded_bytes(self.handle, ctypes.byref(sent), ctypes.byref(received))
        return sent.value, received.value

    def end_forwarding(self) -> None:
        """Ends the connections to ranks of other hosts, when no kernel runs any more."""
        self._lib.epemu_end_forwarding(self.handle)

    def link_ended(self, rank: int) -> bool:
        """Whether a connection to a rank of another host has ended."""
        return bool(self._lib.epemu_link_ended(self.handle, rank))

    def heap_view(self, rank: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """All bytes of a rank's heap, without a copy."""
        buffer = (ctypes.c_uint8 * self.heap_span).from_address(self.heap_address(rank))
        buffer.memory = self._memory  # type: ignore[attr-defined]  # keeps it alive
        return np.ctypeslib.as_array(buffer)

    def set_arrays(self, rank: int, arrays: Sequence[tuple[int, int]]) -> None:
        """Sets the parts of symmetric heaps that later launches of the rank may touch, as sorted (begin, end)
        offsets."""
        if self.notes is not None:
            self.notes.symmetric.update(arrays)
        flat = [offset for array in arrays for offset in array]
        self._lib.epemu_set_arrays(self.handle, rank, (ctypes.c_uint64 * len(flat))(*flat), len(arrays))

    def keep(self, *memory: object) -> None:
        """Keeps memory of a rank alive for services, which run on after the rank has closed."""
        self._kept += memory

    def _forget_stale(self) -> None:
        while self.stale:
            self._lib.epemu_unregister(self.handle, *self.stale.pop())

    def load(self, image: EmulatorImage, rank: int) -> int:
        """Loads a compiled kernel's library; returns its handle. Each rank gets its own copy if the kernel has
        variables."""
        owner = rank if image.writable_globals else -1
        key = (str(image.path), owner, image.entry_symbol if owner >= 0 else "")
        if key in self._images:
            return self._images[key]
        # A second dlopen of the same file gives the same globals; each kernel of each rank has its own, as on GPUs.
        with _copy_in_memory(image.path) if owner >= 0 else contextlib.nullcontext(str(image.path)) as path:
            loaded = self._lib.epemu_load_image(self.handle, os.fsencode(path), os.fsencode(image.path))
        if not loaded:
            raise KernelLaunchError(f"a compiled kernel cannot be loaded: {self._lib.epemu_error().decode()}")
        self._images[key] = loaded
        return int(loaded)

    def entry(self, image: EmulatorImage, rank: int) -> Entry:
        """What launches of a rank start; loads it."""
        loaded = self.load(image, rank)
        address = int(self._lib.epemu_symbol(loaded, image.entry_symbol.encode()))
        return Entry(loaded, address, image.static_shared_bytes)

    @property
    def kernels(self) -> frozenset[str]:
        """The digests of the sources and compilers of all loaded libraries of kernels."""
        return frozenset(Path(path).parent.name for path, _, _ in self._images)

    def symbol(self, loaded: int, name: str) -> int | None:
        """The address of a loaded library's symbol; None if there is none of this name."""
        return self._lib.epemu_symbol(loaded, name.encode()) or None

    def variable(self, image: EmulatorImage, rank: int, symbol: str) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
        """The bytes of a variable of a compiled kernel's library, without a copy; None if there is none of that
        name."""
        symbols = {each.name: each for each in Elf(image.path.read_bytes()).symbols if each.section != SHN_UNDEF}
        found, entry = symbols.get(symbol), symbols[image.entry_symbol]
        if found is None or found.type != STT_OBJECT:
            return None
        base = self._lib.epemu_symbol(self.load(image, rank), image.entry_symbol.encode()) - entry.value
        buffer = (ctypes.c_uint8 * found.size).from_address(base + found.value)
        buffer.memory = self._memory  # type: ignore[attr-defined]  # keeps the library loaded
        return np.ctypeslib.as_array(buffer)

    def launch(
        self,
        rank: int,
        name: str,
        entry: Entry,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[bytes],
        ranges: Sequence[tuple[int, int, bool]],
        shared_bytes: int,
        parameters: str = "",
        *,
        read_only: Sequence[tuple[int, int, bool]] = (),
        is_service: bool = False,
    ) -> int:
        """Queues a kernel behind the rank's others; returns its ticket. ``ranges``: (begin, end, writable) of the
        memory behind its arguments. ``parameters``: their names for reports (``Launch`` of the runtime). ``read_only``:
        ranges that the compiler may load through the read-only path. ``is_service``: the kernel starts beside the
        others and never ends, like a thread of the host."""
        if self.error is not None:
            self.raise_if_broken()
        while self.stale:
            self._lib.epemu_unregister(self.handle, *self.stale.pop())
        offsets, blob = [], bytearray()
        for data in args:
            blob.extend(b"\0" * (-len(blob) % 16))
            offsets.append(len(blob))
            blob.extend(data)
        request = library.LaunchRequest(
            rank=rank,
            grid=(ctypes.c_uint32 * 3)(*grid),
            block=(ctypes.c_uint32 * 3)(*block),
            static_shared=entry.static_shared_bytes,
            dynamic_shared=shared_bytes,
            kernel=name.encode(),
            arg_bytes=bytes(blob),
            arg_offsets=(ctypes.c_uint64 * max(1, len(offsets)))(*offsets),
            num_args=len(offsets),
            num_arg_bytes=len(blob),
            parameters=parameters.encode(),
            ranges=(library.Range * max(1, len(ranges)))(*ranges),  # type: ignore[misc]  # ctypes takes tuples
            num_ranges=len(ranges),
            read_only=(library.Range * max(1, len(read_only)))(*read_only),  # type: ignore[misc]
            num_read_only=len(read_only),
        )
        start = self._lib.epemu_launch_service if is_service else self._lib.epemu_launch
        self._has_services |= is_service
        self.has_launched.add(rank)
        if self.launches is not None:
            self.launches.append(Launched(rank, name, tuple(grid), tuple(block), tuple(args), parameters))
        ticket = int(start(self.handle, entry.library, entry.address, ctypes.byref(request)))
        if not ticket:
            library.require_memory(self._lib)
        return ticket

    @property
    def steps(self) -> int:
        """The length of the program so far: its synchronising operations and network events."""
        return int(self._lib.epemu_steps(self.handle))

    @property
    def quiescence(self) -> str:
        """The waiting threads at the time when only their limits could end the run, as JSON; or empty."""
        return str(self._lib.epemu_quiescence(self.handle).decode())

    @property
    def polls(self) -> str:
        """The places that polled, as JSON, under checks with ``plain_volatile``."""
        return str(self._lib.epemu_polls(self.handle).decode())

    @property
    def clocks(self) -> str:
        """The places that read a clock, except for the limit of a wait, as JSON, under checks."""
        return str(self._lib.epemu_clocks(self.handle).decode())

    @property
    def choices(self) -> str:
        """The barriers by number to which more warps come than they take, as JSON, under checks."""
        return str(self._lib.epemu_choices(self.handle).decode())

    @property
    def most_resident_blocks(self) -> int:
        """The most blocks resident at one time, over all ranks."""
        return int(self._lib.epemu_most_resident_blocks(self.handle))

    def has_stopped(self, rank: int) -> bool:
        """Whether ``Fabric(stopped_ranks=...)`` has stopped the rank."""
        return bool(self._lib.epemu_rank_stopped(self.handle, rank))

    def raise_if_broken(self) -> None:
        if self.error is not None:
            raise copy.copy(self.error)  # a traceback on the kept error would keep this machine alive

    def run(self, awaited: Sequence[int], *, timeout: float, host_waits: list[str]) -> None:
        """Runs kernels until one of the awaited tickets (by rank, 0 for none) is done, for at most ``timeout`` seconds
        of CPU time.

        Raises DeadlockError, KernelFault or KernelTimeout; the machine then refuses further work with the same error.
        """
        self.raise_if_broken()
        self._forget_stale()
        self._run((ctypes.c_int64 * self.ranks)(*awaited), timeout, host_waits)

    def _run(self, awaited: ctypes.Array[ctypes.c_int64] | None, timeout: float, host_waits: list[str]) -> None:
        run = _Run(self.handle, awaited)
        with _running:
            runner = _runner()
            deadline = runner.cpu_seconds() + timeout
            runner.submit(run)
            try:
                while not run.finished.wait(_POLL_SECONDS):
                    self._show_output()
                    if runner.cpu_seconds() > deadline:
                        self._stop(run)
            finally:
                self._stop(run)  # an interrupt ends the kernels before it propagates
                self._show_output()
        self._warn_of_other_values()
        self._has_failed = run.error is not None or run.outcome != library.DONE
        if run.error is not None:
            self.error = run.error
            self.raise_if_broken()
        if run.outcome != library.DONE:
            report = self._lib.epemu_report(self.handle).decode()
            self.error = outcomes.to_error(report, timeout=timeout, host_waits=host_waits)
            self.raise_if_broken()

    def _warn_of_other_values(self) -> None:
        """Warns once per line where a GPU may compute another value. Under the checker these are findings."""
        count = self._lib.epemu_num_other_values(self.handle)
        if count == self._other_values:
            return
        self._other_values = count
        for place, message in findings.other_values(self._lib.epemu_other_values(self.handle).decode()):
            if place not in self._warned:
                self._warned.add(place)
                warnings.warn_explicit(f"{message}: {place.source}", RuntimeWarning, place.name, place.line)

    def drain_network(self) -> None:
        """Lets everything in flight arrive, except on broken links; a barrier of all ranks does this."""
        self._forget_stale()
        if self._has_services:
            if not self._has_failed:
                self._run(None, math.inf, [])
        elif self._lib.epemu_in_flight(self.handle):
            with _running:
                self._lib.epemu_drain_network(self.handle)

    @staticmethod
    def seconds() -> tuple[float, float]:
        """CPU time of all kernels of this process so far, and the time for which they were ready but had no CPU."""
        return _runner().seconds()

    def stop(self) -> None:
        """Asks running kernels to end; any thread may call it."""
        self._lib.epemu_stop(self.handle)

    def _stop(self, run: _Run) -> None:
        while not run.finished.is_set():
            self.stop()
            run.finished.wait(0.01)

    def _show_output(self) -> None:
        buffer = ctypes.create_string_buffer(1 << 16)
        while count := self._lib.epemu_take_output(self.handle, buffer, len(buffer)):
            sys.stdout.write(buffer.raw[:count].decode(errors="replace"))
            sys.stdout.flush()

    def close(self) -> None:
        """Refuses further work. The heaps stay readable for as long as arrays refer to them."""
        if self.error is None:
            self.error = BackendUnavailable("this emulated machine ended with its spawn(); start a new one")
        _bury()
