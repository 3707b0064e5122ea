"""Hidden tests of exercise 09_own_dispatch: whole dispatches of several rounds, the checker, and virtual time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ep_lib.emulator.accesses import BYTES, STORES
from ep_lib.jit.device_state import FAULT_TIMEOUT
from ep_lib.workshop.grader.scenario import Array, Launch, Outputs, Room, Scenario
from ep_lib.workshop.hidden import Behaviour, Case, Rng
from ep_lib.workshop.hidden.cases import Cases, drawn, given, one, under_checker
from ep_lib.workshop.hidden.inputs import Job, job_numbers, job_of
from ep_lib.workshop.hidden.judging import each_rank, fault_of, not_sent_as_packets

# Mirrors constants of the .cu file.
_WANTED, _TELL, _SEND_ROW, _RECEIVE, _ALL = (1 << bit for bit in range(5))
_LANES, _FAULT = 32, 6
_HARDWARE = "h100-cx7"  # the hardware model for the last task's virtual time
_SLOWER = 1.5  # the allowed time, relative to the grader's own parts in the same order

_Job = job_of(__file__)


@dataclass(frozen=True)
class _Shape:
    """How an examination is launched."""

    ranks: int = 4
    blocks: int = 1
    warps: int = 2
    hardware: str = ""


def _routes(rng: Rng, job: Job, shape: _Shape) -> Array:
    """int32 [rounds, max_tokens, top_k]: some choices are -1, some name an expert twice."""
    experts = job.experts_per_rank * shape.ranks
    size = (job.rounds, job.max_tokens, job.top_k)
    chosen = rng.integers(0, experts, size, dtype=np.int32)
    chosen[rng.random(size) < 0.2] = -1
    return chosen


def _bits(choices: Array, rank: int, job: Job) -> int:
    local = [int(e) - rank * job.experts_per_rank for e in choices if e >= 0]
    return sum(1 << e for e in {e for e in local if 0 <= e < job.experts_per_rank})


def _dispatch(rng: Rng, job: Job, shape: _Shape) -> Case:
    """Judges every expert's rows, the bits of every slot, and that nothing else was written."""
    everybody, slots = range(shape.ranks), shape.ranks * job.max_tokens
    full = bool(shape.hardware)
    tokens = [job.max_tokens if full else int(rng.integers(job.max_tokens // 2, job.max_tokens + 1)) for _ in everybody]
    x = [rng.integers(1, 1 << 31, (job.rounds, job.max_tokens, job.row_vectors, 4), np.int32) for _ in everybody]
    routes = [_routes(rng, job, shape) for _ in everybody]
    if job.missing:  # rank 0 wants the token
        routes[-1][:, :, 0] = 0
    before = int(rng.integers(1, 1 << 31))
    out_shape = (job.rounds, job.experts_per_rank, slots, job.row_vectors, 4)

    def judge(out: Outputs, me: int) -> str | None:
        wanted = np.zeros((job.rounds, slots), np.uint64)
        rows = np.full(out_shape, before, np.int32)
        for round_, (source, there) in itertools.product(range(job.rounds), enumerate(tokens)):
            for token in range(there):
                slot, bits = source * job.max_tokens + token, _bits(routes[source][round_, token], me, job)
                wanted[round_, slot] = bits
                experts = [e for e in range(job.experts_per_rank) if bits >> e & 1]
                rows[round_, experts, slot] = x[source][round_, token]
        if out.accesses and (problem := _sent_wrong(out, me, tokens, routes, job)):
            return problem
        if np.any(out["rows"][me][np.all(wanted == 0, axis=0)]):
            return f"rank {me} got the row of a token that none of its experts wants"
        if problem := _wrong(out["wanted"][me], wanted, out["out"][me], rows):
            return f"{problem} (rank {me} of {shape.ranks}, up to {job.max_tokens} tokens)"
        return None

    return Case(_scenario(job, shape, tokens, x, routes, before), each_rank(shape.ranks, judge))


def _sent_wrong(out: Outputs, me: int, tokens: list[int], routes: list[Array], job: Job) -> str | None:
    """Whether a rank sent more than one packet for a token, or its row more than once, to rank ``me``."""
    if job.learners & (_TELL | _ALL):
        packets = len(routes) * job.max_tokens * job.rounds
        if problem := not_sent_as_packets(out.accesses["routes"][me], packets):
            return problem
    for source, chosen in enumerate(routes):
        rows = sum(bool(_bits(each, me, job)) for round_ in chosen for each in round_[: tokens[source]])
        got = int(out.accesses["rows"][me][source, STORES, ..., BYTES].sum())
        if got > (most := rows * job.row_vectors * 16) and job.learners & (_SEND_ROW | _ALL):
            return f"for {rows} rows, {most} bytes, rank {source} wrote {got} bytes on rank {me}: a row crosses once"
    return None


def _wrong(wanted: Array, right_bits: Array, out: Array, right_rows: Array) -> str | None:
    if np.any(wanted != right_bits):
        return f"{int((wanted != right_bits).sum())} of {wanted.size} slots say that other experts want their token"
    wrong = (out != right_rows).any(axis=(-1, -2))
    if np.any(wrong):
        return f"{int(wrong.sum())} of {wrong.size} rows of the experts are wrong"
    return None


def _masks(rng: Rng, job: Job, shape: _Shape) -> Case:
    """Judges wanted_on alone."""
    job = replace(job, learners=_WANTED, rounds=1)
    routes = [_routes(rng, job, shape) for _ in range(shape.ranks)]
    x = [np.zeros((1, job.max_tokens, job.row_vectors, 4), np.int32) for _ in range(shape.ranks)]

    def judge(out: Outputs) -> str | None:
        for (me, chosen), token in itertools.product(enumerate(routes), range(job.max_tokens)):
            for rank, got in enumerate(out["masks"][me][token].tolist()):
                if got != (right := _bits(chosen[0, token], rank, job)):
                    which = ", ".join(map(str, chosen[0, token]))
                    return f"of the choices {which}, the bits for rank {rank} are wrong: {got:#b}; {right:#b} is right"
        return None

    tokens = [job.max_tokens] * shape.ranks
    return Case(_scenario(job, shape, tokens, x, routes, 0), judge)


def _missing(rng: Rng, missing: int) -> Case:
    """The packet of the last rank's last token never comes, or its row does not: receive_warp must give up and return
    false in every lane."""
    job, shape = _Job(max_tokens=3, rounds=1, learners=_RECEIVE, missing=missing), _Shape(ranks=2, warps=1)
    case = _dispatch(rng, job, shape)
    what = "packet" if missing == 1 else "row"
    came = job.max_tokens + int(given(case, "tokens", 1)[0]) - 1

    def judge(out: Outputs) -> str | None:
        lanes = out["noted"][0][:_LANES].astype(np.int64)
        if np.any(lanes != lanes[0]):
            return f"the lanes of a warp were told different things about a {what} that never came"
        fault = fault_of(out["noted"][0][_LANES:])
        if fault.code != FAULT_TIMEOUT or fault.peer != 1:
            return f"a {what} that never came was not reported as a wait for rank 1 that ran into its limit"
        if lanes[0] != came:
            return f"the {what} of call {came + 1} never came, and receive_warp was true {lanes[0]} times"
        return None

    return replace(case, judge=judge, endless=missing == 2)


def _scenario(job: Job, shape: _Shape, tokens: list[int], x: list[Array], routes: list[Array], before: int) -> Scenario:
    slots = shape.ranks * job.max_tokens
    return Scenario(
        ranks=shape.ranks,
        launches=Launch(shape.blocks, 32 * shape.warps, (shape.warps,)),
        called_by="block" if job.learners == _ALL else "warp",
        outputs=("rows", "out", "wanted", "masks", "noted"),
        symmetric={
            "rows": np.zeros((slots, job.row_vectors, 4), np.int32),
            "arrived": np.zeros(slots, np.uint64),
            "routes": np.zeros((slots, 2), np.uint64),
            "met": np.zeros(shape.ranks, np.uint64),
        },
        local={
            "x": x,
            "topk_idx": routes,
            "tokens": [np.array([count], np.int32) for count in tokens],
            "out": np.full((job.rounds, job.experts_per_rank, slots, job.row_vectors, 4), before, np.int32),
            "wanted": np.full((job.rounds, slots), before, np.uint64),
            "masks": Room((job.max_tokens, shape.ranks), np.uint64),
            "noted": np.zeros(_LANES + _FAULT, np.uint64),
            "numbers": job_numbers(job),
        },
        hardware=shape.hardware,
        watched=("routes", "rows"),
    )


# ---- what is asked --------------------------------------------------------------------------------------------------
@drawn
def _whole(rng: Rng, learners: int, *, sizes: int = 3) -> Iterator[Case]:
    """Several sizes, numbers of ranks and schedules, and two epochs each."""
    for seed in range(sizes):
        experts, epoch = (2, 3, 40)[seed], 1 + 7 * seed + (seed % 2 << 32)
        job = _Job(4 + 3 * seed, 17 - 16 * (seed % 2), 4 - seed, experts, epoch=epoch, learners=learners)
        yield _dispatch(rng, job, _Shape(ranks=(4, 8, 2)[seed % 3], warps=1 + seed))
    if sizes == 3:  # more ranks than lanes, and more tokens than 8 bits count
        yield _dispatch(rng, _Job(1, 1, 3, 2, rounds=1, learners=learners), _Shape(ranks=36, warps=1))
        yield _dispatch(rng, _Job(300, 1, 2, 2, rounds=1, learners=learners), _Shape(ranks=2))


def _checked(learners: int) -> Cases:
    return under_checker(_whole(learners, sizes=1))


@drawn
def _in_time(rng: Rng) -> Iterator[Case]:
    """The learner's parts take at most _SLOWER times as long as the grader's own, on the same clock."""
    limit = 0.0

    def measure(out: Outputs) -> str | None:
        nonlocal limit
        limit = _SLOWER * out.nanoseconds
        return None

    shape = _Shape(blocks=4, warps=4, hardware=_HARDWARE)
    job = _Job(max_tokens=16, row_vectors=448, top_k=4, experts_per_rank=4, rounds=1)
    yield replace(_dispatch(rng, job, shape), judge=measure)
    own = _dispatch(rng, replace(job, learners=_ALL), shape)

    def judge(out: Outputs) -> str | None:
        if problem := own.judge(out):
            return problem
        took, most = out.nanoseconds / 1e3, limit / 1e3
        slow = f"it took {took:.1f} us on the virtual clock; {most:.1f} us are allowed"
        return slow if out.nanoseconds > limit else None

    yield replace(own, judge=judge)


_BITS = (
    "Rank r has experts r * experts_per_rank and on; the bit's number counts from the first of them; -1 is no expert."
)
_PACKETS = "Every rank gets a packet for every token, also one of no bits, into the slot (this rank, token)."
_ROWS = "The row to each rank that wants it, once; a __syncwarp; then each rank's signal, with release."
_TAKE = "Packet, then (if wanted) the signal by wait_until_ge_warp, then the copies; all lanes return the same."
_ORDER = "Packets, rows, then wait; each token and each slot is one warp's, and all warps of the grid have some."

BEHAVIOURS = (
    Behaviour(1, "the right bits", one(_masks, _Job(20, top_k=5), _Shape()), _BITS),
    Behaviour(1, "many experts on a rank", one(_masks, _Job(9, 1, 36, 64), _Shape(8)), _BITS),
    Behaviour(2, "every rank hears of every token", _whole(_TELL), _PACKETS),
    Behaviour(2, "it is right in every schedule", _checked(_TELL), _PACKETS),
    Behaviour(3, "every row arrives", _whole(_SEND_ROW), _ROWS),
    Behaviour(3, "it is right in every schedule", _checked(_SEND_ROW), _ROWS),
    Behaviour(4, "every expert gets its rows", _whole(_RECEIVE), _TAKE),
    Behaviour(4, "a packet that never comes", one(_missing, 1), _TAKE),
    Behaviour(4, "a row that never comes", one(_missing, 2), _TAKE),
    Behaviour(4, "it is right in every schedule", _checked(_RECEIVE), _TAKE),
    Behaviour(5, "the whole dispatch", _whole(_ALL), _ORDER),
    Behaviour(5, "it is right in every schedule", _checked(_ALL), _ORDER),
    Behaviour(5, "it is fast", _in_time(), _ORDER),
)
