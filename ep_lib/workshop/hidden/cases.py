"""How the hidden tests make their cases: one or several, under the checker, on fabrics."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec

import numpy as np

from ep_lib.emulator.fabric import Fabric
from ep_lib.errors import GradingError
from ep_lib.workshop.grader.scenario import Array, Call, Scenario
from ep_lib.workshop.hidden import CANARY_TASK, Case, Rng

P = ParamSpec("P")
Cases = Callable[[Rng], Iterator[Case]]


def drawn(made: Callable[Concatenate[Rng, P], Iterator[Case]]) -> Callable[P, Cases]:
    """Turns a generator of cases into a function that takes all arguments but ``rng``, which follows at the drawing."""
    return lambda *args, **named: lambda rng: made(rng, *args, **named)


def one(made: Callable[Concatenate[Rng, P], Case], *args: P.args, **named: P.kwargs) -> Cases:
    return lambda rng: iter([made(rng, *args, **named)])


def several(made: Callable[..., Case], *given: tuple[Any, ...], **named: Any) -> Cases:
    """A case from each of ``given``, which are the arguments of ``made``."""
    return lambda rng: (made(rng, *arguments, **named) for arguments in given)


def calling(function: str, judge: Callable[[Any], str | None], of_ranks: int = 0, /, **arguments: Any) -> Case:
    """A call of a function of the exercise's program, judged by its result. ``of_ranks``: with that many pieces."""
    return Case(Call(function, arguments, of_ranks), lambda outputs: judge(outputs.seen))


def all_of(*parts: Cases) -> Cases:
    """The cases of each, one after the other."""
    return lambda rng: itertools.chain.from_iterable(cases(rng) for cases in parts)


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
    """The initial content of an array of the case."""
    content = of_kernels(case).arrays(name)[rank]
    assert isinstance(content, np.ndarray), f"the runner fills {name}"
    return content
