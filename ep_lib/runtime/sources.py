"""Calls of main whose result may differ between runs: clocks, random numbers, files, addresses, other threads.

An exhaustive check has to repeat each run up to some place. It compares what hosts launch and what kernels read
(emulator/runtime/exploration.hpp), which shows most differences; but a clock may return equal values for the whole
check. So the interpreter's profiler watches calls of such functions in the ranks' threads while main runs. Calls inside
ep_lib and during imports do not count. Seeded generators are as good as constants.
"""

from __future__ import annotations

import _thread
import builtins
import contextlib
import datetime
import importlib
import io
import os
import random
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

from ep_lib.callers import is_ours, place

_CLOCK, _RANDOM, _FILE = "a clock", "random numbers", "a file"
_ADDRESS, _OTHERS = "addresses or hashes", "other threads"

_TIMES = (
    *("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time"),
    *("process_time_ns", "thread_time", "thread_time_ns", "clock_gettime", "clock_gettime_ns", "localtime", "gmtime"),
    *("ctime", "strftime"),
)

# Functions that the profiler sees. For clocks and addresses only direct calls by the user's program count: libraries
# use them for timing and locks.
_DIRECT: dict[Any, str] = {
    **{getattr(time, name): _CLOCK for name in _TIMES if hasattr(time, name)},
    os.times: _CLOCK,
    datetime.datetime.now: _CLOCK,
    datetime.datetime.utcnow: _CLOCK,
    datetime.datetime.today: _CLOCK,
    datetime.date.today: _CLOCK,
    builtins.id: _ADDRESS,
    builtins.hash: _ADDRESS,
}
_ANY: dict[Any, str] = {
    os.urandom: _RANDOM,
    io.open: _FILE,
    os.open: _FILE,
    **{
        getattr(_thread, name): _OTHERS
        for name in ("start_new_thread", "start_joinable_thread")
        if hasattr(_thread, name)
    },
    **({os.getrandom: _RANDOM} if hasattr(os, "getrandom") else {}),
    **({os.fork: "other processes"} if hasattr(os, "fork") else {}),
}
_IMPORTS = ("<frozen importlib", "<frozen zipimport")
_HARMLESS = ("linecache.py", "tokenize.py", "traceback.py")  # they open sources
_LIBRARIES = tuple(sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))

_SEED = random.Random.seed.__code__
# The generator behind random.random() and similar functions
_SHARED = random.random.__self__  # type: ignore[attr-defined]


class Sources:
    """Nondeterministic calls of main in a check so far. ``asked``: ends of sentences, such as "a clock (perf_counter at
    x.py:12)"."""

    def __init__(self) -> None:
        self.asked: set[str] = set()
        # Generators whose numbers are the same in each run; None: not known yet.
        self.seeded: frozenset[str] | None = None
        # The process-wide generators: the names of those used, and the states of all after a run.
        self.drawn: set[str] = set()
        self.states: dict[str, Any] = {}
        self._lines: dict[str, str] = {}  # lines that use them, as far as the profiler sees
        self._before: dict[str, Any] = {}

    # ---- calls that are watched ---------------------------------------------------------------------------------
    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watches this thread's calls."""
        other = sys.getprofile()
        sys.setprofile(self._called if other is None else _both(self._called, other))
        try:
            yield
        finally:
            sys.setprofile(other)

    def _called(self, frame: FrameType, event: str, function: Any) -> None:
        if event != "c_call":
            return
        kind = _ANY.get(function)
        if kind is None:
            kind = _DIRECT.get(function)
            if kind is not None:
                if _is_of_user(frame):
                    self._note(kind, function.__name__, frame)
            elif function.__name__ == "seed" and frame.f_code is _SEED and frame.f_locals["a"] is None:
                self._blame(_RANDOM, "a generator without a seed", frame)
            elif getattr(function, "__self__", None) is _SHARED and "random" not in self._lines:
                caller: FrameType | None = frame
                while caller is not None and not _is_of_user(caller):
                    caller = caller.f_back
                if caller is not None:
                    self._lines["random"] = f" at {place(caller.f_code.co_filename, caller.f_lineno)}"
            return
        self._blame(kind, function.__name__, frame)

    def _blame(self, kind: str, name: str, frame: FrameType) -> None:
        """The line of the user's program that led there, unless ep_lib or an import did."""
        caller: FrameType | None = frame
        while caller is not None:
            file = caller.f_code.co_filename
            if is_ours(caller) or file.startswith(_IMPORTS) or file.endswith(_HARMLESS):
                return
            if _is_of_user(caller):
                return self._note(kind, name, caller)
            caller = caller.f_back

    def _note(self, kind: str, name: str, frame: FrameType) -> None:
        self.asked.add(f"{kind} ({name} at {place(frame.f_code.co_filename, frame.f_lineno)})")

    # ---- generators that all of a process share -------------------------------------------------------------------
    def begin(self) -> None:
        """Call before a run."""
        self._before = _generators()

    def take(self) -> None:
        """Call after a run. Only calm runs show whether a generator that was used is seeded."""
        self.states = _generators()
        drawn = {name for name, state in self.states.items() if state != self._before.get(name, state)}
        self.drawn |= drawn
        if self.seeded is not None:
            self._blame_drawn(drawn - self.seeded)

    def learn(self, runs: Sequence[Sources]) -> None:
        """From several calm runs: a generator whose state is the same after each is seeded there."""
        drawn = set().union(*(run.drawn for run in runs))
        for run in runs:
            self.asked |= run.asked
            self._lines |= run._lines
        self.seeded = frozenset(n for n in drawn if all(run.states[n] == runs[0].states[n] for run in runs))
        self._blame_drawn(drawn - self.seeded)

    def _blame_drawn(self, names: Iterable[str]) -> None:
        self.asked |= {f"{_RANDOM} (of {name}{self._lines.get(name, '')}, without a seed)" for name in names}


def _is_of_user(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return not (file.startswith(_LIBRARIES) or file.startswith("<frozen") or is_ours(frame))


def _both(one: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
    def call(frame: FrameType, event: str, function: Any) -> None:
        one(frame, event, function)
        other(frame, event, function)

    return call


def _generators() -> dict[str, Any]:
    """The states of the generators of imported modules."""
    numpy_random = importlib.import_module("numpy.random")  # first, so that it is there before the first run
    _, keys, *rest = numpy_random.get_state()
    states: dict[str, Any] = {"random": random.getstate(), "numpy.random": (keys.tobytes(), rest)}
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_rng_state"):
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states
