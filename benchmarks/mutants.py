"""How many wrong answers the hidden tests let through: every solution, mutated, graded by the tests of its own tasks.

    python benchmarks/mutants.py [EXERCISE ...] [--most 100] [--check] [--list] [--json FILE]

A mutant is a solution with one small change (mutate.py). It is killed if a hidden test of the task that it is part of
fails. Some changes make no difference: those stand in mutants_equivalent.toml, each with the reason, and are not run.
The others that live are shown, and the exit status is 1 if they are more than 3 % of an exercise's mutants.
With ``--check`` it is about the public checks: a mutant lives if they say "ok" and the hidden tests find it.

Grading compiles for a second or two, so all mutants of a piece become one program: a chain of ``if`` in each hole, over
the number in $EP_MUTANT, compiled once. Every mutant runs in a fork of this process, without walls: its code is ours.
The judging is the grader's own.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import resource
import secrets
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import mutate

from ep_lib.jit import gxx, toolkit, tools
from ep_lib.jit.source import KernelSource
from ep_lib.workshop import exercises, hidden
from ep_lib.workshop.exercises import Exercise
from ep_lib.workshop.grader import grading
from ep_lib.workshop.grader.kernels import kernel_of
from ep_lib.workshop.grader.process import runner
from ep_lib.workshop.grader.process.guest import Nursery
from ep_lib.workshop.grader.process.sandbox import Limits, Sandbox
from ep_lib.workshop.grader.scenario import FRAME, Scenario, frame_sizes

_REGION = re.compile(r"^ *(?://|#) EXERCISE-BEGIN (\w+)\n(.*?)^ *(?://|#) EXERCISE-END \1\n", re.MULTILINE | re.DOTALL)
_NUMBER = "EP_MUTANT"
_CHOOSE = f"""
#ifndef EP_MUTANT_NUMBER
#define EP_MUTANT_NUMBER
#include <stdlib.h>
inline int ep_mutant_number() {{ return atoi(getenv("{_NUMBER}")); }}
#endif
"""
_EQUIVALENT = Path(__file__).with_name("mutants_equivalent.toml")
_ALLOWED = 0.03  # of an exercise's mutants may live
_TIMEOUT_S = 1.0  # of a scenario: enough for a right answer, and most of the time goes into those that hang
_REQUEST_S = 8.0  # CPU time of a request, before the process is ended
_CPU_S = 120  # of a mutant in all


class Candidate(NamedTuple):
    """A mutant of an exercise: which hole of which piece, and the whole hole's new text."""

    piece: str
    at: str
    what: str
    code: str
    number: int  # from 1

    @property
    def name(self) -> str:
        return f"hole {self.at}, {self.what}"


class _Here:
    """Stands in for a Sandbox: answers in this process."""

    running = True
    output = b""
    import_cpu_s = 0.0

    def __init__(self, answering: runner.Runner) -> None:
        self._runner = answering

    def ask(self, request: Mapping[str, Any], *, reply_bytes: int, seconds: float) -> tuple[bytes, bytes]:
        signal.setitimer(signal.ITIMER_PROF, _REQUEST_S)  # its signal ends the process
        if isinstance(request.get("run"), Scenario):
            shorter = min(_TIMEOUT_S, request["run"].timeout_s)
            request = {**request, "run": replace(request["run"], timeout_s=shorter)}
        frame = self._runner.answer(request)
        header, _ = frame_sizes(frame[: FRAME.size], reply_bytes)
        text = frame[FRAME.size :]
        return text[:header], text[header:]

    def end(self) -> None:
        """Nothing to end: the process of the mutant ends anyway."""


def candidates(exercise: Exercise) -> list[Candidate]:
    """All mutants of all holes, whether they compile or not."""
    found: list[tuple[str, str, mutate.Mutant]] = []
    for piece in exercise.pieces:
        text = (exercise.solution_dir / piece).read_text("utf-8")
        for region in _REGION.finditer(text):
            before = text[text.rfind("\n\n", 0, region.start()) : region.start()]
            changes = mutate.mutants(region[2], before, python=piece.endswith(".py"))
            found += [(piece, region[1], each) for each in changes]
    return [Candidate(piece, at, *mutant, number) for number, (piece, at, mutant) in enumerate(found, 1)]


def _some(of: Sequence[Candidate], most: int) -> list[Candidate]:
    """About ``most`` of them, of each hole as many as its share."""
    holes = dict.fromkeys(each.at for each in of)
    by_hole = [[each for each in of if each.at == at] for at in holes]
    return [one for hole in by_hole for one in mutate.some(hole, -(-most * len(hole) // len(of)))]


def _write(
    exercise: Exercise, folder: Path, all_of_them: Sequence[Candidate], one: Candidate | None = None
) -> dict[int, int]:
    """Writes the pieces: of C++ with all mutants to choose from, of Python with ``one``. Line in a file -> mutant."""
    lines: dict[int, int] = {}
    for piece in exercise.pieces:
        text = (exercise.solution_dir / piece).read_text("utf-8")
        python = piece.endswith(".py")
        if not python:
            at = text.index("\n", text.index("#")) + 1  # behind #pragma once, or the first #include
            text = text[:at] + _CHOOSE + text[at:]

        def hole(region: re.Match[str], piece: str = piece, python: bool = python) -> str:
            mine = [each for each in all_of_them if (each.piece, each.at) == (piece, region[1])]
            if python:
                return one.code if one in mine and one is not None else region[2]
            tries = "".join(f"if (n == {each.number}) {{ // MUTANT {each.number}\n{each.code}}} else " for each in mine)
            return f"const int n = ep_mutant_number();\n{tries}{{ // MUTANT 0\n{region[2]}}} // MUTANT 0\n".replace(
                "const int n", f"const int ep_n_{region[1]}"
            ).replace("if (n ==", f"if (ep_n_{region[1]} ==")

        text = _REGION.sub(hole, text)
        if not python:  # inlined, a function of 20 mutants in one of 20 others would be compiled 400 times
            text = text.replace("EP_DEVICE", "inline __attribute__((noinline))")
        (folder / piece).parent.mkdir(parents=True, exist_ok=True)
        (folder / piece).write_text(text, "utf-8")
        now = 0
        for number, line in enumerate(text.splitlines(), 1):
            marked = re.search(r"// MUTANT (\d+)", line)
            now = int(marked[1]) if marked else now
            if now:
                lines[number] = now
    for name in exercise.also:
        (folder / name).write_bytes((exercise.exercise_dir / name).read_bytes())
    return lines


def _compiling(exercise: Exercise, tests: hidden.HiddenTests, some: list[Candidate], folder: Path) -> list[Candidate]:
    """Those that compile."""
    if exercise.pieces[0].endswith(".py"):
        return [each for each in some if _is_python(exercise, each)]
    while True:
        lines = _write(exercise, folder, some)
        wrong: set[int] = set()
        for source, kernel in tests.kernels:
            closed = kernel_of(Path(source), kernel, folder, exercise.given).closed
            assert closed is not None, source
            wrong |= _wrong_lines(closed, folder, lines)
        if not wrong:
            return some
        some = [each for each in some if each.number not in wrong]


def _is_python(exercise: Exercise, mutant: Candidate) -> bool:
    text = (exercise.solution_dir / mutant.piece).read_text("utf-8")
    changed = _REGION.sub(lambda region: mutant.code if region[1] == mutant.at else region[2], text)
    try:
        compile(changed, mutant.piece, "exec")
    except SyntaxError:
        return False
    return True


def _wrong_lines(piece: KernelSource, folder: Path, lines: Mapping[int, int]) -> set[int]:
    """The mutants in which the compiler finds errors."""
    plan = gxx._plan(piece, (), toolkit.EMULATED_TRANSPORT)
    includes = [f"-I{root}" for root in plan.roots]
    for root in plan.system_roots:
        includes += ["-isystem", str(root)]
    with tempfile.TemporaryDirectory() as work:
        unit = Path(work) / "unit.cpp"
        unit.write_text(plan.unit, "utf-8")
        flags = [flag for flag in plan.flags if not flag.startswith("-fmax-errors")]
        prelude = gxx._precompiled(plan.compiler, plan.prelude, plan.uses_cpp_library)
        options = [*flags, "-fsyntax-only", "-fmax-errors=0", *prelude, *includes]
        status, log = tools.run([plan.compiler.path, *options, str(unit)])
    if status == 0:
        return set()
    places = re.findall(rf"{re.escape(str(folder))}/\S+?:(\d+):", log)
    wrong = {lines[int(place)] for place in places if int(place) in lines} - {0}
    if not wrong:
        raise SystemExit(f"the program of all mutants does not compile, and no mutant is to blame:\n{log[:3000]}")
    return wrong


def _fate(exercise: Exercise, mutant: Candidate | None, folder: Path, tests: hidden.HiddenTests) -> str:
    """What the first failing test says, in a process of its own; "" if all pass."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        code = 1
        try:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            spent = int(time.process_time())
            resource.setrlimit(resource.RLIMIT_CPU, (spent + _CPU_S, spent + _CPU_S))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.environ[_NUMBER] = str(mutant.number if mutant else 0)
            os.write(write, pickle.dumps(_judged(exercise, mutant, folder, tests)))
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return f"ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return str(pickle.loads(said)) if said else "the process ended"


def _here(exercise: Exercise, folder: Path) -> Sandbox:
    nursery = Nursery()
    nursery.start(folder, None, ())
    return cast(Sandbox, _Here(runner.Runner(folder, *exercise.given, nursery=nursery)))


def _judged(exercise: Exercise, mutant: Candidate | None, folder: Path, tests: hidden.HiddenTests) -> str:
    if mutant is not None and mutant.piece.endswith(".py"):
        folder = Path(tempfile.mkdtemp(dir=folder.parent))
        _write(exercise, folder, [mutant], mutant)
    here = _here(exercise, folder)
    problem, *_ = grading._compile(exercise, here, tests, Limits(), folder.parent)
    if problem:
        return problem
    wanted = {hole.task for hole in exercise.holes if mutant is None or hole.at == mutant.at}
    for task in exercise.tasks:
        if task.number in wanted:
            seed = secrets.randbits(grading.SEED_BITS)
            found = grading._grade_task(exercise, task, tests.behaviours, here, Limits(), folder.parent, seed)
            if not found.passed:
                return f"{found.behaviour}: {found.message}"
    return ""


def _equivalent(exercise: Exercise) -> list[str]:
    """Regular expressions for how the names of those mutants begin that make no difference."""
    groups = tomllib.loads(_EQUIVALENT.read_text("utf-8")).get(exercise.name, [])
    return [mutant for group in groups if group["reason"] for mutant in group["mutants"]]


def examine(name: str, most: int, only: str = "", *, check: bool = False) -> dict[str, Any]:
    """The row of one exercise; says what lives."""
    exercise = exercises.find(name)
    tests = hidden.load(exercise.name, public=check)
    stricter = hidden.load(exercise.name, public=False)
    equivalent = _equivalent(exercise)
    everything = candidates(exercise)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ep_mutants_") as work:
        folder = Path(work) / "mine"
        folder.mkdir()
        some = _some(_compiling(exercise, tests, everything, folder), most)
        _write(exercise, folder, [] if exercise.pieces[0].endswith(".py") else some)
        known = [each for each in some if any(re.match(listed, each.name) for listed in equivalent)]
        stale = {listed for listed in equivalent if not any(re.match(listed, each.name) for each in everything)}
        os.environ[_NUMBER] = "0"
        if problem := _compiled(exercise, folder, tests) or _fate(exercise, None, folder, tests):
            raise SystemExit(f"{exercise.name}: the solution itself fails: {problem}")
        run = [each for each in some if each not in known and only in each.name]
        fates = [(each, _fate(exercise, each, folder, tests)) for each in run]
        if check:
            fates = [(each, fate or not _fate(exercise, each, folder, stricter)) for each, fate in fates]
    alive = [each for each, fate in fates if not fate]
    for each in alive:
        print(f"  lives: {exercise.name}: {each.name}")
    for each in sorted(stale):
        print(f"  listed as equivalent, but there is no such mutant: {exercise.name}: {each}")
    return {
        "exercise": exercise.name,
        "mutants": len(run) + len(known),
        "killed": len(run) - len(alive),
        "equivalent": len(known),
        "alive": len(alive),
        "seconds": round(time.monotonic() - began),
    }


def _compiled(exercise: Exercise, folder: Path, tests: hidden.HiddenTests) -> str:
    here = _here(exercise, folder)
    return grading._compile(exercise, here, tests, Limits(), folder.parent)[0]


def main() -> int:
    gxx.require_calls_of_kernels = gxx.require_no_addresses = lambda *_: None  # getenv() is no kernel's own
    os.environ["EP_LIB_CUDA_RULES"] = "0"  # nor is it any GPU's
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("exercise", nargs="*", help="default: all")
    parser.add_argument(
        "--most", type=int, default=100, help="mutants of an exercise, before those that do not compile"
    )
    parser.add_argument("--only", default="", help="mutants whose name has this in it")
    parser.add_argument("--check", action="store_true", help="which mutants do the public checks let through")
    parser.add_argument("--list", action="store_true", help="show the mutants, run none")
    parser.add_argument("--json", type=Path, help="write the table there")
    options = parser.parse_args()
    rows = []
    for name in options.exercise or exercises.names():
        if options.list:
            for each in candidates(exercises.find(name)):
                print(each.name)
            continue
        row = examine(name, options.most, options.only, check=options.check)
        rows.append(row)
        told = "{exercise:<18} {mutants:>4} mutants {killed:>4} killed {equivalent:>3} equivalent {alive:>3} alive"
        print(told.format(**row), f"{row['seconds']:>4} s", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", "utf-8")
    return int(any(row["alive"] > _ALLOWED * (row["mutants"] - row["equivalent"]) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
