"""The hidden tests, one module per exercise: ``ex<name>.py``, for example ``ex01_write_signal.py``.

Such a module runs in the grader's own process and gives

    BEHAVIOURS   the behaviours that ``ep-lib grade`` examines, a tuple of :class:`Behaviour`; a message may show an
                 expected number, since the next grading draws other inputs
    REHEARSED    the number of cases of each behaviour, from the first on, that ``ep_lib.workshop.check`` examines (3),
                 so that "ok" excludes gross mistakes; ``benchmarks/mutants.py --check`` shows what it misses
    KERNELS      kernels of its scenarios beside ``examine`` of the .cu file of its own name: pairs of file and kernel
    PIECE        the learner's file in Python, if its name is not the exercise's
    IMPORTS      packages that learners' code needs and that take long to import: the zygote imports them in advance

All but the first are optional.

Each behaviour yields cases: inputs for the child, and a judge that stays here, with the expected values in its closure.
Every grading draws new payloads from ``rng``, so remembered answers are worth nothing. A test states only its own part:
this package and the runner vary every scenario's schedules, the shape of blocks, idle threads, and the previous content
of memory (:func:`varied`, :class:`ep_lib.workshop.grader.scenario.Room`). The emulator finds accesses beside an array,
so no test looks for them.

The ``.cu`` file of the same name is the other half: a kernel that plays the grader's part around the learner's code and
records what it saw. For a piece in Python that half is ``play<name>.py``, whose functions do the same beside the
emulator, while the piece is in a process of its own (:mod:`ep_lib.workshop.grader.process.far`). A ``.cu`` file calls
the learner's functions as ``calls/ex<name>.cuh`` declares them; ``calls/ex<name>.cu`` compiles them
(:mod:`ep_lib.jit.closed`). Begin with ex00_first_kernel.py, or ex02_handshake.py; cases.py, inputs.py, networks.py and
judging.py have the code that several exercises share.
"""

from __future__ import annotations

import importlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ep_lib.errors import GradingError
from ep_lib.jit import sealed
from ep_lib.workshop.grader.pieces import module_of
from ep_lib.workshop.grader.scenario import Call, Launch, Outputs, Scenario

Rng = np.random.Generator

CANARY_TASK = 0  # makes a kernel of a hidden test run the canary of grader.cuh
_MOST_THREADS = 1024  # of a block
_WARPS = 2  # of a block if each thread calls


@dataclass(frozen=True)
class Case:
    """One run: what the child gets, and how the parent judges what comes back (None if right, else what failed).

    ``endless``: it waits for what never comes. A wait with the library's limit gives up, which is judged; one without a
    limit is right as well, and never ends.
    """

    scenario: Scenario | Call
    judge: Callable[[Outputs], str | None]
    endless: bool = False

    def verdict(self, outputs: Outputs) -> str | None:
        """The result of ``judge``; a problem also if the piece returned something that the judge cannot read."""
        try:
            return self.judge(outputs)
        except (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError):
            return "what was returned has another shape, or other types or sizes of numbers, than it should"


@dataclass(frozen=True)
class Behaviour:
    """Something that must hold for a task's points. ``advice`` is added to the message of a case that fails."""

    task: int
    title: str  # "the data is complete when the signal arrives"
    cases: Callable[[np.random.Generator], Iterator[Case]]
    advice: str = ""


@dataclass(frozen=True)
class HiddenTests:
    """The content of one module: the kernels to compile first, as (path of the .cu file, kernel), and its behaviours.
    ``folder`` has the files that play around the learner's code; ``imports`` are large modules that this code
    imports."""

    kernels: tuple[tuple[str, str], ...]
    behaviours: tuple[Behaviour, ...]
    readable: tuple[Path, ...] = ()  # further files that the child needs
    folder: Path = Path(__file__).parent
    imports: tuple[str, ...] = ()


class Files(NamedTuple):
    """An exercise's files: the .cu file of its tests, or their program and the learner's file in Python."""

    source: Path
    program: Path
    piece: str


def load(exercise: str, *, public: bool, folder: Path | None = None) -> HiddenTests:
    """The tests of exercise ``01_write_signal``, of this folder or of another one that has such modules.

    Raises GradingError if its module is missing or incomplete, as the hidden half is in a release.
    """
    name = f"{__name__}.ex{exercise}"
    if sealed.in_use() and not public and folder is None:
        raise GradingError(
            f"the tests that give points for {exercise} are with your instructor. {sealed.HOW_TO_HAND_IN}. "
            f'workshop.check("{exercise}") runs the public checks (and `ep-lib grade {exercise} --tests DIR` the tests '
            "of a folder)"
        )
    place = folder or Path(__file__).parent
    try:
        own = f"ex{exercise}"
        module = importlib.import_module(name) if folder is None else module_of(folder / f"{own}.py", own)
        piece = getattr(module, "PIECE", f"{exercise}.py")
        files = Files(place / f"ex{exercise}.cu", place / f"play{exercise}.py", piece)
        most = getattr(module, "REHEARSED", 3) if public else None
        examined = () if files.program.exists() else ((files.source.name, "examine"),)
        kernels = tuple((str(place / file), kernel) for file, kernel in (*examined, *getattr(module, "KERNELS", ())))
        behaviours = tuple(varied(module.BEHAVIOURS, files, most))
        return HiddenTests(kernels, behaviours, folder=place, imports=tuple(getattr(module, "IMPORTS", ())))
    except (ImportError, OSError, AttributeError) as error:
        where = name if folder is None else f"in {folder}"
        raise GradingError(f"exercise {exercise} has no complete module of tests {where}: {error}") from error


# ---- what is varied of every scenario ------------------------------------------------------------------------------
def varied(behaviours: Iterable[Behaviour], files: Files, most: int | None = None) -> Iterator[Behaviour]:
    """The same behaviours, with at most ``most`` cases; each scenario gets its files, its task and its own schedules.

    If a scenario has ``called_by``, the runs of a task have blocks of one dimension and of two, in turn; the first run
    under the checker has both, each with half of its schedules. Beside a ``warp`` or thread that calls, there are then
    one or two further warps: they call nothing and wait at the end of the test's kernel (``meet_at_the_end()`` of
    grader.cuh), which exposes a barrier in the piece. If each ``thread`` calls for itself, lane 0 of every warp does
    not (``caller()`` there).
    """
    seen: Counter[int] = Counter()
    for behaviour in behaviours:
        yield replace(behaviour, cases=_varied(behaviour, files, seen[behaviour.task], most))
        seen[behaviour.task] += 1


def _varied(behaviour: Behaviour, files: Files, begin: int, most: int | None) -> Callable[[Rng], Iterator[Case]]:
    def cases(rng: Rng) -> Iterator[Case]:
        for number, case in enumerate(itertools.islice(behaviour.cases(rng), most), begin):
            scenario = case.scenario
            if not isinstance(scenario, Scenario):
                yield replace(case, scenario=replace(scenario, program=str(files.program), piece=files.piece))
                continue
            seed = 1000 * behaviour.task + 100 * begin + number
            schedules = tuple(seed + each for each in scenario.check_seeds)
            source = str(files.source.with_name(scenario.source or files.source.name))
            scenario = replace(scenario, source=source, task=behaviour.task, seed=seed, check_seeds=schedules)
            if not scenario.called_by or scenario.exhaustive or scenario.hardware:
                yield replace(case, scenario=scenario)
                continue
            runs = 2 if number == begin and len(schedules) > 1 else 1
            for run in range(runs):
                idle = 32 * int(rng.integers(1, 3)) if schedules and scenario.called_by != "block" else 0
                width = int(rng.choice((4, 8, 16))) if (number + run) % 2 else 1  # > 1: threadIdx.x % 32 is no lane
                yield _in_block(case, replace(scenario, check_seeds=schedules[run::runs]), idle, width)

    return cases


def _in_block(case: Case, scenario: Scenario, idle: int, width: int) -> Case:
    """The case with blocks of whole warps and ``idle`` further threads, in rows of ``width`` (1: one dimension)."""

    def shaped(launch: Launch) -> Launch:
        threads, grid = launch.block, launch.grid
        assert isinstance(threads, int), "a block of two dimensions already"
        if scenario.called_by == "thread" and launch.task != CANARY_TASK:  # 31 threads of a warp call
            warps = -(-threads // 31)
            grid, threads = -(-warps // _WARPS), 32 * min(warps, _WARPS)
        if idle or width > 1:
            threads = min(-(-threads // 32) * 32 + idle, _MOST_THREADS)
        return replace(launch, grid=grid, block=(width, threads // width) if width > 1 else threads)

    launches = [[shaped(launch) for launch in scenario.launched_by(rank)] for rank in range(scenario.ranks)]
    return replace(case, scenario=replace(scenario, launches=launches))
