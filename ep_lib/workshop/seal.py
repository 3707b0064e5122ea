"""The grader's half of a process in which a learner's Python runs, and what of it an instructor should look at.

A piece in Python is called by a function of the grader's in the same interpreter, and could put another function in
the place of the library's. :func:`noted` notes, before any piece is imported, what each name of the process's modules
stands for; the function that :func:`put_on` returns says which of them stand for something else, and what an audit hook
(PEP 578) has heard: that the piece looks through all objects, traces, compiles or starts programs. It costs no point.

The kernels of a test are compiled by :func:`kernels` before the learner's process is there. What a piece is given
are a :class:`HandedKernel` for each and :func:`theirs`, a rank of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ep_lib.emulator import library
from ep_lib.errors import EpError, KernelLaunchError
from ep_lib.jit.kernel import Kernel
from ep_lib.require import index, refuse
from ep_lib.runtime.check import check
from ep_lib.runtime.rank import Rank
from ep_lib.workshop.pieces import PIECE_MODULE
from ep_lib.workshop.scenario import CHECKER_IS_OFF

_MOST_NOTED = 4096  # bytes of an array in which a kernel has found something
_MOST_DISGUISED = 1 << 16  # bytes of an array that a kernel is given to send
_ITEMS = {1: np.uint8, 4: np.int32}
_LARGE = frozenset(("torch", "sympy", "scipy"))  # of these, what their public names stand for
_LOOKS_THROUGH = frozenset(
    (
        *("gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys._current_frames", "sys._current_exceptions"),
        *("sys.settrace", "sys.setprofile", "sys.monitoring.register_callback"),
    )
)
# What compiles kernels and starts processes: the test's kernels were made before.
_STARTS = frozenset(("ep_lib.compile", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.spawn", "os.system"))
_OF_FINDINGS = "addr2line"  # the program that the checker asks for lines
_MOST_LOOKS = 20


class Tampered(EpError):
    """A piece has changed what a test gives it to be read."""


class GivenWasChanged(EpError):
    """A call has changed an argument that its caller still needs."""


@contextlib.contextmanager
def unchanged(**given: Any) -> Iterator[None]:
    """Around the call of a piece: raises GivenWasChanged if one of the arguments ``given``, by name, is another one
    afterwards. Arrays, tensors, lists, dicts and what they hold are compared with what they were."""
    before = {name: pickle.dumps(value) for name, value in given.items()}
    yield
    for name, value in given.items():
        if pickle.dumps(value) != before[name]:
            raise GivenWasChanged(f"the call has changed `{name}`, which its caller still needs: work on a copy")


def put_on(before: Sequence[Noted]) -> Callable[[], list[str]]:
    """Returns what says, a sentence each, what an instructor should look at: which names stand for something else than
    :func:`noted` has noted ``before``, and what looked through this process or started another one since now."""
    heard: dict[str, str] = {}
    gone = object()

    def watch(event: str, given: Any) -> None:
        if event in _LOOKS_THROUGH:
            heard[event] = f"{event}() looks through the process that grades it"
        elif event in _STARTS or (event == "subprocess.Popen" and given[0] != _OF_FINDINGS):
            heard[event] = f"{event}() compiles or starts what the test has not made"

    def looks() -> Iterator[str]:
        yield from heard.values()
        for where, names, noted, is_class in before:
            now = names.get
            if is_class and len(names) > len(noted):
                for name in names.keys() - {each[0] for each in noted}:
                    if not name.startswith("__"):  # Python's own, such as __annotations__, may be made when asked for
                        yield f"{where}.{name} is new since your file was imported"
            for name, value, code, defaults, attributes in noted:
                if attributes is not None and len(value.__dict__) > attributes:
                    yield f"{where}.{name} has a new attribute since your file was imported"
                if now(name, gone) is not value or (
                    code and (value.__code__ is not code or value.__defaults__ is not defaults)
                ):
                    yield f"{where}.{name} has another meaning since your file was imported"

    sys.addaudithook(watch)
    return lambda: list(itertools.islice(looks(), _MOST_LOOKS))


def noted() -> list[Noted]:
    """What every name of this process stands for, before any piece is imported."""
    return list(_noted())


def kernels(source: Path, *names: str) -> dict[str, Kernel]:
    """A test's kernels by name, compiled: for its program to make when it is imported, before any piece is there."""
    found = {name: Kernel.from_source(source.read_text(encoding="utf-8"), name) for name in names}
    for kernel in found.values():
        kernel.compile()
    library.load()
    return found


class HandedKernel(Kernel):
    """What a piece has of a kernel: it is launched, and has a name. Which kernel it is, knows :class:`Followed` alone,
    so whatever becomes of this one, that stays as it is."""

    def __init__(self, name: str) -> None:
        vars(self)["name"] = name

    def launch(
        self,
        rank: Any,
        grid: Any,
        block: Any,
        *args: object,
        shared_bytes: int = 0,
        uses: Sequence[object] = (),
    ) -> None:
        if not isinstance(rank, Rank):
            refuse("rank", rank, "the rank that your function got: kernel.launch(rank, grid, block, ...)")
        rank.launch(self, grid, block, args, shared_bytes, uses)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{self!r} has no {name!r}: it was compiled before, for this rank, and is launched")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{self!r} was compiled before, and stays as it is: {name!r} cannot be set")

    def __repr__(self) -> str:
        return f"<the kernel {vars(self).get('name')} of the test>"


def theirs(rank: Rank) -> Rank:
    """The rank once more, for the piece: what it changes there, the grader's half does not see. It has the numbers and
    the methods of a rank, and no attribute, by whatever name, that leads to what is behind them."""
    behind = Rank.__new__(Rank)
    vars(behind).update(vars(rank))

    def leave(self: Rank, *error: Any) -> None:
        behind.__exit__(*error)

    names: dict[str, Any] = {"__module__": Rank.__module__, "__exit__": leave, "is_closed": _of(behind, "is_closed")}
    names.update({name: _of(behind, name) for name in vars(Rank) if not name.startswith("_")})
    kind = type(Rank.__name__, (Rank,), names)
    handed: Rank = object.__new__(kind)
    vars(handed).update({name: value for name, value in vars(rank).items() if not name.startswith("_")})
    return handed


def _of(behind: Rank, name: str) -> property:
    """A method or a property of another object, which nothing but this code knows. No call lies between: the library
    looks who calls it."""
    return property(lambda _: getattr(behind, name))


class Travels:
    """The half of a test's ``Kept`` that knows what kernels carried: what each of them was given to send to a peer, and
    which bytes lay where it waited for those of a peer. And where ranks met, and how much symmetric memory they had."""

    def __init__(self) -> None:
        self._carried: list[list[Any]] = []
        self._met = Counter[str]()
        self._met_late: set[str] = set()
        self._most_held = 0

    def carried(self, *journey: Any) -> None:
        self._carried.append(list(Journey(*journey)))

    def met(self, name: str, late: bool) -> None:
        self._met[name] += 1
        self._met_late |= {name} if late else set()

    def holds(self, nbytes: int) -> None:
        self._most_held = max(self._most_held, nbytes)

    def seen(self, told: Any) -> dict[str, Any]:
        met = {"met": self._met, "met_late": sorted(self._met_late)}
        return {"told": told, "carried": self._carried, "most_held": self._most_held, **met}


class Journey(NamedTuple):
    """What a kernel of a rank was given for a peer ("sent"), or found where it waited for the peer's ("received")."""

    what: str
    rank: int
    peer: int
    given: str  # hex, as the piece knows it
    came: str  # hex, as it went and came
    at: int  # of the target, or of what was waited for: bytes from the beginning of the rank's heap
    signal: int
    least: int = 0  # for which the signal was waited


class Sends(NamedTuple):
    """Which argument of a kernel is what: ``items`` is a number of elements."""

    source: int
    items: int
    item_bytes: int
    target: int
    signal: int
    peer: int


class Receives(NamedTuple):
    """Which argument of a kernel is what, of one that waits for ``signal`` to be at least ``expected``."""

    data: int
    items: int
    item_bytes: int
    signal: int
    expected: int
    peer: int


class Followed:
    """Kernels that are followed for :class:`Travels`, on each rank with :meth:`follow`.

    Ranks are threads of one process, and what one of them knows could reach the next by other ways than a kernel. So
    nobody knows what travels: a kernel sends what it is given plus random bits, and the right answer is what came. Who
    hands on the numbers themselves has numbers that no kernel carried. Among ``kernels`` is one ``note(from, bytes,
    key, to)`` too, which copies with ``key`` in each byte (None: as it is).
    """

    def __init__(self, kernels: Mapping[str, Kernel], ask: Callable[..., Any]) -> None:
        self._all, self._ask = kernels, ask
        self._kernels: list[tuple[Kernel, Sends | None, Receives | None]] = []
        self._noted: dict[int, list[Callable[[], Journey]]] = defaultdict(list)
        self._is_over = False

    def kernel(self, name: str, sends: Sends | None = None, receives: Receives | None = None) -> None:
        """A kernel to follow. What is received may be read otherwise as well, so all of its array is of interest."""
        self._kernels.append((self._all[name], sends, receives))

    def follow(self, rank: Rank) -> list[HandedKernel]:
        """Notes from now on what this rank's kernels carry, where it meets other ranks, by any call, and its symmetric
        memory. Returns what the piece on this rank gets of the kernels; it launches no others. ``rank`` is the
        grader's own: the piece gets :func:`theirs`."""
        backend = rank._backend
        real_launch, real_gather, real_in_use = backend.launch, backend.all_gather, backend.heap_in_use
        note = partial(real_launch, self._all["note"], 1, 32)
        handed = [HandedKernel(kernel.name) for kernel, _, _ in self._kernels]
        followed = {id(each): which for each, which in zip(handed, self._kernels, strict=True)}
        has_launched = False

        def launch(
            kernel: Kernel, grid: Any, block: Any, args: Sequence[Any], shared_bytes: int = 0, uses: Sequence[Any] = ()
        ) -> None:
            nonlocal has_launched
            has_launched = True
            if id(kernel) not in followed:
                raise KernelLaunchError("a piece launches the kernels that it is handed: this is none of them")
            real, sends, receives = followed[id(kernel)]
            args = settled(args)
            given = list(args)
            if sends is not None:
                self._disguise(rank, note, given, sends)
            real_launch(real, grid, block, given, shared_bytes, uses)
            if receives is not None and not self._is_over:
                self._look(rank, note, args, receives)

        def all_gather(obj: object, what: str = "all_gather()") -> list[Any]:
            if not self._is_over:
                self._ask("met", what.removesuffix("()"), has_launched)
            return real_gather(obj, what)

        def heap_in_use(arrays: Sequence[tuple[int, int]]) -> None:
            if not self._is_over:
                self._ask("holds", sum(end - begin for begin, end in arrays if begin))  # at 0 are the heap's own words
            real_in_use(arrays)

        backend.launch = launch  # type: ignore[method-assign]
        backend.all_gather = all_gather  # type: ignore[method-assign]
        backend.heap_in_use = heap_in_use  # type: ignore[method-assign]
        return handed

    def _disguise(self, rank: Rank, note: Callable[..., None], args: list[Any], sends: Sends) -> None:
        """Puts a copy with random bits in the place of what is to be sent. Not of what a rank sends to itself."""
        if len(args) <= max(sends):
            return  # the launch itself says what is wrong, here and below
        source, count, peer = args[sends.source], index(args[sends.items]), index(args[sends.peer])
        told = sends.item_bytes * (count or 0)
        there = getattr(source, "nbytes", told)  # else it is an address
        size = min(there, told)
        if peer is None or peer == rank.rank or size < 1 or there > _MOST_DISGUISED:
            return
        with contextlib.suppress(EpError):
            key = np.frombuffer(os.urandom(size), np.uint8)
            shape = getattr(source, "shape", size // sends.item_bytes)
            disguised = rank.empty(shape, getattr(source, "dtype", _ITEMS[sends.item_bytes]))
            note((source, size, rank.to_device(key), disguised))
            args[sends.source] = disguised
            if self._is_over:
                return
            places = (_place(rank, args[sends.target]), _place(rank, args[sends.signal]))

            def journey() -> Journey:
                came = rank.to_host(disguised).reshape(-1).view(np.uint8)[:size]
                return Journey("sent", rank.rank, peer, (came ^ key).tobytes().hex(), came.tobytes().hex(), *places)

            self._noted[rank.rank].append(journey)

    def _look(self, rank: Rank, note: Callable[..., None], args: Sequence[Any], receives: Receives) -> None:
        """Notes what lies where a kernel has waited, if it has waited for anything."""
        if len(args) <= max(receives):
            return
        data, count, peer = args[receives.data], index(args[receives.items]), index(args[receives.peer])
        size = min(getattr(data, "nbytes", receives.item_bytes * (count or 0)), _MOST_NOTED)
        expected = index(args[receives.expected])
        if peer is None or size < 1 or expected is None or expected < 1:
            return
        with contextlib.suppress(EpError):
            places = (_place(rank, data), _place(rank, args[receives.signal]))
            seen = rank.empty(size, np.uint8)
            note((data, size, None, seen))

            def journey() -> Journey:
                came = rank.to_host(seen).tobytes().hex()
                return Journey("received", rank.rank, peer, came, came, *places, expected)

            self._noted[rank.rank].append(journey)

    def tell(self, rank: Rank) -> None:
        """What the kernels of this rank have carried so far, once they are done."""
        for journey in self._noted.pop(rank.rank, []):
            self._ask("carried", *journey())

    def over(self) -> None:
        """What is launched from now on is not noted."""
        self._is_over = True


def settled(args: Sequence[Any]) -> list[Any]:
    """The arguments of a launch as they are now: objects of a piece's own could be other numbers, or say otherwise of
    themselves, each time they are asked."""
    return [_settled(arg) for arg in list(args)]


def _settled(arg: Any) -> Any:
    if isinstance(arg, np.ndarray):
        return np.ndarray.view(arg, np.ndarray)
    number = index(arg)
    return arg if number is None else int.__index__(number)


def _place(rank: Rank, array: Any) -> int:
    """Of an array or an address in the rank's symmetric heap: bytes from its beginning. Raises ArgumentError."""
    address = index(array)
    return rank.offset_of(array) if address is None else address - rank._backend.heap_address(rank.rank)


class Carried:
    """What the judge makes of the journeys that :class:`Travels` has seen."""

    def __init__(self, seen: Mapping[str, Any]) -> None:
        self._journeys = [Journey(*each) for each in seen["carried"]]

    def sent(self, rank: int, peer: int, wanted: bytes) -> set[bytes]:
        """What ``wanted`` looked like on its ways from ``rank`` to ``peer``, at once or in parts, each a quarter of it
        at least; empty: no kernel has sent it."""
        found = set()
        left, came = bytearray(len(wanted)), bytearray(len(wanted))  # left: 1 where it was seen
        for each in self._of("sent", rank, peer):
            given, went = bytes.fromhex(each.given), bytes.fromhex(each.came)
            found |= {went[at : at + len(wanted)] for at in _places_of(wanted, given)}
            if 4 * len(given) >= len(wanted) and (at := wanted.find(given)) >= 0:
                left[at : at + len(given)] = bytes([1]) * len(given)
                came[at : at + len(given)] = went
        return found | ({bytes(came)} if all(left) else set())

    def was_awaited(self, rank: int, peer: int, came: bytes, before: int = 0) -> bool:
        """Whether a kernel of ``rank`` has waited for the signal that ``peer`` sent with ``came``, the first one or the
        tenth after ``before`` others, and found it where that has sent it, at once or in parts."""
        left = bytearray(len(came))
        signals = Counter[int]()
        sent = []
        for it in self._of("sent", peer, rank):
            signals[it.signal] += 1
            went = bytes.fromhex(it.came)
            if went in came or came in went:
                sent.append((it, signals[it.signal]))
        for each in self._of("received", rank, peer):
            part = bytes.fromhex(each.came)
            if not any(
                it.signal == each.signal and number <= each.least - before and 0 <= each.at - it.at < len(it.came) // 2
                for it, number in sent
            ):
                continue
            if came in part:
                return True
            if 4 * len(part) >= len(came) and (at := came.find(part)) >= 0:
                left[at : at + len(part)] = bytes([1]) * len(part)
        return all(left)

    def whose(self, numbers: Mapping[bytes, int]) -> dict[bytes, int]:
        """Whose numbers these are, by what they were and by what they became on their ways."""
        found = dict(numbers)
        sent = [(bytes.fromhex(each.given), bytes.fromhex(each.came)) for each in self._journeys if each.what == "sent"]
        while new := {came: found[given] for given, came in sent if given in found and came not in found}:
            found |= new
        return found

    def _of(self, what: str, rank: int, peer: int) -> list[Journey]:
        return [each for each in self._journeys if (each.what, each.rank, each.peer) == (what, rank, peer)]


def _places_of(wanted: bytes, data: bytes) -> Iterator[int]:
    at = data.find(wanted)
    while at >= 0:
        yield at
        at = data.find(wanted, at + 1)


def findings_of(main: Callable[..., Any], ranks: int, canary: Kernel, seeds: int, heap_bytes: int) -> list[str]:
    """What the checker says of ``main(rank)``, a sentence each. After it rank 0 runs the kernel ``canary``, a race: a
    checker that is silent about it was switched off."""

    def watched(rank: Rank) -> None:
        launch = rank._backend.launch  # before main() has it followed
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


# A name, what it stands for and, of a function, what can be exchanged: its code, its defaults, how many attributes it
# has. Ten thousand of them are compared twice in each call of a piece.
_Note = tuple[str, Any, CodeType | None, tuple[Any, ...] | None, int | None]
Noted = tuple[str, Mapping[str, Any], list[_Note], bool]  # the last: whether these are a class's


def _noted() -> Iterator[Noted]:
    """Every module, its names, and what of them is noted: functions, classes, modules. Of the library and of the tests'
    own programs the classes too."""
    yield "sys", vars(sys), [_note("modules", sys.modules)], False
    modules = {
        name: module
        for name, module in list(sys.modules.items())
        if "." not in name or name.partition(".")[0] not in _LARGE
    }
    yield "sys.modules", sys.modules, [_note(name, module) for name, module in modules.items()], False
    for where, module in modules.items():
        names = vars(module)
        noted = {name: value for name, value in names.items() if callable(value) or isinstance(value, ModuleType)}
        yield where, names, [_note(name, value) for name, value in noted.items()], False
        if where.partition(".")[0] != "ep_lib" and not where.startswith(PIECE_MODULE):
            continue
        for name, value in noted.items():
            if isinstance(value, type) and value.__module__ == where:
                yield f"{where}.{name}", vars(value), [_note(inner, each) for inner, each in vars(value).items()], True


def _note(name: str, value: Any) -> _Note:
    if not isinstance(value, FunctionType):
        return name, value, None, None, None
    is_large = value.__module__ is None or value.__module__.partition(".")[0] in _LARGE  # torch marks its own
    return name, value, value.__code__, value.__defaults__, None if is_large else len(value.__dict__)
