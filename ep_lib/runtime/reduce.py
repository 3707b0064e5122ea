"""A finding in fewer words: the fewest switches that show it, and the lines that different values come from."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from ep_lib.emulator import exploration as runs
from ep_lib.emulator import origins
from ep_lib.emulator.exploration import Exploration
from ep_lib.emulator.findings import TORN, Finding
from ep_lib.runtime.differences import digest, unequal_numbers
from ep_lib.runtime.search import MAY_FOLLOW, WEAK, Program, Search, follower, same_place

FEW = 2  # preemptions
_EVENTS_OF_STORY, _TURNS_OF_STORY = 2000, 3  # bounds of runs with few switches
_EVENTS_OF_CALM = 500_000  # for the calm run of a program too large for others: some seconds
_PAIRS = 256  # of numbers that differ, to find where they come from


def exploration_within(bounds: dict[str, Any]) -> Exploration:
    return Exploration(**bounds, reduction=runs.SLEEPING if bounds["preemptions"] is None else runs.WITHIN_BOUND)


def with_few_switches(program: Program, findings: Sequence[Finding], most: int) -> list[Finding]:
    """The findings, each with a schedule of few switches if one of ``most`` runs shows it: the calm run first, then
    runs with one or two preemptions. For programs too large for that, only the calm run is tried."""
    told = list(findings)
    if not told:
        return told
    search = Search(program, compare_values=any(finding.kind == "values differ" for finding in told))
    exploration, is_calm = follower("", _EVENTS_OF_CALM), True
    try:
        for _ in range(most):
            search.forget()
            run, more = search.try_next(exploration)
            status = exploration.status
            if status.outcome in (runs.CUT, runs.STRAYED) or run.out_of_time:
                break
            for place, finding in enumerate(told):
                shown = next((one for one in search.told if _is_the_same(finding, one)), None)
                if finding.schedule is None and shown is not None:
                    text = shown.message if finding.kind == "values differ" else finding.message
                    told[place] = reduce_schedule(
                        program, dataclasses.replace(finding, message=text, schedule=shown.schedule), most
                    )
            if all(finding.schedule is not None for finding in told):
                break
            if is_calm and status.most_events <= _EVENTS_OF_STORY:
                bounds = {"preemptions": FEW, "events": _EVENTS_OF_STORY, "turns": _TURNS_OF_STORY}
                exploration, is_calm = exploration_within(bounds), False
            elif not more:
                break
    except (*MAY_FOLLOW, KeyboardInterrupt):
        pass  # an exception in another run is no reason to lose the findings
    return told


def _with_origin(program: Program, finding: Finding) -> Finding:
    """The finding; of one that says only that a run goes wrong, with the lines that its values come from, or by which
    they belong to two rounds. Makes the run again, and the one that it is compared with."""
    differs = finding.kind == "values differ"
    if not differs and (finding.remedy or finding.kind not in ("assertion", "fault")):
        return finding
    search = Search(program, compare_values=False)
    try:
        search.measure()
        if finding.schedule is None:
            other = search.trace(finding.seed, None, program.weak_memory)
        else:
            other = search.trace(0, follower(finding.schedule), program.weak_memory)
        if (torn := origins.torn(other.trace)) is not None:
            return dataclasses.replace(finding, detail=torn.detail, remedy=TORN, place=torn.place, lines=torn.lines)
        if not differs:
            return finding
        if finding.schedule is None:
            name, one = "seed 0", search.trace(0)
        else:
            name, one = "the calm schedule", search.trace(0, follower(""), program.weak_memory)
    except (*MAY_FOLLOW, KeyboardInterrupt):
        return finding  # an exception in another run is no reason to lose it
    if digest(one.result) == digest(other.result):
        return dataclasses.replace(finding, detail="made again, both runs gave the same: main keeps what differs")
    pairs = list(itertools.islice(unequal_numbers(one.result, other.result), _PAIRS))
    origin = origins.find(one.trace, other.trace, pairs)
    if origin is None:
        return dataclasses.replace(finding, detail="kernels left the same in memory: main itself makes the difference")
    remedy = origin.remedy or finding.remedy
    return dataclasses.replace(finding, remedy=remedy, detail=origin.told(name), place=origin.place, lines=origin.lines)


def _is_the_same(finding: Finding, other: Finding) -> bool:
    return same_place(finding, other) or finding.kind == other.kind == "values differ"


def reduce_schedule(program: Program, finding: Finding, most: int | None = None) -> Finding:
    """Shortens a finding's schedule to the fewest switches by delta debugging (Zeller, Hildebrandt, 2002), in at
    most ``most`` runs, and two more for each halving of the schedule; None: no limit."""
    words = (finding.schedule or "").split()
    compares = finding.kind == "values differ"
    calm = Search(program, compare_values=compares)
    if compares and words:
        calm.try_next(follower(""))

    def shows(kept: list[str]) -> Finding | None:
        search = calm if compares else Search(program, compare_values=False)  # it keeps what results are compared with
        search.forget()
        search.try_next(follower(" ".join(kept)))
        return next((found for found in search.told if _is_the_same(finding, found)), None)

    size = len(words)
    left = None if most is None else most + 2 * size.bit_length()
    while words and size:
        for begin in range(0, len(words), size):
            if left is not None:
                if left == 0:
                    return finding
                left -= 1
            found = shows(words[:begin] + words[begin + size :])
            if found is not None:
                words = (found.schedule or "").split()  # the rest that still applies
                finding = dataclasses.replace(finding, schedule=found.schedule)
                size = min(size, len(words))
                break
        else:
            size //= 2
    return finding


def explained(program: Program, found: Sequence[Finding]) -> list[Finding]:
    """The findings with the origin of values that differ, without what another one says."""
    told = [_with_origin(program, finding) for finding in found]
    sides = {side.location.partition(" (in ")[0] for f in told for side in (f.first, f.second) if side is not None}
    for i, finding in enumerate(told):
        if finding.kind == "values differ" and sides & {*finding.lines}:
            told[i] = dataclasses.replace(finding, place="")  # another finding says what to do there
    if any(finding.remedy == TORN for finding in told):  # what any memory may show
        told = [finding for finding in told if finding.kind != WEAK]
    return told
