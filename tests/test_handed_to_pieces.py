"""What a piece in Python is handed leads, by public names, to nothing of the grader's but what its description says."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import pytest

from ep_lib import Kernel, Rank, nixl
from ep_lib.errors import EpError
from ep_lib.workshop import hidden, seal
from ep_lib.workshop.exercises import Exercise, find, names
from ep_lib.workshop.pieces import PIECE_MODULE, load
from ep_lib.workshop.scenario import Call

DEPTH = 4
PLAIN = (int, float, str, bytes, bytearray, type(None), np.generic, np.ndarray, np.dtype, Path)
OF_A_RANK = {"rank", "world_size", "backend", "xp", "heap_bytes", "is_closed"}
# A file that takes what it is handed, whatever it is called by.
SPY = """
from handed import note
def __getattr__(name):
    if name.startswith("_"): raise AttributeError(name)
    return lambda *given, **named: note([given, named])
"""
PYTHON = [name for name in names() if find(name).pieces[0].endswith(".py")]


class Seen(EpError):
    """The piece has looked, and does no more."""


def reached(thing: Any, depth: int = DEPTH, way: str = "") -> Iterator[tuple[str, Any]]:
    """What can be had from ``thing`` by names without a leading underscore, and by items; and the way to it."""
    yield way, thing
    if depth == 0 or isinstance(thing, (*PLAIN, ModuleType)) or type(thing).__module__.startswith("torch"):
        return
    items = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, (list, tuple)) else ()
    for number, each in enumerate(list(items)[:8]):
        yield from reached(each, depth - 1, f"{way}[{number}]")
    for name in dir(thing):
        if name.startswith("_"):
            continue
        try:
            found = getattr(thing, name)
        except Exception:  # noqa: BLE001 - a property that needs more than this: it gives nothing
            continue
        if not isinstance(found, BuiltinFunctionType):
            yield from reached(found, depth - 1, f"{way}.{name}")


def of_the_grader(thing: Any) -> bool:
    module = str(getattr(thing if callable(thing) else type(thing), "__module__", ""))
    return module.startswith((PIECE_MODULE, "ep_lib.workshop"))


def undue(handed: Any, secret: tuple[Any, ...], described: set[str]) -> Iterator[str]:
    """Ways from ``handed`` to what a piece should not get."""
    for way, thing in reached(handed):
        name = way.rpartition(".")[2].partition("[")[0]
        if isinstance(thing, (functools.partial, seal.Followed, seal.Travels)) or any(thing is one for one in secret):
            yield f"{way}: {type(thing).__name__}"
        elif isinstance(thing, ModuleType) and thing is not np:
            yield f"{way}: a module"
        elif isinstance(thing, Rank) and vars(thing).keys() != OF_A_RANK:
            yield f"{way}: a rank with {vars(thing).keys() - OF_A_RANK}"
        elif isinstance(thing, Kernel):
            if type(thing) is not seal.HandedKernel or vars(thing).keys() - {"name"}:
                yield f"{way}: {type(thing)}"
        elif isinstance(thing, (FunctionType, MethodType)) and of_the_grader(thing) and "." in way:
            if name not in described:
                yield f"{way}: a function of the grader's that no description has"
        elif of_the_grader(thing) and not callable(thing):
            others = {each for each in dir(thing) if not each.startswith("_")} - described
            if others:
                yield f"{way}: {type(thing).__name__} with {others}"


def calls(exercise: Exercise) -> Iterator[Call]:
    """One for each function of the grader's that hands something to a piece, and for each of the piece's own."""
    tests = hidden.load(exercise.name, public=False)
    seen = set()
    for behaviour in tests.behaviours:
        case = next(iter(behaviour.cases(np.random.default_rng(1))))
        assert isinstance(case.scenario, Call)
        if (behaviour.task, case.scenario.function) not in seen:
            seen.add((behaviour.task, case.scenario.function))
            yield case.scenario


@pytest.mark.slow
@pytest.mark.parametrize("name", PYTHON)
def test_nothing_of_the_grader_is_in_reach(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exercise = find(name)
    spy = tmp_path / exercise.pieces[0]
    spy.write_text(SPY)
    text = (exercise.exercise_dir / exercise.pieces[0]).read_text("utf-8")
    described = set(re.findall(r"\w+", text)) | set(dir(nixl.DeviceHost))
    found: list[str] = []
    looked = 0
    secret: tuple[Any, ...] = ()

    def note(handed: Any) -> None:
        nonlocal looked
        looked += 1
        found.extend(undue(handed, secret, described))
        raise Seen("enough")

    handed = ModuleType("handed")
    vars(handed)["note"] = note
    monkeypatch.setitem(sys.modules, "handed", handed)
    for call in calls(exercise):
        program = load(Path(call.program))
        kept = None if call.kept is None else program.Kept(**call.kept)

        def ask(name: str, *given: Any, kept: Any = kept) -> Any:
            return getattr(kept, name)(*given)

        secret = (ask, program) if kept is None else (ask, program, kept)
        with contextlib.suppress(EpError):
            getattr(program, call.function)(load(spy), **({} if kept is None else {"ask": ask}), **call.arguments)
    assert looked >= len({task.number for task in exercise.tasks}) // 2
    assert not found, found


class Harness:
    def __init__(self, ask: Callable[..., Any]) -> None:
        self.head = 3
        self.post = functools.partial(ask, "post")


Harness.__module__ = f"{PIECE_MODULE}play"


def test_the_ways_that_once_were_there_are_found() -> None:
    def ask(*given: Any) -> None: ...

    assert list(undue([functools.partial(ask, "x")], (ask,), set())) == ["[0]: partial", "[0].func: function"]
    ways = list(undue({"ring": Harness(ask)}, (ask,), {"post"}))
    assert ways == ["[0]: Harness with {'head'}", "[0].post: partial", "[0].post.func: function"]
