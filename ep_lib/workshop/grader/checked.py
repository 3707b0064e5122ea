"""Runs a scenario under the checker, for a few seeds or all schedules, and selects the findings for the parent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ep_lib
from ep_lib.emulator.findings import Access, Finding
from ep_lib.workshop.grader.process.crossing import cut
from ep_lib.workshop.grader.scenario import Array, Scenario

WEAK = "ptx"  # memory of an exhaustive scenario
_EXHAUSTED_S = 60.0  # for all schedules of a scenario; a right answer takes seconds
_MAX_FINDINGS = 12  # sent to the parent; each text has at most _MAX_TEXT characters
_MAX_TEXT = 500


def checked(
    main: Callable[[ep_lib.Rank], list[Array]], scenario: Scenario
) -> tuple[dict[int, list[Array]], tuple[Finding, ...]]:
    """Runs the scenario's seeds under the checker: the last run's arrays by rank, and the findings of all."""
    arrays: dict[int, list[Array]] = {}

    def keep(rank: ep_lib.Rank) -> None:
        arrays[rank.rank] = main(rank)

    report = ep_lib.check(
        keep,
        seeds=scenario.check_seeds,
        compare_values=False,
        reduce=False,
        stop_at_failure=True,
        volatile="plain",
        memory="sc",  # grades must not depend on rare older values
        **scenario.world,
    )
    return arrays, report.findings


def exhausted(main: Callable[[ep_lib.Rank], Any], scenario: Scenario) -> ep_lib.CheckReport:
    """Every schedule of the scenario, up to the first finding."""
    return ep_lib.check(
        main,
        compare_values=False,
        stop_at_first=True,
        memory=WEAK,
        exhaustive=True,
        seconds=_EXHAUSTED_S,
        progress=False,
        **scenario.world,
    )


def told_of(findings: tuple[Finding, ...]) -> tuple[dict[str, str] | None, list[dict[str, Any]]]:
    """The finding that ended the runs, if any, and the findings about two accesses."""
    # A complaint has two accesses; a finding that ends the run has one (a kernel's fault) or none.
    complaints = [_as_json(finding) for finding in findings if finding.second is not None][:_MAX_FINDINGS]
    end = next((finding for finding in findings if finding.second is None), None)
    if end is None:
        return None, complaints
    return {"kind": end.kind, "message": cut(_end_text(end)), "location": ""}, complaints


def _end_text(end: Finding) -> str:
    return end.message if end.first is None else f"{end.message}\n  at {end.first.location}: {end.first.source}"


def _as_json(finding: Finding) -> dict[str, Any]:
    words = {key: str(getattr(finding, key))[:_MAX_TEXT] for key in ("kind", "message", "remedy", "detail", "seed")}
    sides = [_side(each) for each in (finding.first, finding.second) if each is not None]
    return {**words, "sides": sides}


def _side(access: Access) -> dict[str, str]:
    return {key: str(getattr(access, key) or "")[:_MAX_TEXT] for key in ("location", "source", "operation")}
