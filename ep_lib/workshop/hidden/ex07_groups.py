"""Hidden tests of exercise 07_groups: rows go home in groups, over several epochs, and in an order that is fair."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ep_lib.workshop.grader.scenario import Launch, Outputs, Room, Scenario
from ep_lib.workshop.hidden import Behaviour, Case, Rng
from ep_lib.workshop.hidden.cases import Cases, all_of, drawn, on_fabrics, one, several, under_checker
from ep_lib.workshop.hidden.inputs import Job, job_numbers, job_of, random_words
from ep_lib.workshop.hidden.judging import each_rank
from ep_lib.workshop.hidden.networks import IN_A_NODE

# Mirrors constants of the .cu file.
_GROUPS, _ORDER, _SIGNAL, _WAIT = 1, 2, 4, 8
_MANY_GROUPS = (1 << 16) + 464

_Job = job_of(__file__)


def _groups_case(rng: Rng, rows: int, group_rows: int) -> Case:
    job = _Job(rows=rows, group_rows=group_rows, row_words=0, learners=_GROUPS)  # nothing is sent
    number = np.arange(1, rows + 1)
    ends = (number == rows) | (number % group_rows == 0)

    def judge(out: Outputs) -> str | None:
        groups, none, many = out["noted"][0][[0, -2, -1]].tolist()
        completes = out["noted"][0][1:-2] != 0
        if none != 0:
            return f"no rows in groups of {group_rows} are {none} groups; 0 is right"
        if many != _MANY_GROUPS:
            return (
                f"{_MANY_GROUPS * group_rows} rows in groups of {group_rows} are {many} groups; {_MANY_GROUPS} is right"
            )
        if groups != (right := -(-rows // group_rows)):
            return f"{rows} rows in groups of {group_rows} are {groups} groups; {right} is right"
        wrong = np.flatnonzero(completes != ends)
        if not wrong.size:
            return None
        index = int(wrong[0])
        what = "completes" if completes[index] else "does not complete"
        return f"of {rows} rows in groups of {group_rows}, row {index} {what} its group"

    return Case(_scenario(job, rng, 2, 1, notes=3 + rows), judge)


def _order_case(rng: Rng, ranks: int, groups: int) -> Case:
    items = groups * (ranks - 1)
    job = _Job(items=items, learners=_ORDER)

    def judge(out: Outputs) -> str | None:
        said = np.stack([out["noted"][rank].reshape(groups, ranks - 1, 2) for rank in range(ranks)])
        for rank in range(ranks):
            for group in range(groups):
                first = group * (ranks - 1)
                named = said[rank, group]
                if np.any(named[:, 1] != group):
                    which = sorted(set(named[:, 1].tolist()))
                    return (
                        f"with {ranks} ranks, items {first} to {first + ranks - 2} are of groups {which}, not {group}"
                    )
                if sorted(named[:, 0].tolist()) != [other for other in range(ranks) if other != rank]:
                    return f"with {ranks} ranks, group {group} of rank {rank} goes to ranks {named[:, 0].tolist()}"
        for item in range(items):
            owners = said[:, item // (ranks - 1), item % (ranks - 1), 0].tolist()
            if len(set(owners)) < ranks:
                return f"all ranks at item {item} send to ranks {owners}: two of them to the same one"
        return None

    return Case(_scenario(job, rng, ranks, 1, notes=2 * items), judge)


def _rows_case(rng: Rng, job: Job, ranks: int, epochs: int = 3) -> Case:
    scenario = _scenario(job, rng, ranks, epochs, notes=1 + job.rows)
    sources = scenario.arrays("source")

    def judge(out: Outputs, me: int) -> str | None:
        if int(out["noted"][me][0]) == 1:
            return "a group had come, and the wait for it did not return true"
        for other in set(range(ranks)) - {me}:
            got = out["out"][me][:, other]
            if np.any(got != sources[other]):
                epoch, row = map(int, np.argwhere((got != sources[other]).any(axis=2))[0])
                return f"in epoch {epoch + 1}, row {row} of rank {other} was not there after the wait on rank {me}"
        want = np.zeros((ranks, job.max_groups), np.uint64)
        want[:, : -(-job.rows // job.group_rows)] = 2 * epochs * job.unit + job.ahead
        want[me] = 0
        if np.any(out["arrived"][me] != want):
            source, group = map(int, np.argwhere(out["arrived"][me] != want)[0])
            entry = int(out["arrived"][me][source, group])
            return f"on rank {me}, the entry of rank {source} and group {group} is {entry}"
        return None

    return Case(scenario, each_rank(ranks, judge))


def _scenario(job: Job, rng: Rng, ranks: int, epochs: int, notes: int) -> Scenario:
    shape = (ranks, job.rows, job.row_words)
    return Scenario(
        ranks=ranks,
        launches=[Launch(2, 32, (epoch,)) for epoch in range(1, epochs + 1)],
        called_by="warp",
        outputs=("arrived", "out", "noted"),
        symmetric={"returned": Room((2, *shape), np.uint64), "arrived": np.zeros((ranks, job.max_groups), np.uint64)},
        local={
            "source": [random_words(rng, (epochs, *shape[1:])) for _ in range(ranks)],
            "out": Room((epochs, *shape), np.uint64),
            "noted": Room(notes, np.int32),
            "numbers": job_numbers(job),
        },
    )


# ---- what is asked --------------------------------------------------------------------------------------------------
@drawn
def _trips(rng: Rng, /, learners: int, *ranks: int, **more: int) -> Iterator[Case]:
    for seed, count in enumerate(ranks):
        unit = 1 << 32 if seed % 2 else 1
        yield _rows_case(rng, _Job(6 + seed, delay=10 * (seed % 2), learners=learners, unit=unit, **more), count)


def _many_groups(learners: int) -> Cases:
    return one(_rows_case, _Job(1100, group_rows=1, max_groups=1101, row_words=1, learners=learners), 2, epochs=1)


def _everywhere(learners: int, *ranks: int) -> Cases:
    """Over NVLink, and four ranks of a node that has NICs as well."""
    return all_of(_trips(learners, *ranks), on_fabrics(_trips(learners, 4), *IN_A_NODE))


@drawn
def _in_vain(rng: Rng) -> Iterator[Case]:
    def judge(out: Outputs, me: int) -> str | None:
        gave_up, blames = out["noted"][me][:2].tolist()
        if gave_up != 1:
            return "no group came, and the wait did not return false"
        about = "a group of combine, the rank that it was to come from, and its number"
        return None if blames == 1 else f"the recorded fault is not about {about}"

    case = _rows_case(rng, _Job(learners=_WAIT, silent=1), ranks=2, epochs=1)
    yield replace(case, judge=each_rank(2, judge), endless=True)


_UP = "Round up; a group ends where it is full, and with the last row."
_FAIR = "Counted from this rank on, each other rank once per group, and all ranks at the same item name different ones."
_TELL = "Entry [rank()][group] of the owner's copy, stored with release at system scope."
_LOOK = "Entry [from][group] of this rank's own copy, with acquire, until it is at least the epoch."

_SIZES = several(_groups_case, (7, 3), (6, 3), (1, 1), (5, 1), (8, 3), (4, 16), (64, 16), (66_000, 700))
_ORDERS = several(_order_case, (2, 4), (3, 3), (4, 5), (8, 3), (2, 300), (36, 3))

BEHAVIOURS = (
    Behaviour(1, "groups of one row and of many", _SIZES, _UP),
    Behaviour(2, "two to eight ranks", _ORDERS, _FAIR),
    Behaviour(3, "every group is told to its owner", _everywhere(_SIGNAL, 2, 4), _TELL),
    Behaviour(3, "more groups than 10 bits count", _many_groups(_SIGNAL), _TELL),
    Behaviour(3, "a group's rows are there when it is told", under_checker(_trips(_SIGNAL, 2, 3)), _TELL),
    Behaviour(4, "every group is waited for", _everywhere(_WAIT, 2, 4), _LOOK),
    Behaviour(4, "more groups than 10 bits count", _many_groups(_WAIT), _LOOK),
    Behaviour(4, "a sender that is an epoch ahead", _trips(_WAIT, 2, 3, ahead=1), _LOOK),
    Behaviour(4, "a group that never comes", _in_vain(), "False after the limit."),
    Behaviour(4, "a group's rows may be read after the wait", under_checker(_trips(_WAIT, 2, 3)), _LOOK),
)
