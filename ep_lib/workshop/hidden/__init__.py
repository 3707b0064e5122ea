"""The hidden tests, one module per exercise: ``ex<name>.py``, for example ``ex01_write_signal.py``.

Such a module runs in the grader's own process and gives

    KERNELS      (path of a .cu file, kernel) of everything its scenarios launch
    BEHAVIOURS   what ``ep-lib grade`` examines, a tuple of :class:`Behaviour`; what a message may show of an
                 expected number is of inputs that are drawn anew, and worth nothing the next time
    PUBLIC       what ``ep_lib.workshop.check`` examines in the notebook: something small first, whose messages may show
                 everything, then the beginning of what each hidden test does (``rehearsed``)
    IMPORTS      (if any) packages that take long to import and that learners' code needs: the zygote has them already

Each behaviour yields cases: inputs for the child, and a judge that stays here, with the expected values in its closure.
Every grading draws new payloads from ``rng``, so remembered answers are worth nothing.

The ``.cu`` file of the same name is the other half: a kernel that plays the grader's part around the learner's code
and records what it saw. For a piece in Python that half is ``play<name>.py``, whose functions do the same beside the
emulator, while the piece is in a process of its own (:mod:`ep_lib.workshop.far`). Begin with
ex08_packets.py, the shortest, or ex02_handshake.py; what several exercises share is here. A ``.cu`` file calls the
learner's functions as ``calls/ex<name>.cuh`` declares them, and ``calls/ex<name>.cu`` is where they are
(:mod:`ep_lib.jit.closed`).
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ep_lib.emulator.accesses import ATOMIC, COUNT, NIC, OF_PAIR, STORES, UPDATES, WIDTHS
from ep_lib.emulator.fabric import Fabric
from ep_lib.errors import GradingError
from ep_lib.jit import sealed
from ep_lib.workshop.scenario import Array, Call, Launch, Outputs, Ref, Scenario

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


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
        """What ``judge`` says. A piece may return anything, so that a judge cannot read it."""
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
    """What one module gives: the kernels to compile first, as (path of the .cu file, kernel), and its behaviours.
    ``folder`` has the files that play around the learner's code; ``imports`` are large modules that it imports."""

    kernels: tuple[tuple[str, str], ...]
    behaviours: tuple[Behaviour, ...]
    readable: tuple[Path, ...] = ()  # what the child needs beside them
    folder: Path = Path(__file__).parent
    imports: tuple[str, ...] = ()


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
    try:
        module = importlib.import_module(name) if folder is None else _import_from(folder / f"ex{exercise}.py")
        behaviours = tuple(in_every_block(module.PUBLIC if public else module.BEHAVIOURS))
        imports = tuple(getattr(module, "IMPORTS", ()))
        return HiddenTests(tuple(module.KERNELS), behaviours, folder=folder or Path(__file__).parent, imports=imports)
    except (ImportError, OSError, AttributeError) as error:
        where = name if folder is None else f"in {folder}"
        raise GradingError(f"exercise {exercise} has no complete module of tests {where}: {error}") from error


def _import_from(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None  # a .py file has one
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


# ---- what the tests of several exercises share -----------------------------------------------------------------------
Rng = np.random.Generator
Bytes = NDArray[np.uint8]
Cases = Callable[[Rng], Iterator[Case]]
Route = tuple[int, ...]  # by rank: to which rank it sends, -1: to none

PAIR: Route = (1, -1)
BACK: Route = (-1, 0)
BOTH: Route = (1, 0)
RING: Route = (1, 2, 3, 0)

RC, SRD = Fabric("rc"), Fabric("srd")
IN_A_NODE = Fabric("rc", ranks_per_node=4), Fabric("srd", ranks_per_node=4)  # four ranks, on no network
NODES = Fabric("srd", ranks_per_node=2)  # of two ranks, which reach each other by loads and stores

# Every kernel of a hidden test takes the task first; with this one it runs the canary of grader.cuh on `seen`.
_CANARY_TASK = 0
_MOST_THREADS = 1024  # of a block


def random_bytes(rng: Rng, count: int) -> Bytes:
    return rng.integers(0, 256, count, dtype=np.uint8)


def some_zeros(rng: Rng, numbers: Array) -> Array:
    """``numbers``, some of them 0: what is sent, summed or copied is no less if it is nothing."""
    zeros = rng.random(numbers.shape) < 0.2
    return np.where(zeros, np.zeros_like(numbers), numbers)


def left_over(rng: Rng, like: Array) -> Array:
    """What memory of this shape and type may hold before a call: no 0, which a call that writes nothing would leave."""
    bytes_ = rng.integers(1, 256, like.nbytes, dtype=np.uint8)
    return bytes_.view(like.dtype).reshape(like.shape)


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def one(made: Callable[[Rng], Case]) -> Cases:
    return lambda rng: iter([made(rng)])


def first(cases: Cases) -> Cases:
    """The first case alone, for a public check."""
    return one(lambda rng: next(cases(rng)))


def rehearsed(behaviours: Iterable[Behaviour], most: int = 3) -> tuple[Behaviour, ...]:
    """The first ``most`` cases of each, for the public checks: what they call "ok" is not wrong in kind. The hidden
    tests have the other cases; ``benchmarks/mutants.py --check`` shows what would get through here and fail there."""
    return tuple(replace(each, cases=_beginning(each.cases, most)) for each in behaviours)


def _beginning(cases: Cases, most: int) -> Cases:
    return lambda rng: itertools.islice(cases(rng), most)


def all_of(*several: Cases) -> Cases:
    """The cases of each, one after the other."""

    def cases(rng: Rng) -> Iterator[Case]:
        for each in several:
            yield from each(rng)

    return cases


def under_checker(cases: Cases, seeds: int = 4) -> Cases:
    """The same runs, over several schedules, with every access watched.

    After the first rank's launches the canary runs: if a report does not name it, the checker was off.
    """

    def checked(rng: Rng) -> Iterator[Case]:
        for case in cases(rng):
            scenario = of_kernels(case)
            first, *rest = scenario.launches
            examine = next(launch for launches in scenario.launches for launch in launches)
            canary = Launch(examine.kernel, 2, 32, (_CANARY_TASK, *examine.args[1:]))
            yield replace(
                case,
                scenario=replace(
                    scenario,
                    launches=((*first, canary), *rest),
                    check_seeds=tuple(range(scenario.seed, scenario.seed + seeds)),
                ),
            )

    return checked


def in_every_block(behaviours: Iterable[Behaviour]) -> Iterator[Behaviour]:
    """The same behaviours. Where a scenario says by whom the piece is ``called_by``, the runs of a task are in blocks
    of one dimension and of two, in turn; of runs under the checker the first one is in both, half of its schedules in
    each. And beside a ``warp`` that calls, or a thread, there are then one or two warps more: they call nothing and
    wait where the test's kernel ends (``meet_at_the_end()`` of grader.cuh), so that a barrier in the piece is seen."""
    seen: Counter[int] = Counter()
    for behaviour in behaviours:
        yield replace(behaviour, cases=_in_blocks(behaviour.cases, seen[behaviour.task]))
        seen[behaviour.task] += 1


def _in_blocks(cases: Cases, begin: int) -> Cases:
    def varied(rng: Rng) -> Iterator[Case]:
        for number, case in enumerate(cases(rng), begin):
            scenario = case.scenario
            if not isinstance(scenario, Scenario) or not scenario.called_by or scenario.exhaustive or scenario.hardware:
                yield case
                continue
            runs = 2 if number == begin and len(scenario.check_seeds) > 1 else 1
            for run in range(runs):
                idle = 32 * int(rng.integers(1, 3)) if scenario.check_seeds and scenario.called_by == "warp" else 0
                seeds = scenario.check_seeds[run::runs]
                width = _width(rng) if (number + run) % 2 else 1
                yield _in_block(case, replace(scenario, check_seeds=seeds), idle, width)

    return varied


def _width(rng: Rng) -> int:
    return int(rng.choice((4, 8, 16)))  # so neither threadIdx.x nor threadIdx.x % 32 is a lane


def _in_block(case: Case, scenario: Scenario, idle: int, width: int) -> Case:
    """With blocks of whole warps and ``idle`` threads more, in rows of ``width``; 1: in one dimension."""

    def block(launch: Launch) -> int | tuple[int, int]:
        assert isinstance(launch.block, int), "a block of two dimensions already"
        threads = min(round_up(launch.block, 32) + idle, _MOST_THREADS) if idle or width > 1 else launch.block
        return (width, threads // width) if width > 1 else threads

    launches = tuple(tuple(replace(launch, block=block(launch)) for launch in own) for own in scenario.launches)
    return replace(case, scenario=replace(scenario, launches=launches))


def threads_for(callers: int) -> int:
    """Of a block, if so many of them call, by ``caller()`` of grader.cuh: lane 0 of each warp calls nothing."""
    return round_up(callers, 31) // 31 * 32


def on_fabrics(cases: Cases, *fabrics: Fabric) -> Cases:
    """The same runs on each of these fabrics."""

    def everywhere(rng: Rng) -> Iterator[Case]:
        for fabric in fabrics:
            for case in cases(rng):
                yield replace(case, scenario=replace(of_kernels(case), fabric=fabric))

    return everywhere


def of_kernels(case: Case) -> Scenario:
    if not isinstance(case.scenario, Scenario):
        raise GradingError(f"{case.scenario} is a call in Python; fabrics and the checker are for kernels")
    return case.scenario


def job_numbers(job: DataclassInstance, *before: int) -> NDArray[np.int64]:
    """``before``, then the fields of ``job``: the struct Job of the .cu file, which holds 64-bit integers only."""
    return np.array([*before, *asdict(job).values()], dtype=np.int64)


def refs(*names: str) -> Sequence[Ref]:
    return [Ref(name) for name in names]


def memory_wrong(got: Array, want: Array, in_message: NDArray[np.bool_], when: str) -> str | None:
    wrong = got != want
    if np.any(wrong & ~in_message):
        return f"{int(np.sum(wrong & ~in_message))} bytes outside the message were overwritten"
    if np.any(wrong):
        return f"{int(wrong.sum())} of {int(in_message.sum())} bytes of the message are wrong {when}"
    return None


# ---- packets of 16 bytes: the emulator's stores arrive in program order, so only accesses tell one from two ------
Kinds = NDArray[np.int64]  # of accesses to one rank's array: [ranks, *KINDS] of ep_lib/emulator/accesses.py


def narrow(kinds: Kinds) -> Array:
    """How many loads, stores and updates of kernels were not 16 bytes as one access."""
    counts: Array = kinds.sum(axis=0)[..., COUNT]
    others: Array = counts.sum(axis=(1, 2)) - _wide(counts) - counts[:, NIC].sum(axis=-1)
    return others


def not_sent_as_packets(kinds: Kinds, words: int) -> str | None:
    """Where more than one store of 16 bytes was made for each of so many words."""
    stores, updates = (int(narrow(kinds)[what]) for what in (STORES, UPDATES))
    if stores + updates:
        how = f"({stores} stores and {updates} atomics of 8 bytes or less)"
        return f"the packets' words were stored one by one {how}: a packet is one store"
    wide = _wide(kinds.sum(axis=0)[..., COUNT])
    sent = int(wide[STORES]) // 2 + int(wide[UPDATES])  # of a store each of the two words counts
    return f"for {words} words, {sent} packets were sent; each word once is right" if sent > words else None


def _wide(counts: Array) -> Array:
    wide: Array = counts[:, OF_PAIR].sum(axis=-1) + counts[:, ATOMIC, WIDTHS.index(16)]
    return wide
