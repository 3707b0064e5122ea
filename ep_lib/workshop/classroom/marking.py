"""Grades many submissions: jobs that any ``concurrent.futures`` executor runs, and results in the order of arrival.

A :class:`Job` and a :class:`Result` are plain data that pickle, and a job contains the submitted files themselves. So
:func:`work` needs no files of the machine that found the submission: threads run it here, mpi4py.futures and Dask on
others, which have ep_lib and a compiler.

A job that ran out of time, memory or disk is retried alone, after all others. If the course's own solution fails then
too, the machine is at fault, and the submission counts as not graded. A job that has used up its CPU time is not
retried if the solution passes: it would end the same, so an endless loop costs its limits only once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ep_lib.errors import EpError
from ep_lib.jit.digest import Stamp, stamp_of
from ep_lib.processes import temporary_folder
from ep_lib.version import __version__
from ep_lib.workshop.course.puzzles import graded
from ep_lib.workshop.exercises import find
from ep_lib.workshop.grader.grading import SCHEMA, SEED_BITS, Grade, grade
from ep_lib.workshop.grader.process.sandbox import Stopped, stop_all
from ep_lib.workshop.grader.process.zygote import limits_of

TOO_BUSY = (
    "not graded: this machine has too little time, memory or disk (the course's own solution did not pass either); "
    "grade it again later"
)
CHANGED = "not graded: files of ep_lib changed after this grader had started (git pull?): run the same command again"
LIMITS_CHANGED = (
    "not graded: the limits of the grader's process were changed (prlimit) after it had started: start it anew"
)
_PACKAGE = Path(__file__).resolve().parents[2]
_IN_FLIGHT = 2  # jobs per worker in an executor at a time: an interrupt then loses few


@dataclass(frozen=True)
class Job:
    """One learner's files for one exercise, or for the puzzles of one notebook ("puzzles_01").

    ``files``: content by piece, or by the number of the puzzle. ``seed`` draws the inputs of the tests. ``tasks``: only
    these; all by default. ``source`` and ``submitted`` (ISO 8601, UTC; "" if unknown) are for the record.
    """

    learner: str
    exercise: str
    files: Mapping[str, bytes]
    seed: int = field(default_factory=lambda: secrets.randbits(SEED_BITS))
    tasks: tuple[int, ...] = ()
    source: str = ""
    submitted: str = ""

    @property
    def digest(self) -> str:
        """A digest of the files: equal files are the same submission, in any folder and of any date."""
        total = hashlib.sha256()
        for name, content in sorted(self.files.items()):
            total.update(f"{name}\0{len(content)}\0".encode() + content)
        return total.hexdigest()


@dataclass(frozen=True)
class Result:
    """The result of a job. ``record``: its output in ``ep-lib grade --json``; with a key "error" and without points, if
    it was not graded."""

    job: Job
    record: dict[str, Any]

    @property
    def timed_out(self) -> tuple[int, ...]:
        """The tasks that had no answer within their limits."""
        return tuple(each["task"] for each in self.record.get("tasks", ()) if each["timed_out"])

    @property
    def is_endless(self) -> bool:
        """Whether tasks timed out, all of them with all of their CPU time used."""
        late = [each for each in self.record.get("tasks", ()) if each["timed_out"]]
        return bool(late) and all(each["used_cpu"] for each in late)


Work = Callable[[Job], Result]


def work(job: Job) -> Result:
    """Grades a job, in any process. Raises only Stopped: a failure of the grader gives a record.

    A submission is compiled with the package's current headers, and judged by the modules that this process has
    imported. If the package has changed since, right code may fail: so nothing is graded then.
    """
    started_with = _first_seen()
    if limits_of(0) != _limits_at_first():
        return not_graded(job, LIMITS_CHANGED)
    try:
        with temporary_folder("ep_job_") as folder:
            for name, content in job.files.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            found = _grade(job, folder).as_json()
        if _files() != started_with:
            return not_graded(job, CHANGED)
        return Result(job, {**found, "mine": job.source})
    except Stopped:
        raise
    except (EpError, OSError) as error:  # OSError: a full disk, no more processes
        return not_graded(job, str(error))


@cache
def _first_seen() -> frozenset[tuple[str, Stamp]]:
    return _files()


@cache
def _limits_at_first() -> dict[int, tuple[int, int]]:
    return limits_of(0)


def _files() -> frozenset[tuple[str, Stamp]]:
    """The package's files, with their times of change: some milliseconds."""
    paths = (str(path) for path in _PACKAGE.rglob("*.*") if path.suffix != ".pyc")
    return frozenset((path, stamp_of(path)) for path in paths)


def not_graded(job: Job, why: str) -> Result:
    return Result(job, {"schema": SCHEMA, "exercise": job.exercise, "mine": job.source, "error": why})


def _grade(job: Job, folder: Path) -> Grade:
    if graded.is_of_puzzles(job.exercise):
        return graded.grade(job.exercise, job.files, seed=job.seed, tasks=job.tasks)
    return grade(job.exercise, folder, seed=job.seed, tasks=job.tasks)


def solution_of(job: Job) -> Job:
    """The same job with the course's own files."""
    if graded.is_of_puzzles(job.exercise):
        files = graded.solutions(job.exercise)
    else:
        exercise = find(job.exercise)
        files = {piece: (exercise.solution_dir / piece).read_bytes() for piece in exercise.pieces}
    return dataclasses.replace(job, files=files)


@cache
def version_of(exercise: str) -> str:
    """The version of the library and of this exercise's tests: with another one, submissions are graded again."""
    package = _PACKAGE / "workshop"
    if graded.is_of_puzzles(exercise):
        files = [package / "course" / "puzzles" / f"nb{exercise.rpartition('_')[2]}.py"]
    else:
        found = find(exercise)
        tests = sorted(each for each in (package / "hidden").iterdir() if each.is_file())
        files = [found.solution_dir / "exercise.toml", package / "grader" / "process" / "runner.py"]
        files += [each for each in tests if found.name in each.name or not each.name.startswith(("ex", "play"))]
    total = hashlib.sha256()
    for file in files:
        total.update(file.read_bytes())
    return f"{__version__}+{total.hexdigest()[:8]}"


def run(jobs: Iterable[Job], executor: Executor, workers: int, work: Work = work) -> Generator[Result]:
    """The results of ``jobs`` in order of arrival; retried ones come last.

    ``executor`` runs ``work`` on ``workers`` workers; the next of ``jobs`` is taken as workers become free. If the
    iteration ends early (Ctrl-C), no further job begins, and children of this process end at once.
    """
    again: list[Result] = []
    running: set[Future[Result]] = set()
    solutions: dict[Future[Result], Result] = {}  # running because a submission has used up its time
    supply = iter(jobs)
    is_done = False
    try:
        while True:
            while len(running) < _IN_FLIGHT * workers and (job := next(supply, None)) is not None:
                running.add(executor.submit(work, job))
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                result = future.result()
                if (first := solutions.pop(future, None)) is not None:
                    if _passes(result):
                        yield first
                    else:
                        again.append(first)
                elif result.is_endless:
                    control = executor.submit(work, _solution_for(result))
                    solutions[control] = result
                    running.add(control)
                elif result.timed_out:
                    again.append(result)
                else:
                    yield result
        for result in again:
            yield _once_more(result, executor, work)
        is_done = True
    finally:
        if not is_done:
            for future in running:
                future.cancel()
            with stop_all():
                executor.shutdown(wait=isinstance(executor, ThreadPoolExecutor))


def _once_more(first: Result, executor: Executor, work: Work) -> Result:
    """Grades the tasks that ran out of time again, alone on this machine; keeps the other tasks' results."""
    job = dataclasses.replace(first.job, tasks=first.timed_out)
    second = executor.submit(work, job).result()
    if "error" in second.record:
        return dataclasses.replace(second, job=first.job)
    if second.timed_out:
        own = executor.submit(work, _solution_for(second)).result()
        if not _passes(own):
            return not_graded(first.job, TOO_BUSY)
    return Result(first.job, _merged(first.record, second.record))


def _solution_for(late: Result) -> Job:
    """The job for the course's own solution of the tasks that ran out of time."""
    return dataclasses.replace(solution_of(late.job), tasks=late.timed_out)


def _passes(own: Result) -> bool:
    return "error" not in own.record and not own.timed_out and all(each["passed"] for each in own.record["tasks"])


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    anew = {each["task"]: each for each in second["tasks"]}
    tasks = [anew.get(each["task"], each) for each in first["tasks"]]
    points = sum(each["points"] for each in tasks)
    seconds = round(first["seconds"] + second["seconds"], 2)
    return {
        **first,
        "problem": second["problem"],
        "tasks": tasks,
        "points": points,
        "full": points == first["of"],
        "seconds": seconds,
    }
