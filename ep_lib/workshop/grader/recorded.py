"""The run of a failed test, recorded for the step-by-step page in the grader's child, behind its walls."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ep_lib.emulator.recording import Found
from ep_lib.runtime.check import record
from ep_lib.runtime.rank import Rank
from ep_lib.viz.time_travel import data_of
from ep_lib.workshop.grader.checked import WEAK, exhausted
from ep_lib.workshop.grader.feedback import is_canary, without_test_places
from ep_lib.workshop.grader.scenario import Array, Scenario


def run_of(main: Callable[[Rank], list[Array]], mine: Path, scenario: Scenario) -> dict[str, Any]:
    """The data of the page: the first seed with a finding, if the checker was on; or a failing schedule.

    ``main``: each rank's function in the scenario (Runner.main)."""
    schedule, memory = None, "sc"
    if scenario.exhaustive:
        main, memory = _alarmed(main, scenario), WEAK
        schedule = next((found.schedule for found in exhausted(main, scenario).findings), "")
    for seed in scenario.check_seeds or (scenario.seed if schedule is None else 0,):
        recording = record(main, seed=seed, volatile="plain", memory=memory, schedule=schedule, **scenario.world)
        recording = dataclasses.replace(recording, found=tuple(filter(_is_of_the_learner, recording.found)))
        if recording.found:
            break
    data = data_of(recording, tell=lambda text: without_test_places(text).replace(f"{mine}/", ""))
    return {"seed": recording.seed, "data": _as_theirs(data)}


def _as_theirs(part: Any) -> Any:
    """The page's data, with the learner's files named as in the grader's feedback; their text is unchanged."""
    if isinstance(part, str):
        return part.replace("../mine/", "")
    if isinstance(part, dict):
        return {key: value if key == "lines" else _as_theirs(value) for key, value in part.items()}
    return list(map(_as_theirs, part)) if isinstance(part, (list, tuple)) else part


def _alarmed(main: Callable[[Rank], list[Array]], scenario: Scenario) -> Callable[[Rank], list[Array]]:
    """The same, as a program that raises on a mistake, for the checker."""

    def alarmed(rank: Rank) -> list[Array]:
        outputs = main(rank)
        if scenario.alarm and outputs[scenario.outputs.index(scenario.alarm)].any():
            raise AssertionError("this is a run of which the test's message tells")
        return outputs

    return alarmed


def _is_of_the_learner(found: Found) -> bool:
    """Whether a finding is the learner's: not the grader's own race, and not different results, which inputs may
    allow."""
    sides = [side for side in (found.finding.first, found.finding.second) if side is not None]
    return found.finding.kind != "values differ" and not (sides and is_canary(sides))
