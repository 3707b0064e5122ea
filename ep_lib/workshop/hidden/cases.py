"""How the hidden tests of several exercises make their cases."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec

import numpy as np
from numpy.typing import NDArray

from ep_lib.emulator.fabric import Fabric
from ep_lib.errors import GradingError
from ep_lib.memory.device_state import PHASE_NAMES
from ep_lib.workshop.hidden import CANARY_TASK, Behaviour, Case, Rng
from ep_lib.workshop.scenario import Array, Outputs, Scenario

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

P = ParamSpec("P")
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


# ---- what is sent, and to whom --------------------------------------------------------------------------------------
def random_bytes(rng: Rng, count: int) -> Bytes:
    return rng.integers(0, 256, count, dtype=np.uint8)


def random_words(rng: Rng, shape: int | Sequence[int], dtype: Any = np.uint64, most: int = 1 << 62) -> Array:
    """Numbers below ``most``, some of them 0: what is sent, summed or copied is no less if it is nothing."""
    numbers = rng.integers(1, most, shape).astype(dtype)
    numbers[rng.random(numbers.shape) < 0.2] = 0
    return numbers


def senders(route: Route) -> list[int]:
    """By rank: which rank sends to it, -1: none."""
    return [route.index(me) if me in route else -1 for me in range(len(route))]


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def job_numbers(job: DataclassInstance, *before: int) -> NDArray[np.int64]:
    """``before``, then the fields of ``job``: the struct Job of the .cu file, which holds 64-bit integers only."""
    return np.array([*before, *asdict(job).values()], dtype=np.int64)


# ---- cases ----------------------------------------------------------------------------------------------------------
def drawn(made: Callable[Concatenate[Rng, P], Iterator[Case]]) -> Callable[P, Cases]:
    """A generator of cases as a function that is called without ``rng``, which comes when they are drawn."""
    return lambda *args, **named: lambda rng: made(rng, *args, **named)


def one(made: Callable[Concatenate[Rng, P], Case], *args: P.args, **named: P.kwargs) -> Cases:
    return lambda rng: iter([made(rng, *args, **named)])


def first(cases: Cases) -> Cases:
    """The first case alone, for a public check."""
    return _beginning(cases, 1)


def rehearsed(behaviours: Iterable[Behaviour], most: int = 3) -> tuple[Behaviour, ...]:
    """The first ``most`` cases of each, for the public checks: what they call "ok" is not wrong in kind. The hidden
    tests have the other cases; ``benchmarks/mutants.py --check`` shows what would get through here and fail there."""
    return tuple(replace(each, cases=_beginning(each.cases, most)) for each in behaviours)


def _beginning(cases: Cases, most: int) -> Cases:
    return lambda rng: itertools.islice(cases(rng), most)


def all_of(*several: Cases) -> Cases:
    """The cases of each, one after the other."""
    return lambda rng: itertools.chain.from_iterable(cases(rng) for cases in several)


def under_checker(cases: Cases, seeds: int = 4) -> Cases:
    """The same runs, over several schedules, with every access watched.

    After the first rank's launches the canary runs: if a report does not name it, the checker was off.
    """

    def checked(rng: Rng) -> Iterator[Case]:
        for case in cases(rng):
            scenario = of_kernels(case)
            launches = [list(scenario.launched_by(rank)) for rank in range(scenario.ranks)]
            examine = next(launch for own in launches for launch in own)
            launches[0].append(replace(examine, grid=2, block=32, task=CANARY_TASK))
            yield replace(case, scenario=replace(scenario, launches=launches, check_seeds=tuple(range(seeds))))

    return checked


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


def given(case: Case, name: str, rank: int = 0) -> Array:
    """What an array of the case holds at first."""
    content = of_kernels(case).arrays(name)[rank]
    assert isinstance(content, np.ndarray), f"the runner fills {name}"
    return content


# ---- judging --------------------------------------------------------------------------------------------------------
def each_rank(ranks: int, judge: Callable[[Outputs, int], str | None]) -> Callable[[Outputs], str | None]:
    """The first problem of any rank."""
    return lambda out: next(filter(None, (judge(out, rank) for rank in range(ranks))), None)


class Fault(NamedTuple):
    """What ``note_fault()`` of grader.cuh has written."""

    code: int
    phase: int
    peer: int
    slot: int
    seen: int
    expected: int

    def is_about(self, phase: str, *peer_and_slot: int) -> bool:
        return (PHASE_NAMES[self.phase], self.peer, self.slot)[: 1 + len(peer_and_slot)] == (phase, *peer_and_slot)


def fault_of(noted: Array) -> Fault:
    return Fault(*(int(value) for value in noted.astype(np.int64)))


def memory_wrong(got: Array, want: Array, in_message: NDArray[np.bool_], when: str) -> str | None:
    wrong = got != want
    if np.any(wrong & ~in_message):
        return f"{int(np.sum(wrong & ~in_message))} bytes outside the message were overwritten"
    if np.any(wrong):
        return f"{int(wrong.sum())} of {int(in_message.sum())} bytes of the message are wrong {when}"
    return None
