"""The grader's half of a process in which a learner's Python runs, and whether it is still as it was.

A piece in Python is called by a function of the grader's in the same interpreter, and could put another function in
the place of the library's. :func:`noted` notes, before any piece is imported, what each name of the process's modules
stands for; the function that :func:`put_on` returns raises :class:`Tampered` once a name stands for something else.
What looks through the whole process, as ``gc.get_objects()`` does, what reads frames, and what makes code of text or
data is refused from then on, by an audit hook (PEP 578), which nothing in Python takes off again.

The words for reaching further are refused in a piece's text before it runs (:mod:`ep_lib.workshop.reaching`). Where
one is missing there, the hook still stands between a piece and the frames with the grader's records.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import os
import sys
import sysconfig
import threading
import typing
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np

from ep_lib.errors import EpError
from ep_lib.jit.kernel import Kernel
from ep_lib.require import index
from ep_lib.runtime.check import check
from ep_lib.runtime.rank import Rank
from ep_lib.workshop.pieces import PIECE_MODULE
from ep_lib.workshop.scenario import CHECKER_IS_OFF

_MOST_NOTED = 4096  # bytes of an array that a kernel is given
_LARGE = frozenset(("torch", "sympy", "scipy"))  # of these, what their public names stand for
_LOOK_THROUGH = frozenset(
    ("gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys._current_frames", "sys._current_exceptions")
)
_MAKES_CODE = frozenset(
    ("compile", "exec", "code.__new__", "function.__new__", "marshal.load", "marshal.loads", "pickle.find_class")
)
_FRAMES_OF = frozenset(("tb_frame", "gi_frame", "cr_frame", "ag_frame"))
_IMPORT = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
# These make code for a class, or ask who calls. None of them calls what it is handed, or hands on a frame.
_MAKERS = frozenset(module.__file__ for module in (collections, dataclasses, enum, typing, warnings))
_LIBRARY = str(Path(__file__).parents[1]) + os.sep
_INSTALLED = ("<frozen ", *(sysconfig.get_path(which) + os.sep for which in ("stdlib", "purelib", "platlib")))
_TRACES = frozenset(("sys.settrace", "sys.setprofile", "sys.monitoring.register_callback"))


class Tampered(EpError):
    """A piece has changed what is not its own, or looked through the grader's process."""


def put_on(before: Sequence[Noted], *, may_trace: bool = False) -> Callable[[], None]:
    """Returns what raises Tampered if a name stands for something else than :func:`noted` has noted ``before``.

    ``may_trace``: whether the grader's half follows the learner's lines itself, as that of the puzzles does."""
    refuses = _LOOK_THROUGH if may_trace else _LOOK_THROUGH | _TRACES
    refused: list[str] = []
    gone = object()

    looking = threading.local()
    frame_of = sys._getframe

    def is_known(event: str) -> bool:
        """Whether the function that the event comes from may cause it: a maker, the library, the import of a module,
        and what these two call. A function that a piece has called may not, however many calls lie between."""
        looking.now = True  # what follows is an event itself
        try:
            frame: FrameType | None = frame_of(2)
        finally:
            looking.now = False
        file = frame.f_code.co_filename if frame else ""
        if file in _MAKERS:
            return True
        if file.startswith(_LIBRARY) and event in ("compile", "exec") and not may_trace:
            return False  # it makes none itself, and was handed something that does
        while frame is not None:
            file = frame.f_code.co_filename
            if file in _IMPORT or file.startswith(_LIBRARY):
                return True
            if not file.startswith(_INSTALLED):
                return False
            frame = frame.f_back
        return False

    def watch(event: str, given: Any) -> None:
        if event not in refuses and getattr(looking, "now", False):
            return
        reads_frame = event == "sys._getframe" or (event == "object.__getattr__" and given[1] in _FRAMES_OF)
        if event not in refuses and (not (reads_frame or event in _MAKES_CODE) or is_known(event)):
            return
        refused.append(f"{event}()" if event != "object.__getattr__" else given[1])
        raise _tampered(refused[-1], "looks through the process that grades it")

    def require() -> None:
        if refused:
            raise _tampered(refused[0], "looks through the process that grades it")
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


class Travels:
    """The half of a test's ``Kept`` that knows what kernels carried: which bytes each of them was given to send to a
    peer, and which lay where it was to find those of a peer. And which methods of Rank were called in which ranks meet.
    """

    def __init__(self) -> None:
        self._carried: list[tuple[str, int, int, str]] = []
        self._met = Counter[str]()

    def carried(self, what: str, rank: int, peer: int, data: str) -> None:
        self._carried.append((what, rank, peer, data))

    def met(self, name: str) -> None:
        self._met[name] += 1

    def seen(self, told: Any) -> dict[str, Any]:
        return {"told": told, "carried": self._carried, "met": self._met}


class Followed:
    """Kernels that are followed for :class:`Travels`. Ranks are threads of one process: what reaches the next rank by a
    variable, no kernel has carried. ``source`` has a kernel ``note(from, bytes, to)`` too."""

    def __init__(self, source: str, ask: Callable[..., Any]) -> None:
        self._source, self._ask = source, ask
        self._note = Kernel.from_source(source, "note")
        self._copies: dict[int, list[tuple[str, int, Any]]] = defaultdict(list)
        self._is_over = False

    def kernel(
        self,
        name: str,
        peer_at: int,
        sends: tuple[int, int, int] | None = None,
        receives: tuple[int, int, int] | None = None,
    ) -> Kernel:
        """The kernel ``name``, whose argument ``peer_at`` is the peer. ``sends`` and ``receives``: the positions of an
        array and of a number of its elements, and the bytes of one. What is received may be read otherwise as well, so
        all of that array is of interest."""

        def follow(rank: Rank, args: tuple[Any, ...], what: str, places: tuple[int, int, int] | None) -> None:
            if places is None or self._is_over or len(args) <= max(peer_at, *places[:2]):
                return
            array, count, peer = args[places[0]], index(args[places[1]]), index(args[peer_at])
            told = places[2] * (count or 0)
            there = getattr(array, "nbytes", told)  # else it is an address
            size = min(there if what == "received" else min(there, told), _MOST_NOTED)
            if peer is None or size < 1:
                return
            with contextlib.suppress(EpError):  # the launch itself says what is wrong
                copy = rank.empty(size, np.uint8)
                self._note.launch(rank, 1, 32, array, size, copy)
                self._copies[rank.rank].append((what, peer, copy))

        class Told(Kernel):
            def launch(self, rank: Any, grid: Any, block: Any, *args: Any, **options: Any) -> None:
                follow(rank, args, "sent", sends)  # before: peers that have got it may write there
                super().launch(rank, grid, block, *args, **options)
                follow(rank, args, "received", receives)

        return Told.from_source(self._source, name)

    def meetings_of(self, rank: Rank) -> None:
        """From now on, tells when this rank calls barrier() or all_gather()."""

        def meet(name: str, real: Callable[..., Any], *args: Any) -> Any:
            if not self._is_over:
                self._ask("met", name)
            return real(*args)

        for name in ("barrier", "all_gather"):
            setattr(rank, name, partial(meet, name, getattr(rank, name)))

    def tell(self, rank: Rank) -> None:
        """What the kernels of this rank have carried so far, once they are done."""
        for what, peer, copy in self._copies.pop(rank.rank, []):
            self._ask("carried", what, rank.rank, peer, rank.to_host(copy).tobytes().hex())

    def over(self) -> None:
        """What is launched from now on carries nothing."""
        self._is_over = True


def has_carried(carried: Any, what: str, rank: int, peer: int, wanted: bytes) -> bool:
    """Whether :class:`Travels` has seen ``wanted``: all at once or in parts, each of them a quarter of it at least."""
    left = bytearray(len(wanted))  # 1: seen
    for kind, one, other, text in carried:
        if (kind, one, other) != (what, rank, peer):
            continue
        part = bytes.fromhex(text)
        if wanted in part:
            return True
        if 4 * len(part) >= len(wanted) and (at := wanted.find(part)) >= 0:
            left[at : at + len(part)] = bytes([1]) * len(part)
    return all(left)


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
