"""Grades a learner's piece: the hidden tests in this process, the piece itself in a child process with limits."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import ep_lib
from ep_lib.errors import ArgumentError, GradingError, KernelCompileError
from ep_lib.jit import cache as compile_cache
from ep_lib.jit import cuda_rules, pieces, sealed
from ep_lib.jit.gxx import HALF
from ep_lib.jit.kernel import Kernel
from ep_lib.jit.toolkit import find_compiler
from ep_lib.processes import home_folder, run, temporary_folder
from ep_lib.require import a_path, flag, instance, refuse
from ep_lib.workshop.course.generate import another_version, version_of, without_version
from ep_lib.workshop.exercises import Exercise, Task, find
from ep_lib.workshop.grader.feedback import STILL_TO_DO, advice_for, failure_text, says_all, what_failed
from ep_lib.workshop.grader.kernels import CALLS, compile_halves, kernel_of
from ep_lib.workshop.grader.process.sandbox import (
    ChildFailed,
    ChildKilled,
    ChildTookTooLong,
    ChildUsedItsTime,
    Limits,
    Sandbox,
    Walls,
)
from ep_lib.workshop.grader.process.walls import beneath, missing
from ep_lib.workshop.grader.reading import Unreadable, read
from ep_lib.workshop.grader.scenario import (
    CHECKER_IS_OFF,
    BadReply,
    Call,
    Failure,
    InputWasChanged,
    Outputs,
    Scenario,
    unpack_outputs,
)
from ep_lib.workshop.grader.submission import copy_pieces, not_text
from ep_lib.workshop.grader.watched import look_through, unwatched
from ep_lib.workshop.hidden import Behaviour, HiddenTests, load

SCHEMA = 1  # of Grade.as_json
SEED_BITS = 40  # of a grading's seed: hard to guess, short enough to copy
# Kinds of failures that a lack of time, memory or disk can also cause.
_OF_CPU = ("KernelTimeout", "timeout", ChildUsedItsTime.__name__)  # limits of CPU time
_OF_TIME = (ChildUsedItsTime.__name__, ChildTookTooLong.__name__)
_MAY_BE_THE_MACHINES = (
    *(*_OF_CPU, *_OF_TIME, ChildKilled.__name__, "BackendUnavailable"),
    *("MemoryError", "_ArrayMemoryError", "OSError", "BlockingIOError"),
)
_MOST_RECORDED = 64 << 20  # bytes of a recording
_SHOWN = 2000  # characters of the learner's output
_REPEATED = re.compile(r"((?:.*\n){1,4}?)\1+")
_SHARED = ("runtime", "prelude", "support", HALF)  # entries of the compile cache shared by all submissions
# The parts of /etc that the loader and Debian's compilers need: as root, a submission could read all of /etc, even
# /etc/shadow.
_ETC = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime")
_SYSTEM = (*("/usr", "/bin", "/lib", "/lib32", "/lib64", "/dev/random", "/dev/urandom"), *_ETC)
_OF_A_PREFIX = ("bin", "lib", "lib64", "libexec", "include")
_OF_AN_INSTALLATION = re.compile(r"(?P<prefix>/.*?)/(?:lib\w*/(?:gcc|clang)|libexec/gcc)(?:/|$)")
_SHUT = re.compile(r"Permission denied|can't open .* for reading")  # a compiler's words for a file behind the walls
_PROC = ("/proc/self", "/proc/sys", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/filesystems")
_SLOW = "torch"  # imported once, outside of each test's time
_IMPORTS_SLOW = re.compile(rb"^\s*(?:import|from)\s+torch\b", re.MULTILINE)
_EMPTY_KERNEL = 'extern "C" __global__ void nothing() {}'
_NO_MEMORY = (
    "twice the process that runs your files got no memory from this machine, in no line of yours: no mark. Close "
    "other notebooks and programs (or raise `ulimit -d` and `ulimit -v`), and run this again"
)
_ENDLESS = ("DeadlockError", "LivelockError", "KernelTimeout")  # endings of a wait without a limit
_COMPILER_HOMES = ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX")
# Also passed to the child.
_COMPILER_SETTINGS = (*_COMPILER_HOMES, "EP_LIB_CUDA_RULES", "EP_LIB_CXX", "LD_LIBRARY_PATH")


@dataclass(frozen=True)
class TaskGrade:
    """Points of one task, all or none. ``behaviour`` and ``message`` describe a failure, and are empty if it passed."""

    task: Task
    passed: bool
    behaviour: str = ""
    message: str = ""
    timed_out: bool = False  # no answer within its limits, perhaps for lack of time, memory or disk
    used_cpu: bool = False  # it was CPU time: a retry would end the same
    # the failed one: see replaying.py
    scenario: Scenario | Call | None = field(default=None, repr=False, compare=False)

    @property
    def points(self) -> int:
        return self.task.points if self.passed else 0

    @property
    def unfinished(self) -> bool:
        """Whether the learner has not filled the hole yet."""
        return STILL_TO_DO in self.message


@dataclass(frozen=True, repr=False)
class Grade:
    """The result of :func:`grade` for one submission; true if it has full marks."""

    exercise: Exercise
    mine: Path
    tasks: tuple[TaskGrade, ...]
    seconds: float
    problem: str = ""  # why it could not run, for instance a compile error
    output: str = ""  # the learner's output, bounded
    public: bool = False  # only the notebook's checks ran
    flags: tuple[str, ...] = ()  # for the instructor to look at; costs no points
    seed: int = 0  # of the tests' inputs: reproduces them
    notes: tuple[str, ...] = ()  # about the files, for the learner; also in the flags

    @property
    def points(self) -> int:
        return sum(task.points for task in self.tasks)

    @property
    def full(self) -> bool:
        return self.points == self.exercise.points

    def __bool__(self) -> bool:
        return self.full

    def __repr__(self) -> str:
        if self.public:
            done = sum(each.passed for each in self.tasks)
            return f"<Grade {self.exercise.name}: {done} of {len(self.tasks)} tasks pass the public checks>"
        return f"<Grade {self.exercise.name}: {self.points} of {self.exercise.points} points>"

    def as_json(self) -> dict[str, Any]:
        """The documented form for programs (``ep-lib grade --json``, see docs in :mod:`ep_lib.commands.grade`)."""
        return {
            "schema": SCHEMA,
            "exercise": self.exercise.name,
            "mine": str(self.mine),
            "points": self.points,
            "of": self.exercise.points,
            "full": self.full,
            "seconds": round(self.seconds, 2),
            "seed": self.seed,
            "problem": self.problem or None,
            "flags": list(self.flags),
            "not_enforced": [*missing(), *unwatched()],
            "tasks": [
                {
                    "task": each.task.number,
                    "title": each.task.title,
                    "points": each.points,
                    "of": each.task.points,
                    "passed": each.passed,
                    "failed_behaviour": each.behaviour or None,
                    "message": each.message or None,
                    "timed_out": each.timed_out,
                    "used_cpu": each.used_cpu,
                }
                for each in self.tasks
            ],
        }


def _once_each(printed: str) -> str:
    """Lines that come several times in a row, as a warning of each run does, once, with their number."""
    return _REPEATED.sub(lambda found: f"{found[1]}({len(found[0]) // len(found[1])} times)\n", printed)


def as_text(result: Grade) -> str:
    """A grade as readable text."""
    lines = [f"Exercise {result.exercise.name}: {result.exercise.title}", ""]
    for each in result.tasks:
        mark = "ok  " if each.passed else "--  "
        points = "" if result.public else f"{each.points} of {each.task.points}  "
        lines.append(f"{mark}task {each.task.number}  {points}{each.task.title}")
        if not each.passed and not result.problem:
            if not each.unfinished:
                lines.append(f"      should hold: {each.behaviour}")
            lines += [f"      {line}" for line in each.message.splitlines()]
    if result.problem:
        lines += ["", "Nothing could be graded:", result.problem]
    lines += [line for note in result.notes for line in ("", f"Note: {note}")]
    if result.output and not result.full:
        lines += ["", "Your code printed:", _once_each(result.output)[:_SHOWN].rstrip()]
    if result.mine == result.exercise.exercise_dir:
        begin = f'workshop.start("{result.exercise.short_name}")'
        lines += [
            "",
            f"These are the exercise's own files, and none of yours: {begin} copies them to mine/, for you to edit.",
        ]
    where = f"({result.seconds:.1f} s, files in {result.mine})"
    if result.public:
        done = sum(each.passed for each in result.tasks)
        number = result.exercise.short_name
        lines += ["", f"{done} of {len(result.tasks)} tasks pass the public checks {where}"]
        points = f"`ep-lib grade {number}` runs all the tests and gives points."
        if sealed.in_use():
            points = f"Hand in mine/{result.exercise.name}: your instructor has the tests that give points."
        lines += [points] if result.full else []
    else:
        lines += ["", f"{result.points} of {result.exercise.points} points {where}"]
    return printable("\n".join(lines)) + "\n"


def printable(text: str) -> str:
    """``text`` without control characters: the learner's code must not send commands to the terminal."""
    return "".join(char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in text)


def default_mine(exercise: Exercise) -> Path:
    """The folder of the learner's files: ``mine/<name>`` if it exists, else ``exercises/<name>``."""
    own = exercise.root / "mine" / exercise.name
    return own if own.is_dir() else exercise.exercise_dir


def start(name: str | int, root: Path | None = None) -> Path:
    """Copies the exercise to ``mine/<name>`` for the learner to edit, unless it exists; returns the folder.

    Existing files are not changed. The course's ``ring.v2.cuh`` is put beside a file for another version of the
    exercise. Raises GradingError if the folder cannot be written.
    """
    exercise = find(name, root)
    own = exercise.root / "mine" / exercise.name
    try:
        for piece in (*exercise.pieces, *exercise.also):
            target = own / piece
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                _copy_new(exercise.exercise_dir / piece, target)
            elif piece in exercise.pieces and _version(target) != exercise.version:
                _copy_new(
                    exercise.exercise_dir / piece,
                    target.with_name(f"{target.stem}.v{exercise.version}{target.suffix}"),
                )
    except OSError as error:
        raise GradingError(
            f"{own} cannot be written ({error.strerror or error}): copy the workshop to a folder of your own, and set "
            "EP_LIB_WORKSHOP to it"
        ) from error
    return own


def _version(file: Path) -> int:
    return version_of(file.read_text(encoding="utf-8", errors="replace"))


def _copy_new(source: Path, target: Path) -> None:
    """Copies a file unless it exists: another notebook may copy it at the same time."""
    with contextlib.suppress(FileExistsError), target.open("xb") as file:
        file.write(source.read_bytes())


def grade(
    name: str | int,
    mine: Path | str | None = None,
    *,
    public: bool = False,
    limits: Limits | None = None,
    progress: Callable[[str], None] = lambda text: None,
    root: Path | None = None,
    seed: int | None = None,
    tasks: Sequence[int] = (),
    tests: Path | str | None = None,
) -> Grade:
    """Grades the pieces in ``mine`` (default: :func:`default_mine`) against exercise ``name``.

    ``public`` runs the notebook's small checks instead of the hidden tests. ``progress`` gets one line per task. Every
    wrong answer, including a crash or an endless loop, gives a grade; GradingError means that the grader could not
    work. ``seed``: a ``Grade.seed``, to repeat that grading's inputs; by default they are new. ``tasks``: grade only
    these. ``tests``: a folder with the hidden tests, for a release, which has none (ep_lib/workshop/hidden of a
    checkout of the same version).
    """
    began = time.monotonic()
    public = flag("public", public)
    if not callable(progress):
        refuse("progress", progress, "a function that takes a line of text")
    if limits is not None:
        instance("limits", limits, Limits, "an ep_lib.workshop.grader.process.sandbox.Limits")
    exercise = find(name, root)
    folder = _submission_folder(exercise, mine)
    hidden = load(exercise.name, public=public, folder=None if tests is None else a_path("tests", tests))
    return examine(exercise, folder, hidden, limits, progress, public=public, began=began, seed=seed, tasks=tasks)


def examine(
    exercise: Exercise,
    folder: Path,
    tests: HiddenTests,
    limits: Limits | None = None,
    progress: Callable[[str], None] = lambda text: None,
    *,
    public: bool = False,
    began: float | None = None,
    seed: int | None = None,
    tasks: Sequence[int] = (),
) -> Grade:
    """Runs ``tests`` on the pieces in ``folder``, in a separate process behind walls; ``seed`` and ``tasks`` as for
    :func:`grade`."""
    began = time.monotonic() if began is None else began
    seed = secrets.randbits(SEED_BITS) if seed is None else seed
    limits = limits or Limits()
    # here, since in the child it would count as the submission's time
    halves = _compile_what_all_share(exercise, tests)
    with temporary_folder("ep_grade_") as work:
        copy_pieces(exercise, folder, work / "mine")
        late = False, False
        refused, looks = "", []
        if not (problem := not_text(exercise, work / "mine")):
            try:
                refused, looks = read(look_through, exercise, work / "mine")
            except Unreadable as error:
                refused, late = str(error), _out_of_time(error.kind)
            problem = refused
        notes = _versions(exercise, work / "mine", public)
        _prepare_cache(work / "cache", halves)
        with _sandbox(exercise, tests, limits, work) as sandbox:
            if not problem:
                problem, kind, unwatched_accesses = _compile(exercise, sandbox, tests, limits, work)
                looks, late = [*looks, *unwatched_accesses], _out_of_time(kind)
            found = []
            for task in exercise.tasks:
                if tasks and task.number not in tasks:
                    continue
                if problem:
                    found.append(TaskGrade(task, False, "the files compile", problem, *late))
                    continue
                progress(f"task {task.number}: {task.title}")
                below = _wrong_below(task, found)
                found.append(_grade_task(exercise, task, tests.behaviours, sandbox, limits, work, seed, below))
            output = sandbox.output.decode(errors="replace")
    flags: tuple[str, ...] = (problem,) if refused or _SHUT.search(problem) else ()
    changed = (each.message.splitlines()[0] for each in found if InputWasChanged.__name__ in each.message)
    flags += (*dict.fromkeys(changed), *looks, *notes)
    seconds = time.monotonic() - began
    return Grade(exercise, folder, tuple(found), seconds, problem, output, public, flags, seed, notes)


def _versions(exercise: Exercise, folder: Path, public: bool) -> tuple[str, ...]:
    """A sentence for each piece that was written for another version of the exercise; to its author (``public``) also
    for one that has lost its version."""
    said = []
    for piece in exercise.pieces:
        text = (folder / piece).read_text(encoding="utf-8", errors="replace")
        said.append(another_version(exercise, text, piece))
        said.append(without_version(exercise, piece, text, piece) if public and not said[-1] else "")
    return tuple(filter(None, said))


def _sandbox(exercise: Exercise, tests: HiddenTests, limits: Limits, work: Path) -> Sandbox:
    """The child process for the pieces in ``work / "mine"``."""
    (work / "cwd").mkdir()
    environment = {name: os.environ[name] for name in _COMPILER_SETTINGS if name in os.environ}
    environment["EP_LIB_CACHE_DIR"] = str(work / "cache")
    texts = [(work / "mine" / piece).read_bytes() for piece in exercise.pieces if piece.endswith(".py")]
    modules = tuple(dict.fromkeys([*tests.imports, *([_SLOW] if any(map(_IMPORTS_SLOW.search, texts)) else [])]))
    around, folders = _open_to(exercise, tests, work), (work / "mine", limits, work / "cwd")
    return Sandbox(*folders, environment, around, modules, exercise.given, guests=bool(texts))


def recorded(exercise: Exercise, folder: Path, scenario: Scenario) -> dict[str, Any]:
    """The result of :func:`ep_lib.workshop.grader.recorded.run_of` in a child of its own: untrusted JSON.

    Raises GradingError if there is no recording.
    """
    limits, nonce = Limits(), secrets.token_hex(16)
    tests = HiddenTests(((scenario.source, ""),), (), folder=Path(scenario.source).parent)
    with temporary_folder("ep_replay_") as work:
        copy_pieces(exercise, folder, work / "mine")
        _prepare_cache(work / "cache", None)
        try:
            with _sandbox(exercise, tests, limits, work) as sandbox:
                request = {"nonce": nonce, "record": scenario}
                header, body = sandbox.ask(request, reply_bytes=_MOST_RECORDED, seconds=limits.compile_s)
            answer = json.loads(header)
            if answer["nonce"] != nonce:
                raise BadReply
            if answer["failure"]:
                raise GradingError(f"the run cannot be recorded: {str(answer['failure']['message'])[:_SHOWN]}")
            run = json.loads(body)
            return {"seed": int(run["seed"]), "data": dict(run["data"])}
        except (ChildFailed, BadReply) as error:
            raise GradingError(f"the run cannot be recorded: {error}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise GradingError(f"the run cannot be recorded: {BadReply()}") from error


def _submission_folder(exercise: Exercise, mine: Path | str | None) -> Path:
    """``mine`` as given or, since notebooks run in another folder, relative to the workshop."""
    if mine is None:
        return default_mine(exercise)
    try:
        folder = a_path("mine", mine)
        given = Path(os.fspath(mine)).expanduser()
    except ArgumentError as error:
        raise GradingError(str(error)) from error
    return (folder if folder.exists() else exercise.root / given).resolve()


def prepare(exercise: Exercise) -> None:
    """Compiles the tests against the solution, to fill the user's cache with the parts that all submissions share.

    Quick after the first time. Raises EpError if the grader cannot work, for instance without a compiler.
    """
    tests = load(exercise.name, public=False)
    _compile_what_all_share(exercise, tests)
    _compile_tests(exercise, tests)


def _compile_what_all_share(exercise: Exercise, tests: HiddenTests) -> list[Path]:
    """Compiles the emulator's runtime and headers, and the tests' own parts of kernels; returns the cache entries of
    the latter. Raises EpError if there is no compiler, for instance."""
    cuda_rules.say_if_unchecked()
    with pieces.unused():
        Kernel.from_source(_EMPTY_KERNEL, "nothing").compile("emulator")
        return compile_halves(tests.kernels, exercise.given)


def _compile_tests(exercise: Exercise, tests: HiddenTests) -> None:
    """Compiles the tests with the solution. Raises EpError on failure, which is not a submission's fault."""
    with pieces.unused():
        for source, name in tests.kernels:
            kernel_of(Path(source), name, exercise.solution_dir, exercise.given).compile()


def _prepare_cache(folder: Path, halves: Sequence[Path] | None) -> None:
    """Makes a compile cache for this submission, so that it cannot change the user's cache.

    Shared entries (the emulator's runtime, precompiled headers and ``halves``; None: all halves) are linked from the
    user's cache.
    """
    for kind in _SHARED:
        (folder / kind).mkdir(parents=True)
        entries = (entry for place in compile_cache.places() for entry in (place / kind).glob("[!.]*"))
        for entry in entries if halves is None or kind != HALF else halves:
            with contextlib.suppress(FileExistsError):
                (folder / kind / entry.name).symlink_to(entry)
    for kind in ("compilers", "headers"):
        with contextlib.suppress(OSError):  # small files that only save time
            shutil.copytree(compile_cache.cache_dir() / kind, folder / kind)


def _open_to(exercise: Exercise, tests: HiddenTests, work: Path) -> Walls:
    """The files that the submission may read and write: those for compiling and running, but none with answers.

    It sees this library except the copy of the exercise's pieces and the hidden tests; of these only the half that runs
    around the learner's code.
    """
    package = Path(ep_lib.__file__).resolve().parent
    workshop = package / "workshop"
    hidden = workshop / "hidden"
    trees = {exercise.root, package.parent}  # a wheel's workshop has no ep_lib/ of its own
    answers = [tree / exercise.runs_as / piece for tree in trees for piece in exercise.pieces]
    bytecode = [piece.parent / "__pycache__" for piece in answers if piece.suffix == ".py"]  # whole: it may come later
    course = workshop / "course"
    private = [*answers, *bytecode, hidden, course / "answers", course / "puzzles", package / "_workshop"]
    compiler = Path(find_compiler().path)
    prefixes = [Path(os.environ[name]) for name in _COMPILER_HOMES if os.environ.get(name)]
    prefixes += [*_installation(compiler), Path(sys.prefix), Path(sys.base_prefix)]
    prefixes += [Path(each) for each in sys.path if Path(each).name in ("site-packages", "dist-packages")]
    places = [compiler, *map(Path, _SYSTEM), *(part for each in prefixes for part in _without_home(each.resolve()))]
    closed = [package, exercise.root / "ep_lib", exercise.root / "solutions"]
    roots = {each.resolve() for each in places if each.exists()}
    return {
        "readable": [
            *(part for root in roots for part in beneath(root, closed)),
            *beneath(package, private),
            *tests.folder.glob("*.cuh"),
            tests.folder / CALLS,
            *(folder / name for folder in exercise.given for name in exercise.also),
            *(Path(source) for source, _ in tests.kernels),
            *(tests.folder / name for name in (f"play{exercise.name}.py", f"ex{exercise.name}.cu")),
            *(place / kind for place in compile_cache.places() for kind in _SHARED),
            *map(Path, _PROC),
            *tests.readable,
            work / "mine",
        ],
        "writable": [work / "cwd", work / "cache", Path("/dev/null")],
        "listable": [package, *exercise.given],
    }


@cache
def _installation(compiler: Path) -> tuple[Path, ...]:
    """The installation folder of a compiler, by its own answer: its command may be a link or a script."""
    told = run([str(compiler), "-print-search-dirs"], cpu_s=10, idle_s=10).stdout
    found = _OF_AN_INSTALLATION.search(told)
    return (Path(found["prefix"]),) if found else ()


def _without_home(prefix: Path) -> list[Path]:
    """A folder with software; if it also holds the user's files, only its software parts."""
    home = home_folder()
    in_home = home is not None and home.resolve().is_relative_to(prefix)
    return [prefix / part for part in _OF_A_PREFIX] if in_home else [prefix]


def _compile(
    exercise: Exercise, sandbox: Sandbox, tests: HiddenTests, limits: Limits, work: Path
) -> tuple[str, str, tuple[str, ...]]:
    """Compiles the tests' kernels and imports Python pieces; returns the error's text or "", its kind, and flags for an
    instructor."""
    python = [piece for piece in exercise.pieces if piece.endswith(".py")]
    program = tests.folder / f"play{exercise.name}.py"
    programs = [str(program)] if python and program.exists() else []
    outputs = _ask(sandbox, {"compile": tests.kernels, "programs": programs, "import": []}, None, limits.compile_s)
    late = (
        f"the files were not compiled within {limits.compile_s:g} s: is there a large array of constants, or "
        "something else that the compiler computes?"
    )
    if outputs.failure is None and python:
        outputs = _ask(sandbox, {"compile": [], "programs": [], "import": python}, None, limits.import_s)
        late = (
            f"{' and '.join(python)} was not imported within {limits.import_s:g} s, in which each test imports it "
            "anew: is there an endless loop outside of its functions, or work that belongs into them?"
        )
    if (failure := outputs.failure) is None:
        return "", "", outputs.looks
    if failure.kind in _OF_TIME:
        return late, failure.kind, ()
    if failure.kind == KernelCompileError.__name__ and not sealed.in_use():
        _compile_tests(exercise, tests)  # if this fails too, it is not the submission's fault
    return failure_text(failure, work), failure.kind, ()


def _out_of_time(kind: str) -> tuple[bool, bool]:
    """Whether a failure may be the machine's fault, and whether it exceeded a limit of CPU time."""
    return kind in _MAY_BE_THE_MACHINES, kind in _OF_CPU


def _grade_task(
    exercise: Exercise,
    task: Task,
    behaviours: Sequence[Behaviour],
    sandbox: Sandbox,
    limits: Limits,
    work: Path,
    seed: int,
    below: Sequence[str] = (),
) -> TaskGrade:
    """Grades one task. ``below``: the wrong tasks that this one builds on: the learner should look there first, since
    this test's advice is for another mistake."""
    tests = [test for test in behaviours if test.task == task.number]
    if not tests:
        raise GradingError(f"no hidden test examines task {task.number}")
    for number, test in enumerate(tests):
        for case in test.cases(inputs_of(seed, task.number, number)):
            outputs = _run(sandbox, case.scenario, limits)
            if case.endless and outputs.failure and outputs.failure.kind in _ENDLESS:
                continue
            found = what_failed(case.scenario, outputs, work, exercise.also)
            message = found or case.verdict(outputs)
            if message:
                found_by_checker = bool(found and case.scenario.check_seeds)
                if STILL_TO_DO not in message and message != CHECKER_IS_OFF:
                    message += _circumstances(case.scenario, found_by_checker=found_by_checker)
                    advice = advice_for(outputs)
                    which = _tasks(below)
                    if test.advice and not says_all(outputs):
                        unless = f"If {which} {'were' if len(below) > 1 else 'was'} not the reason: " if below else ""
                        advice += f" {unless}{test.advice}"
                    message += f"{'' if message.endswith('?') else '.'} {advice.strip()}"
                    if below:
                        message = f"(It stands on {which}: look there first.)\n{message}"
                late = _out_of_time(outputs.failure.kind if outputs.failure else "")
                return TaskGrade(task, False, test.title, message.strip(), *late, case.scenario)
    return TaskGrade(task, True)


def _tasks(numbers: Sequence[str]) -> str:
    """As "task 1" and "tasks 1, 2 and 3"."""
    if len(numbers) < 2:
        return f"task {''.join(numbers)}"
    return f"tasks {', '.join(numbers[:-1])} and {numbers[-1]}"


def inputs_of(seed: int, task: int, number: int) -> np.random.Generator:
    """The random generator for the inputs of a task's hidden test in the grading with this seed; ``number`` counts its
    tests."""
    return np.random.default_rng((seed, task, number))


def _wrong_below(task: Task, tasks: Sequence[TaskGrade]) -> list[str]:
    """The wrong tasks among ``tasks`` that ``task`` builds on."""
    return [str(each.task.number) for each in tasks if each.task.number in task.stands_on and not each.passed]


def _circumstances(scenario: Scenario | Call, *, found_by_checker: bool) -> str:
    if isinstance(scenario, Call):
        return ""
    on = f" on {scenario.fabric.kind}" if scenario.fabric is not None else ""
    ranks = "one rank" if scenario.ranks == 1 else f"{scenario.ranks} ranks"
    if found_by_checker:
        return f"\n(found by the checker, {ranks}{on})"
    which = "all schedules" if scenario.exhaustive else f"seed {scenario.seed}"
    return f" ({ranks}{on}, {_shape(scenario)}{which})"


def _shape(scenario: Scenario) -> str:
    """Names multi-dimensional blocks, since threadIdx.x alone would mislead."""
    blocks = (launch.block for rank in range(scenario.ranks) for launch in scenario.launched_by(rank))
    shape = next((block for block in blocks if not isinstance(block, int)), None)
    return "" if shape is None else f"blocks of {' x '.join(map(str, shape))} threads, "


def _run(sandbox: Sandbox, scenario: Scenario | Call, limits: Limits) -> Outputs:
    # A child that is started again loads its kernels from the cache, which takes longer than a scenario.
    seconds = limits.request_s + (0 if sandbox.running else limits.start_s)
    if scenario.check_seeds or (isinstance(scenario, Scenario) and scenario.exhaustive):
        seconds += limits.check_s
    if isinstance(scenario, Call):
        seconds += scenario.ranks * sandbox.import_cpu_s
    return _ask(sandbox, {"run": scenario}, scenario, seconds)


def _ask(sandbox: Sandbox, request: dict[str, Any], scenario: Scenario | Call | None, seconds: float) -> Outputs:
    """Sends one request and returns its reply; a child that exceeds a limit or replies nonsense is ended, and gives a
    Failure.

    A child that runs out of memory outside of the submission's lines is restarted once; if the second one does too, a
    message says so.
    """
    outputs = _ask_once(sandbox, request, scenario, seconds)
    if _is_the_machines(outputs.failure):
        sandbox.end()
        outputs = _ask_once(sandbox, request, scenario, seconds)
    if _is_the_machines(outputs.failure):
        return Outputs(failure=Failure(MemoryError.__name__, _NO_MEMORY))
    return outputs


def _is_the_machines(failure: Failure | None) -> bool:
    """Whether memory ran out outside of the submission's lines, which :mod:`runner` would have named."""
    return failure is not None and failure.kind == MemoryError.__name__ and not failure.message


def _ask_once(sandbox: Sandbox, request: dict[str, Any], scenario: Scenario | Call | None, seconds: float) -> Outputs:
    nonce, size = secrets.token_hex(16), scenario.reply_bytes() if scenario else 0
    try:
        header, body = sandbox.ask({**request, "nonce": nonce}, reply_bytes=size, seconds=seconds)
        return unpack_outputs(scenario, nonce, header, body)
    except (ChildFailed, BadReply) as error:
        sandbox.end()
        return Outputs(failure=Failure(type(error).__name__, str(error)))
