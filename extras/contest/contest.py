"""The contest: whose alltoall, dispatch or combine is the fastest, without a race.

A contestant's folder has a header for each task (``alltoall.cuh``, ``dispatch.cuh``, ``combine.cuh``) with a function
that gets a job of <contest.cuh>; :func:`start` copies one that is right and slow. :func:`score` runs it on jobs of two
sizes on the virtual clock, compares every result with NumPy bit for bit, and lets the checker look at it on several
schedules. The points are 1000 over the geometric mean of the times in microseconds; a wrong result or a race gives 0.
It runs where submissions of exercises do, in a process behind walls.

:func:`enter` adds a line to a leaderboard, a file of JSON lines that only grows, and :func:`standings` reads it. How
the clock's order compares with measured figures: README.md.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib import reference
from ep_lib.errors import GradingError
from ep_lib.jit.lexer import without_comments
from ep_lib.version import __version__
from ep_lib.workshop import hidden
from ep_lib.workshop.exercises import Exercise, Task, workshop_root
from ep_lib.workshop.grader.grading import Grade, examine
from ep_lib.workshop.grader.kernels import kernel_of
from ep_lib.workshop.grader.scenario import Array, ByRank, Launch, Outputs, Scenario
from ep_lib.workshop.hidden import Behaviour, Case, HiddenTests, Rng
from ep_lib.workshop.hidden.cases import under_checker

SCHEMA = 1  # of a line of the leaderboard
HARDWARE = "h100-cx7"
RANKS, EXPERTS, TOP_K = 4, 8, 3
_CHECKED_SEEDS = 8
_FLAGS = 1024  # kContestFlags of contest.cuh
_CONTESTANT, _READER, _EXPERTS = 1, 2, 3  # `what` of the .cu files
_HERE = Path(__file__).parent
_RIGHT = "What is asked stands in <contest.cuh>; every result must equal NumPy's, bit for bit."
_CLEAN = "A race scores 0, whatever the result was."
_NUMBER = r"\bconstexpr\s+int\s+{}\s*=\s*(\d+)\s*;"


@dataclass(frozen=True)
class Job:
    """Inputs of one run: what the kernel gets, in this order, and what the reader must have read, rank by rank."""

    symmetric: dict[str, ByRank]
    local: dict[str, ByRank]
    told: list[Array]
    experts: bool = False  # a kernel that writes rows comes first


@dataclass(frozen=True)
class Contest:
    """A task: ``sizes`` are timed, ``checked`` is run under the checker; each is passed to ``make_job``."""

    name: str
    make_job: Callable[..., Job]
    sizes: tuple[dict[str, int], ...]
    checked: dict[str, int]

    @property
    def piece(self) -> str:
        return f"{self.name}.cuh"


@dataclass
class Score:
    """The result of an entry. ``microseconds``: by size, in the order of the contest's sizes; ``problem``: why it has
    no points."""

    contest: Contest
    folder: Path
    name: str
    digest: str  # of the file
    microseconds: list[float] = field(default_factory=list)
    problem: str = ""

    @property
    def points(self) -> float:
        if self.problem or not self.microseconds:
            return 0.0
        mean = math.exp(sum(map(math.log, self.microseconds)) / len(self.microseconds))
        return round(1000 / mean, 2)

    def as_json(self) -> dict[str, Any]:
        """A line of the leaderboard."""
        return {
            "schema": SCHEMA,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "task": self.contest.name,
            "name": self.name,
            "points": self.points,
            "us": [round(us, 3) for us in self.microseconds],
            "problem": self.problem or None,
            "hardware": HARDWARE,
            "file_sha256": self.digest,
            "ep_lib": __version__,
        }


# ---- the jobs --------------------------------------------------------------------------------------------------------
def _common(told: list[Array]) -> tuple[dict[str, ByRank], dict[str, ByRank]]:
    """The arrays that all jobs have: symmetric and local ones."""
    symmetric: dict[str, ByRank] = {"flags": np.zeros(_FLAGS, np.uint64), "numbers": np.zeros(_FLAGS, np.uint32)}
    return symmetric, {"own": np.zeros(_FLAGS, np.uint32), "told": [np.zeros_like(each) for each in told]}


def _alltoall(rng: Rng, vectors: int) -> Job:
    sources = [rng.integers(1, 1 << 31, (RANKS, 4 * vectors)).astype(np.int32) for _ in range(RANKS)]
    told = [np.stack([source[rank] for source in sources]) for rank in range(RANKS)]
    symmetric, local = _common(told)
    symmetric["inbox"] = np.zeros_like(told[0])
    local |= {"source": sources, "out": [np.zeros_like(each) for each in told]}
    local["sizes"] = np.array([vectors], np.int64)
    return Job(symmetric, local, told)


def _routing(rng: Rng, tokens: int, vectors: int) -> tuple[list[Array], list[Array], list[Array]]:
    """Tokens, experts and weights of each rank; the last rank has fewer tokens, and some choices are -1.

    Numbers are new each time, so that remembered results are worth nothing; the routing is always the same, so that
    times are comparable.
    """
    routes = np.random.default_rng(2026)
    xs, idx, weights = [], [], []
    for rank in range(RANKS):
        number = tokens if rank < RANKS - 1 else max(1, tokens // 2)
        chosen = np.argsort(routes.random((number, EXPERTS)), axis=1)[:, :TOP_K].astype(np.int32)
        chosen[routes.random(chosen.shape) < 0.1] = -1
        xs.append(rng.standard_normal((number, 4 * vectors)).astype(np.float32))
        idx.append(chosen)
        weights.append(rng.random((number, TOP_K)).astype(np.float32))
    return xs, idx, weights


def _dispatch(rng: Rng, tokens: int, vectors: int) -> Job:
    xs, idx, weights = _routing(rng, tokens, vectors)
    received = reference.dispatch(xs, idx, weights, num_experts=EXPERTS)
    most = RANKS * tokens
    told = [np.zeros((most, 4 * vectors), np.float32) for _ in range(RANKS)]
    for array, each in zip(told, received, strict=True):
        array[: len(each.x)] = each.x
    symmetric, local = _common(told)
    symmetric["rows"] = np.zeros((most, 4 * vectors), np.float32)
    local |= {"x": xs, "topk_idx": idx, "num_rows": np.zeros(1, np.int32)}
    local["send_index"] = np.full((tokens, RANKS), -1, np.int32)
    local["sizes"] = [np.array([len(x), tokens, vectors, TOP_K, EXPERTS // RANKS], np.int64) for x in xs]
    return Job(symmetric, local, told)


def _combine(rng: Rng, tokens: int, vectors: int) -> Job:
    xs, idx, weights = _routing(rng, tokens, vectors)
    received = reference.dispatch(xs, idx, weights, num_experts=EXPERTS)
    ys = [each.x * np.float32(1 + rank / 3) for rank, each in enumerate(received)]
    told = [np.ascontiguousarray(out) for out in reference.combine(ys, idx, weights, num_experts=EXPERTS)]
    layouts = [reference.layout(each, num_experts=EXPERTS, world_size=RANKS) for each in idx]
    sent = np.array([layout.tokens_per_rank for layout in layouts], np.int32)
    first_row = np.cumsum(sent, axis=0) - sent
    on_rank = []
    for chosen, share in zip(idx, weights, strict=True):
        sums = np.zeros((len(chosen), RANKS), np.float32)
        for k, rank in np.ndindex(TOP_K, RANKS):
            here = (chosen[:, k] >= 0) & (chosen[:, k] // (EXPERTS // RANKS) == rank)
            sums[here, rank] += share[here, k]
        on_rank.append(sums)
    symmetric, local = _common(told)
    shape = (RANKS * tokens, 4 * vectors)
    symmetric |= {name: np.zeros(shape, np.float32) for name in ("rows", "returned")}
    local |= {"y": ys, "send_index": [layout.slot.astype(np.int32) for layout in layouts], "weights": on_rank}
    local["first_row"] = [first_row[rank].astype(np.int32) for rank in range(RANKS)]
    local["out"] = [np.zeros_like(each) for each in told]
    sizes = zip(xs, ys, strict=True)
    local["sizes"] = [np.array([len(x), tokens, vectors, len(y)], np.int64) for x, y in sizes]
    return Job(symmetric, local, told, experts=True)


CONTESTS = {
    contest.name: contest
    for contest in (
        Contest("alltoall", _alltoall, ({"vectors": 64}, {"vectors": 2048}), {"vectors": 70}),
        Contest(
            "dispatch",
            _dispatch,
            ({"tokens": 8, "vectors": 448}, {"tokens": 96, "vectors": 448}),
            {"tokens": 21, "vectors": 35},
        ),
        Contest(
            "combine",
            _combine,
            ({"tokens": 8, "vectors": 448}, {"tokens": 96, "vectors": 448}),
            {"tokens": 21, "vectors": 35},
        ),
    )
}


# ---- an entry --------------------------------------------------------------------------------------------------------
def find(task: str) -> Contest:
    """The contest of that name. Raises GradingError."""
    if task not in CONTESTS:
        raise GradingError(f"there is no contest {task!r}; there are: {', '.join(CONTESTS)}")
    return CONTESTS[task]


def start(task: str, folder: Path) -> Path:
    """Copies the starter to ``folder``, unless the file is there already; returns it. Raises GradingError."""
    contest = find(task)
    target = folder / contest.piece
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8") as file:
            file.write((_as_exercise(contest).solution_dir / contest.piece).read_text("utf-8"))
    except FileExistsError:
        pass
    except OSError as error:
        raise GradingError(f"the starter cannot be written to {target}: {error}; choose another folder") from error
    return target


def score(task: str, folder: Path, name: str, progress: Callable[[str], None] = lambda text: None) -> Score:
    """Runs the entry in ``folder``. The Score has an entry's mistakes; GradingError means that there is no Score."""
    contest = find(task)
    path = folder / contest.piece
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise GradingError(
            f"cannot read {path}: {error}; --mine names the folder that has {contest.piece}, and "
            f"`python extras/contest {task} --start {folder}` makes one to begin with"
        ) from error
    result = Score(contest, folder, name, hashlib.sha256(text.encode()).hexdigest())
    try:
        grid, block = (_constant(text, constant, least, most) for constant, least, most in _GEOMETRY)
    except GradingError as error:
        result.problem = str(error)
        return result
    source = str(_HERE / f"contest_{task}.cu")
    tests = _tests(contest, source, grid, block, result.microseconds)
    exercise = _as_exercise(contest)
    # Compile now the part that all entries share.
    kernel_of(Path(source), "run", exercise.solution_dir, ()).compile()
    grade = examine(exercise, folder, tests, progress=progress)
    result.problem = _problem(grade)
    return result


_GEOMETRY = (("kBlocks", 1, 32), ("kThreads", 32, 1024))


def _constant(text: str, name: str, least: int, most: int) -> int:
    found = re.search(_NUMBER.format(name), without_comments(text))
    if found is None or not least <= int(found[1]) <= most:
        raise GradingError(f"the file needs `constexpr int {name} = N;` with N from {least} to {most}")
    return int(found[1])


def _as_exercise(contest: Contest) -> Exercise:
    """The contest as an exercise for the grader: its solution is the starter."""
    tasks = (Task(1, "right, and fast", 1), Task(2, "no race on any schedule", 1))
    return Exercise(contest.name, contest.name, _HERE, "mine", (contest.piece,), tasks, ())


def _tests(contest: Contest, source: str, grid: int, block: int, times: list[float]) -> HiddenTests:
    def timed(rng: Rng) -> Iterator[Case]:
        for size in contest.sizes:
            yield _case(contest.make_job(rng, **size), source, grid, block, times, hardware=HARDWARE)

    def checked(rng: Rng) -> Iterator[Case]:
        yield _case(contest.make_job(rng, **contest.checked), source, grid, block, None)

    return HiddenTests(
        ((source, "run"),),
        (
            Behaviour(1, "every result equals NumPy's, bit for bit", timed, _RIGHT),
            Behaviour(2, "the checker finds nothing", under_checker(checked, _CHECKED_SEEDS), _CLEAN),
        ),
        (Path(hidden.__file__).with_name("grader.cuh"),),
        _HERE,
    )


def _case(job: Job, source: str, grid: int, block: int, times: list[float] | None, hardware: str = "") -> Case:
    """One run. Where it is timed (``times`` gets the microseconds), the contestant's kernel runs alone."""
    launches = [Launch(grid, block, task=_CONTESTANT, kernel="run")]
    result = {"alltoall": "out", "dispatch": "rows", "combine": "out"}[source.rpartition("contest_")[2][:-3]]
    local, symmetric = dict(job.local), dict(job.symmetric)
    if times is None:
        launches.append(Launch(1, 64, task=_READER, kernel="run"))
        result = "told"
        if job.experts:
            launches.insert(0, Launch(1, 64, task=_EXPERTS, kernel="run"))
    elif job.experts:  # the experts' rows must be there before the clock starts
        symmetric["rows"] = [_padded(y, symmetric["rows"]) for y in local["y"]]

    def judge(out: Outputs) -> str | None:
        for rank, (got, want) in enumerate(zip(out[result], job.told, strict=True)):
            wrong = np.flatnonzero(got.reshape(-1).view(np.uint8) != want.reshape(-1).view(np.uint8))
            if wrong.size:
                return f"{wrong.size} of {want.nbytes} bytes on rank {rank} are wrong, the first at {int(wrong[0])}"
        if times is not None:
            times.append(out.nanoseconds / 1e3)
        return None

    scenario = Scenario(
        source=source,
        ranks=RANKS,
        launches=launches,
        outputs=(result,),
        symmetric=symmetric,
        local=local,
        heap_bytes=32 << 20,
        timeout_s=5.0,
        hardware=hardware,
    )
    return Case(scenario, judge)


def _padded(rows: Array, like: Array) -> Array:
    padded = np.zeros_like(like)
    padded[: len(rows)] = rows
    return padded


def _problem(grade: Grade) -> str:
    if grade.problem:
        return grade.problem
    return next((each.message for each in grade.tasks if not each.passed), "")


# ---- the leaderboard -------------------------------------------------------------------------------------------------
def default_leaderboard() -> Path:
    return workshop_root() / "mine" / "contest" / "leaderboard.jsonl"


def enter(result: Score, leaderboard: Path) -> None:
    """Adds a line, and never changes earlier ones. Concurrent calls wait for each other. Raises GradingError."""
    line = (json.dumps(result.as_json(), ensure_ascii=False) + "\n").encode()
    try:
        leaderboard.parent.mkdir(parents=True, exist_ok=True)
        with leaderboard.open("a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = file.seek(0, os.SEEK_END)
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":  # a line that was cut off: begin a new one
                line = b"\n" + line
            written = file.write(line)
            if written != len(line):
                raise OSError(f"only {written} of {len(line)} bytes were written")
    except OSError as error:
        raise GradingError(
            f"the result cannot be added to {leaderboard}: {error}; name another --leaderboard"
        ) from error


def standings(leaderboard: Path) -> tuple[list[dict[str, Any]], int]:
    """The best entry of each name in each task, the highest points first; and how many lines could not be read."""
    best: dict[tuple[str, str], dict[str, Any]] = {}
    unreadable = 0
    try:
        lines = leaderboard.read_text("utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        lines = []
    except OSError as error:
        raise GradingError(f"cannot read {leaderboard}: {error}") from error
    for line in filter(str.strip, lines):
        try:
            entry = json.loads(line)
            key, points = (str(entry["task"]), str(entry["name"])), float(entry["points"])
        except (ValueError, KeyError, TypeError):
            unreadable += 1
            continue
        if key not in best or points > best[key]["points"]:
            best[key] = {**entry, "points": points}
    order = {name: place for place, name in enumerate(CONTESTS)}
    ranked = sorted(best.values(), key=lambda entry: (order.get(entry["task"], len(order)), -entry["points"]))
    return ranked, unreadable
