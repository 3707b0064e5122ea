"""The hidden tests, one module an exercise: ``ex<name>.py``, for example ``ex01_write_signal.py``.

Such a module runs in the grader's own process and gives

    KERNELS      (path of a .cu file, kernel) of everything its scenarios launch
    BEHAVIOURS   what ``ep-lib grade`` examines, a tuple of :class:`Behaviour`; messages never show expected values
    PUBLIC       what ``ep_lib.workshop.check`` examines in the notebook: small, and its messages may show everything

Each behaviour yields cases: inputs for the child, and a judge that stays here, with the expected values in its closure.
Payloads are drawn anew from ``rng`` in every grading, so remembered answers are worth nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ep_lib.errors import GradingError
from ep_lib.workshop.scenario import Outputs, Scenario


@dataclass(frozen=True)
class Case:
    """One run: what the child gets, and how the parent judges what comes back (None = right, else what failed)."""

    scenario: Scenario
    judge: Callable[[Outputs], str | None]


@dataclass(frozen=True)
class Behaviour:
    """Something that must hold for a task's points. ``advice`` is added when a case fails."""

    task: int
    title: str  # "the data is complete when the signal arrives"
    cases: Callable[[np.random.Generator], Iterator[Case]]
    advice: str = ""


@dataclass(frozen=True)
class HiddenTests:
    """What one module gives: the kernels to compile first, as (path of the .cu file, kernel), and its behaviours."""

    kernels: tuple[tuple[str, str], ...]
    behaviours: tuple[Behaviour, ...]


def load(exercise: str, *, public: bool) -> HiddenTests:
    """The tests of exercise ``01_write_signal``; GradingError if its module is missing or incomplete."""
    name = f"{__name__}.ex{exercise}"
    try:
        module = importlib.import_module(name)
        return HiddenTests(tuple(module.KERNELS), tuple(module.PUBLIC if public else module.BEHAVIOURS))
    except (ImportError, AttributeError) as error:
        raise GradingError(f"exercise {exercise} has no complete module of tests {name}: {error}") from error
