"""Hidden tests of exercise 06_slots: each function with random numbers, compared with NumPy's prefix sums."""

from __future__ import annotations

import numpy as np

from ep_lib.emulator.fabric import Fabric
from ep_lib.workshop.grader.scenario import Array, Launch, Outputs, Room, Scenario
from ep_lib.workshop.hidden import Behaviour, Case, Rng
from ep_lib.workshop.hidden.cases import on_fabrics, one, several, under_checker
from ep_lib.workshop.hidden.inputs import Job, job_numbers, job_of, random_words
from ep_lib.workshop.hidden.networks import NODES

_VECTOR_BYTES = 16
_MOST = 1 << 25  # of a value or a count: the sums stay below 1 << 31
_IN_A_NODE = Fabric("rc", ranks_per_node=2), NODES

_Job = job_of(__file__)


def _votes_case(rng: Rng, warps: int, calls: int = 3) -> Case:
    votes = (rng.random((calls, 32 * warps)) < rng.choice([0.1, 0.5, 0.9], (calls, 1))).astype(np.int32)
    votes[0], votes[-1] = 1, 0
    by_warp = votes.reshape(calls, warps, 32)
    below = np.cumsum(by_warp, axis=2) - by_warp
    totals = np.broadcast_to(by_warp.sum(axis=2, keepdims=True), by_warp.shape)
    return _calls_case(votes, below.reshape(calls, -1), totals.reshape(calls, -1), "votes_below", "warp")


def _warps_case(rng: Rng, warps: int, calls: int = 5) -> Case:
    values = rng.integers(-_MOST, _MOST, (calls, warps)).astype(np.int32)  # a value is any int
    values[1], values[-1, -1] = 0, -values[-1, :-1].sum()  # a total of 0 is a total
    below = np.repeat(np.cumsum(values, axis=1) - values, 32, axis=1)
    totals = np.repeat(values.sum(axis=1, keepdims=True), 32 * warps, axis=1)
    return _calls_case(values, below, totals, "sum_of_lower_warps", "block")


def _calls_case(given: Array, answers: Array, totals: Array, name: str, called_by: str) -> Case:
    calls, threads = answers.shape

    def judge(out: Outputs) -> str | None:
        told = out["told"][0].reshape(calls, threads, 2)
        for what, got, want in (("returned", told[:, :, 0], answers), ("gave a total of", told[:, :, 1], totals)):
            wrong = np.argwhere(got != want)
            if wrong.size:
                call, thread = map(int, wrong[0])
                said, right = int(got[call, thread]), int(want[call, thread])
                return f"in call {call} of {name}, thread {thread} of {threads} {what} {said}; {right} is right"
        return None

    return Case(_scenario(called_by, _Job(threads, calls), given, 2 * calls * threads), judge)


def _ranks_case(rng: Rng, sources: int, stride: int) -> Case:
    counts = random_words(rng, (sources, stride), np.int32, _MOST)
    given = np.concatenate([np.full(1, 77, np.int32), counts.ravel()])
    want = np.cumsum(counts[:, 0]) - counts[:, 0]

    def judge(out: Outputs) -> str | None:
        got = out["told"][0]
        wrong = np.flatnonzero(got != want)
        if not wrong.size:
            return None
        source = int(wrong[0])
        return (
            f"with {sources} sources and a stride of {stride}, the rows before source {source} are {int(got[source])}, "
            f"and should be {int(want[source])}"
        )

    return Case(_scenario("thread", _Job(sources, stride=stride), given, sources), judge)


def _address_case(rng: Rng, ranks: int, row_vectors: int, most: int) -> Case:
    given = np.stack([rng.integers(0, ranks, 32), rng.integers(0, most, 32)], axis=1).astype(np.int32)
    given[:ranks, 0], given[0, 1] = np.arange(ranks), 0
    given[ranks, 1] = most - 1
    want = given[:, 1].astype(np.int64) * row_vectors * _VECTOR_BYTES

    def judge(out: Outputs) -> str | None:
        for me in range(ranks):
            wrong = np.flatnonzero(out["told"][me] != want)
            if wrong.size:
                to, index = map(int, given[wrong[0]])
                off = int(out["told"][me][wrong[0]] - want[wrong[0]])
                return f"row {index} of rank {to}, {row_vectors} vectors long, is off by {off} bytes (on rank {me})"
        return None

    return Case(_scenario("thread", _Job(32, row_vectors=row_vectors), given, 32, ranks), judge)


def _scenario(called_by: str, job: Job, given: Array, told: int, ranks: int = 1) -> Scenario:
    return Scenario(
        ranks=ranks,
        launches=Launch(1, job.callers),
        called_by=called_by,
        outputs=("told",),
        symmetric={"rows": np.zeros((4, _VECTOR_BYTES), np.uint8)},
        local={"given": given, "told": Room(told, np.int64), "numbers": job_numbers(job)},
    )


# ---- what is asked --------------------------------------------------------------------------------------------------
_BELOW = "Bit l of the ballot is lane l; only the bits below one's own lane count, and the total counts all of them."
_SHARED = "A barrier between writing and reading, and one before the next call writes there again."
_BEFORE = "Only the sources before this one, and every stride-th count."
_ROW = "The beginning of that rank's copy, and index * row_vectors vectors further, in 64 bits."

_TABLES = several(_ranks_case, (1, 1), (2, 3), (8, 9), (32, 33), (60, 2001), (2, 70001))
_ADDRESSES = several(_address_case, (2, 1, 100), (4, 448, 4096), (4, 1024, 1 << 23))
_NEAR = under_checker(one(_address_case, 2, 9, 80), 1)

BEHAVIOURS = (
    Behaviour(1, "random votes, blocks of any size", several(_votes_case, (1,), (2,), (5,)), _BELOW),
    Behaviour(1, "one warp of two calls", under_checker(one(_votes_case, 1), 2), _BELOW),
    Behaviour(2, "random values, blocks of one to 32 warps", several(_warps_case, (1,), (2,), (7,), (32,)), _SHARED),
    Behaviour(2, "many calls through the same memory", under_checker(several(_warps_case, (2,), (4,)), 8), _SHARED),
    Behaviour(3, "tables of every size", _TABLES, _BEFORE),
    Behaviour(4, "rows near and far", on_fabrics(_ADDRESSES, Fabric("p2p")), _ROW),
    Behaviour(4, "rows of ranks of the same node", on_fabrics(_NEAR, *_IN_A_NODE), _ROW),
)

REHEARSED = 99  # cases of each, in the public checks
