"""The grader's half of a process in which a learner's Python runs, and whether it is still as it was.

A piece in Python is called by a function of the grader's in the same interpreter, and could put another function in
the place of the library's. :func:`noted` notes, before any piece is imported, what each name of the process's modules
stands for; the function that :func:`put_on` returns raises :class:`Tampered` once a name stands for something else.
What looks through the whole process, as ``gc.get_objects()`` does, is refused from then on.

This stops what Python offers for it, and no more: who reads and writes memory by address (ctypes, NumPy) is in the same
process. Such a piece is flagged (:func:`ep_lib.workshop.watched.worth_a_look`), and an instructor looks at it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from ep_lib.errors import EpError
from ep_lib.jit.kernel import Kernel
from ep_lib.runtime.check import check
from ep_lib.runtime.rank import Rank
from ep_lib.workshop.pieces import PIECE_MODULE
from ep_lib.workshop.scenario import CHECKER_IS_OFF

_LARGE = frozenset(("torch", "sympy", "scipy"))  # of these, what their public names stand for
_LOOK_THROUGH = frozenset(
    ("gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys._current_frames", "sys._current_exceptions")
)
_TRACES = frozenset(("sys.settrace", "sys.setprofile", "sys.monitoring.register_callback"))


class Tampered(EpError):
    """A piece has changed what is not its own, or looked through the grader's process."""


def put_on(before: Sequence[Noted], *, may_trace: bool = False) -> Callable[[], None]:
    """Returns what raises Tampered if a name stands for something else than :func:`noted` has noted ``before``.

    ``may_trace``: whether the grader's half follows the learner's lines itself, as that of the puzzles does."""
    refuses = _LOOK_THROUGH if may_trace else _LOOK_THROUGH | _TRACES
    refused: list[str] = []
    gone = object()

    def watch(event: str, _: Any) -> None:
        if event in refuses:
            refused.append(event)
            raise _tampered(f"{event}()", "looks through the process that grades it")

    def require() -> None:
        if refused:
            raise _tampered(f"{refused[0]}()", "looks through the process that grades it")
        for where, names, noted in before:
            now = names.get
            for name, value, code, defaults in noted:
                same = now(name, gone) is value
                if not same or (code and (value.__code__ is not code or value.__defaults__ is not defaults)):
                    raise _tampered(f"{where}.{name}", "has another meaning since your file was imported")

    sys.addaudithook(watch)
    return require


def noted() -> list[Noted]:
    """What every name of this process stands for, before any piece is imported."""
    return list(_noted())


class Launches:
    """The half of a test's ``Kept`` that counts launches: how often a rank has launched a kernel for a peer."""

    def __init__(self) -> None:
        self._count: Counter[tuple[int, int]] = Counter()
        self._is_over = False

    def launched(self, rank: int, peer: int) -> None:
        if not self._is_over:
            self._count[rank, peer] += 1

    def over(self) -> None:
        """What is launched from now on counts no more."""
        self._is_over = True

    def seen(self, told: Any) -> dict[str, Any]:
        return {"told": told, "launches": [[*between, count] for between, count in self._count.items()]}


class _Told(Kernel):
    """A kernel that says for which peer it is launched, its argument number ``peer_at``."""

    peer_at: int
    ask: Callable[..., Any]

    def launch(self, rank: Any, grid: Any, block: Any, *args: Any, **options: Any) -> None:
        super().launch(rank, grid, block, *args, **options)
        self.ask("launched", rank.rank, int(args[self.peer_at]))


def told_kernel(source: str, name: str, peer_at: int, ask: Callable[..., Any]) -> Kernel:
    """A kernel whose launches are counted by :class:`Launches`, where the piece does not reach."""
    kernel = _Told.from_source(source, name)
    kernel.peer_at, kernel.ask = peer_at, ask
    return kernel


def times(launches: Any, rank: int, peer: int) -> int:
    """Of what Launches has seen: how often ``rank`` has launched for ``peer``."""
    return sum(count for one, other, count in launches if (one, other) == (rank, peer))


def findings_of(main: Callable[..., Any], ranks: int, kernels: str, seeds: int, heap_bytes: int) -> list[str]:
    """What the checker says of ``main(rank)``, a sentence each. After it rank 0 runs the kernel ``canary``, a race: a
    checker that is silent about it was switched off."""
    canary = Kernel.from_source(kernels, "canary")

    def watched(rank: Rank) -> None:
        main(rank)
        if rank.rank == 0:
            canary.launch(rank, 2, 32, rank.empty(1, np.int32))
            rank.synchronize()

    report = check(
        watched, ranks, seeds=seeds, heap_bytes=heap_bytes, timeout=5, compare_values=False, memory="sc", reduce=False
    )
    found = report.findings
    real = [each for each in found if each.first is None or "// canary" not in each.first.source]
    if len(real) == len(found) and all(each.second is not None for each in found):  # it did not end early either
        return [CHECKER_IS_OFF]
    return [f"{each.kind}: {each.message}; {each.remedy}"[:300] for each in real]


def _tampered(what: str, why: str) -> Tampered:
    return Tampered(f"{what} {why}: a piece defines functions of its own, and leaves everything else as it is")


# A name, what it stands for and, as they can be exchanged, a function's code and defaults. Ten thousand of them are
# compared twice in each call of a piece.
_Note = tuple[str, Any, CodeType | None, tuple[Any, ...] | None]
Noted = tuple[str, Mapping[str, Any], list[_Note]]


def _noted() -> Iterator[Noted]:
    """Every module, its names, and what of them is noted: functions, classes, modules. Of the library and of the tests'
    own programs the classes too."""
    yield "sys", vars(sys), [_note("modules", sys.modules)]
    modules = {
        name: module
        for name, module in list(sys.modules.items())
        if "." not in name or name.partition(".")[0] not in _LARGE
    }
    yield "sys.modules", sys.modules, [_note(name, module) for name, module in modules.items()]
    for where, module in modules.items():
        names = vars(module)
        noted = {name: value for name, value in names.items() if callable(value) or isinstance(value, ModuleType)}
        yield where, names, [_note(name, value) for name, value in noted.items()]
        if where.partition(".")[0] != "ep_lib" and not where.startswith(PIECE_MODULE):
            continue
        for name, value in noted.items():
            if isinstance(value, type) and value.__module__ == where:
                yield f"{where}.{name}", vars(value), [_note(inner, each) for inner, each in vars(value).items()]


def _note(name: str, value: Any) -> _Note:
    return (
        (name, value, value.__code__, value.__defaults__)
        if isinstance(value, FunctionType)
        else (name, value, None, None)
    )
