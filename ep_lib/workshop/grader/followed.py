"""Ranks of a learner's Python program: each in a process of its own, the emulator here in the worker.

A piece gets proxies of the rank and kernels here (:class:`TheRank`, :class:`TheKernel`), so that :class:`Followed` sees
the data of its kernels, its collectives and its memory use directly.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ep_lib.errors import EpError
from ep_lib.jit import sealed
from ep_lib.jit.kernel import Kernel
from ep_lib.require import index
from ep_lib.runtime.check import check
from ep_lib.runtime.rank import Rank
from ep_lib.workshop.grader.process.far import Guest
from ep_lib.workshop.grader.scenario import CHECKER_IS_OFF

_OWN_KERNELS = """
// What memory holds when the kernels before this one are done.
extern "C" __global__ void note(const void* from, size_t bytes, void* to) {
    for (size_t i = threadIdx.x; i < bytes; i += blockDim.x)
        static_cast<char*>(to)[i] = static_cast<const char*>(from)[i];
}

// A race on purpose: a checker that does not report it was switched off.
extern "C" __global__ void canary(int* word) {
    if (threadIdx.x == 0) *word = static_cast<int>(blockIdx.x);  // canary
}
"""
_MOST_NOTED = 4096  # bytes of an array that a kernel has received or sends


def kernels(source: Path, *names: str) -> dict[str, Kernel]:
    """A test's compiled kernels by name, with ``note`` and ``canary``."""
    text = sealed.opened(source.read_text(encoding="utf-8")) + _OWN_KERNELS
    found = {name: Kernel.from_source(text, name) for name in (*names, "note", "canary")}
    for kernel in found.values():
        kernel.compile()
    return found


# ---- objects for a piece ---------------------------------------------------------------------------------------------
class TheKernel:
    """A kernel of the test."""

    KIND = "kernel"
    OPEN = ()
    FIXED = ("name",)

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.name = kernel, kernel.name


class TheRank:
    """The proxy of ``rank`` for a piece, which shares its arrays
    (:meth:`ep_lib.workshop.grader.process.far.Guest.array`)."""

    KIND = "rank"
    OPEN = (
        *("symmetric", "empty", "host_array", "to_device", "to_host", "free", "offset_of", "peer_address", "adopt"),
        *("launch", "synchronize", "barrier", "all_gather", "network_bytes", "invitation", "close"),
    )
    FIXED = ("rank", "world_size", "backend", "heap_bytes")

    def __init__(self, rank: Rank, guest: Guest) -> None:
        self._rank, self._guest = rank, guest
        self.rank, self.world_size = rank.rank, rank.world_size
        self.backend, self.heap_bytes = rank.backend, rank.heap_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rank, name)

    def __index__(self) -> int:
        return self.rank

    def symmetric(self, *given: Any, **named: Any) -> Any:
        return self._guest.array(self._rank.symmetric(*given, **named))

    def empty(self, *given: Any, **named: Any) -> Any:
        return self._guest.array(self._rank.empty(*given, **named))

    def host_array(self, *given: Any, **named: Any) -> Any:
        return self._guest.array(self._rank.host_array(*given, **named))

    def to_device(self, array: Any) -> Any:
        return self._guest.array(self._rank.to_device(array))

    def adopt(self, array: NDArray[Any]) -> int:
        """The array here for an array of the piece that a kernel is about to use."""
        return self._guest.array(self._rank.to_device(array)).number

    def launch(self, kernel: TheKernel, grid: Any, block: Any, args: Sequence[Any], shared_bytes: int = 0) -> None:
        self._rank.launch(kernel.kernel, grid, block, args, shared_bytes)


# ---- the test's view -------------------------------------------------------------------------------------------------
class Journey(NamedTuple):
    """Data that a kernel of a rank sends to a peer ("sent"), or finds where it waits for a peer's ("received")."""

    what: str
    rank: int
    peer: int
    data: str  # hex
    at: int  # offset of the target, or of the awaited data, in the rank's heap
    signal: int
    least: int = 0  # the value that the signal was awaited for


class Sends(NamedTuple):
    """The roles of a sending kernel's arguments; ``items``: a number of elements."""

    source: int
    items: int
    item_bytes: int
    target: int
    signal: int
    peer: int


class Receives(NamedTuple):
    """The roles of the arguments of a kernel that waits for ``signal`` to be at least ``expected``."""

    data: int
    items: int
    item_bytes: int
    signal: int
    expected: int
    peer: int


class Followed:
    """Followed kernels, on each rank with :meth:`follow`: the data that each sends to a peer, and the bytes found where
    it waits for a peer's. Also the ranks' collectives, and their use of symmetric memory.

    ``kernels``: the result of :func:`kernels`.
    """

    def __init__(self, kernels: Mapping[str, Kernel]) -> None:
        self._all = kernels
        self._kernels: dict[Kernel, tuple[Sends | None, Receives | None, int | None]] = {}
        self._noted: dict[int, list[Callable[[], Journey]]] = defaultdict(list)
        self._carried: list[Journey] = []
        self._waits_for: list[tuple[int, int | None]] = []
        self._met = Counter[str]()
        self._met_late: set[str] = set()
        self._most_held = 0
        self._is_over = False

    def kernel(
        self, name: str, sends: Sends | None = None, receives: Receives | None = None, waits_for: int | None = None
    ) -> None:
        """A kernel to follow. Received data may be read in other ways too, so its whole array is noted. ``waits_for``:
        the argument that names the awaited rank."""
        self._kernels[self._all[name]] = sends, receives, waits_for

    def follow(self, rank: Rank) -> list[Kernel]:
        """Starts noting the data of this rank's kernels, its collectives of any kind, and its symmetric memory. Returns
        the kernels."""
        backend = rank._backend
        real_launch, real_gather, real_in_use = backend.launch, backend.all_gather, backend.heap_in_use
        has_launched = False

        def note(source: Any, size: int) -> Any:
            noted = rank.empty(size, np.uint8)
            real_launch(self._all["note"], 1, 32, (source, size, noted))
            return noted

        def launch(
            kernel: Kernel, grid: Any, block: Any, args: Sequence[Any], shared_bytes: int = 0, uses: Sequence[Any] = ()
        ) -> None:
            nonlocal has_launched
            has_launched = True
            sends, receives, waits_for = self._kernels.get(kernel, (None, None, None))
            if waits_for is not None and len(args) > waits_for and not self._is_over:
                self._waits_for.append((rank.rank, index(args[waits_for])))
            if sends is not None and not self._is_over:
                self._look(rank, note, args, "sent", sends, sends.source, sends.target)
            real_launch(kernel, grid, block, args, shared_bytes, uses)
            if receives is not None and not self._is_over:
                self._look(rank, note, args, "received", receives, receives.data, receives.data)

        def all_gather(obj: object, what: str = "all_gather()") -> list[Any]:
            if not self._is_over:
                name = what.removesuffix("()")
                self._met[name] += 1
                self._met_late |= {name} if has_launched else set()
            return real_gather(obj, what)

        def heap_in_use(arrays: Sequence[tuple[int, int]]) -> None:
            if not self._is_over:
                held = sum(end - begin for begin, end in arrays if begin)  # the heap's own words are at 0
                self._most_held = max(self._most_held, held)
            real_in_use(arrays)

        backend.launch = launch  # type: ignore[method-assign]
        backend.all_gather = all_gather  # type: ignore[method-assign]
        backend.heap_in_use = heap_in_use  # type: ignore[method-assign]
        return list(self._kernels)

    def _look(
        self,
        rank: Rank,
        note: Callable[[Any, int], Any],
        args: Sequence[Any],
        what: str,
        which: Sends | Receives,
        source: int,
        target: int,
    ) -> None:
        """Notes the data sent to another rank, or found at the place where a kernel has waited."""
        if len(args) <= max(which):
            return  # the launch itself reports the mistake, here and below
        count, peer = index(args[which.items]), index(args[which.peer])
        told = which.item_bytes * (count or 0)
        # If the number of bytes is smaller than the array, the rest is not sent.
        size = getattr(args[source], "nbytes", told)
        size = min(size, told if what == "sent" else _MOST_NOTED)
        least = index(args[which.expected]) if isinstance(which, Receives) else 0
        is_of_interest = least is not None and least >= 1 if isinstance(which, Receives) else peer != rank.rank
        if peer is None or not 1 <= size <= _MOST_NOTED or not is_of_interest:
            return
        with contextlib.suppress(EpError):
            places = _place(rank, args[target]), _place(rank, args[which.signal])
            noted = note(args[source], size)
            self._noted[rank.rank].append(
                lambda: Journey(what, rank.rank, peer, rank.to_host(noted).tobytes().hex(), *places, least or 0)
            )

    def tell(self, rank: Rank) -> None:
        """Notes the data of this rank's kernels so far, after they have finished."""
        self._carried += [journey() for journey in self._noted.pop(rank.rank, [])]

    def over(self) -> None:
        """Stops noting: later launches do not count."""
        self._is_over = True

    def seen(self) -> dict[str, Any]:
        return {
            "carried": self._carried,
            "waits_for": self._waits_for,
            "most_held": self._most_held,
            "met": self._met,
            "met_late": sorted(self._met_late),
        }


def _place(rank: Rank, array: Any) -> int:
    """The offset in bytes of an array or an address in the rank's symmetric heap. Raises ArgumentError."""
    address = index(array)
    return rank.offset_of(array) if address is None else address - rank._backend.heap_address(rank.rank)


class Carried:
    """The judge's view of the journeys that :class:`Followed` has seen."""

    def __init__(self, seen: Mapping[str, Any]) -> None:
        self._journeys = [Journey(*each) for each in seen["carried"]]

    def was_sent(self, rank: int, peer: int, wanted: bytes) -> bool:
        """Whether ``rank`` has sent ``wanted`` to ``peer``, at once or in parts of at least a quarter each."""
        return _is_covered(wanted, (bytes.fromhex(each.data) for each in self._of("sent", rank, peer)))

    def was_awaited(self, rank: int, peer: int, came: bytes, before: int = 0) -> bool:
        """Whether a kernel of ``rank`` has waited for ``peer``'s signal of ``came``, whether the first or a later one
        after ``before`` others, and found the data at its destination, at once or in parts."""
        signals = Counter[int]()
        sent = []
        for it in self._of("sent", peer, rank):
            signals[it.signal] += 1
            went = bytes.fromhex(it.data)
            if went in came or came in went:
                sent.append((it, signals[it.signal]))
        found = (
            bytes.fromhex(each.data)
            for each in self._of("received", rank, peer)
            if any(
                it.signal == each.signal and number <= each.least - before and 0 <= each.at - it.at < len(it.data) // 2
                for it, number in sent
            )
        )
        return _is_covered(came, found)

    def _of(self, what: str, rank: int, peer: int) -> list[Journey]:
        return [each for each in self._journeys if (each.what, each.rank, each.peer) == (what, rank, peer)]


def _is_covered(wanted: bytes, parts: Iterator[bytes]) -> bool:
    """Whether one of these contains it, or several of them, of at least a quarter each, form it together."""
    covered = bytearray(len(wanted))
    for part in parts:
        if wanted in part:
            return True
        if 4 * len(part) >= len(wanted) and (at := wanted.find(part)) >= 0:
            covered[at : at + len(part)] = bytes([1]) * len(part)
    return all(covered)


def findings_of(main: Callable[..., Any], ranks: int, canary: Kernel, seeds: int, heap_bytes: int) -> list[str]:
    """The checker's findings for ``main(rank)``, a sentence each. Then rank 0 runs the kernel ``canary``, a race: a
    checker that does not report it was switched off."""

    def watched(rank: Rank) -> None:
        launch = rank._backend.launch  # before main() follows it
        main(rank)
        if rank.rank == 0:
            launch(canary, 2, 32, [rank.empty(1, np.int32)])
            rank.synchronize()

    report = check(
        watched, ranks, seeds=seeds, heap_bytes=heap_bytes, timeout=5, compare_values=False, memory="sc", reduce=False
    )
    found = report.findings
    real = [each for each in found if each.first is None or "// canary" not in each.first.source]
    if len(real) == len(found) and all(each.second is not None for each in found):  # it did not end early either
        return [CHECKER_IS_OFF]
    return [f"{each.kind}: {each.message}; {each.remedy}"[:300] for each in real]
