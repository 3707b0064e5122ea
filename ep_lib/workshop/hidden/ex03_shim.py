"""Hidden tests of exercise 03_shim: the shim's calls, on P2P, rc, srd and nodes of two, and under the checker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ep_lib.emulator.accesses import COUNT, NIC, STORES
from ep_lib.emulator.fabric import Fabric
from ep_lib.workshop.grader.scenario import Array, Launch, Outputs, Room, Scenario
from ep_lib.workshop.hidden import Behaviour, Case, Rng
from ep_lib.workshop.hidden.cases import Cases, all_of, drawn, of_kernels, on_fabrics, under_checker
from ep_lib.workshop.hidden.inputs import Job, job_numbers, job_of, random_bytes, round_up
from ep_lib.workshop.hidden.judging import each_rank, memory_wrong
from ep_lib.workshop.hidden.networks import BOTH, NODES, PAIR, RC, RING, SRD, Route, senders

# Mirrors constants of the .cu file.
_COUNTERS, _ARRIVED = 8, 3
_STORE, _QUIET, _SAME_QUEUE_PAIR, _NOTHING = range(4)
_ONE_PIECE = 16  # bytes that a NIC writes at once: more may come in several pieces

_P2P = Fabric()
_NEIGHBOURS: Route = (1, 0, 3, 2)  # of the same node
_ACROSS: Route = (2, 3, 0, 1)

_Job = job_of(__file__)


# ---- task 1 ---------------------------------------------------------------------------------------------------------
@drawn
def _pointers(rng: Rng, ranks: int = 4) -> Iterator[Case]:
    without = Fabric("rc", ranks_per_node=2, p2p=False)
    for fabric in (_P2P, RC, SRD, NODES, without):
        node = fabric.ranks_per_node
        near = [
            [a == b or fabric.kind == "p2p" or (fabric.p2p and a // node == b // node) for b in range(ranks)]
            for a in range(ranks)
        ]

        def judge(out: Outputs, me: int, near: list[list[bool]] = near) -> str | None:
            for peer, got in enumerate(out["noted"][me][:ranks].tolist()):
                to = f"from rank {me} to rank {peer}"
                if got == 2:
                    return f"the pointer {to} is not the address of that rank's own copy, or it cannot be reached"
                if got == 0 and near[me][peer]:
                    return f"there is no pointer {to}, although loads and stores reach it"
                if got == 1 and not near[me][peer]:
                    return f"there is a pointer {to}, although only the NIC reaches it"
            return None

        areas, marks = ([random_bytes(rng, size) for _ in range(ranks)] for size in (32, 8))
        counters = [np.zeros(_COUNTERS, np.uint32)] * ranks
        scenario = _scenario((-1,) * ranks, _Job(bytes=0, stride=32, target=5), areas, marks, counters)
        yield Case(replace(scenario, fabric=fabric), each_rank(ranks, judge))


# ---- tasks 2, 3 and 4 -----------------------------------------------------------------------------------------------
def _message_case(rng: Rng, task: int, job: Job, route: Route = PAIR) -> Case:
    """One message per unit along ``route``; judges memory at the counter and at the end, and every counter."""
    job = replace(job, stride=round_up(max(job.target, job.source) + job.bytes + 24, 8))
    ranks, flip = range(len(route)), np.uint8(1 if task in (2, 3) else 0)
    areas = [random_bytes(rng, job.units * job.stride) for _ in ranks]
    sources = [random_bytes(rng, job.units * job.stride) for _ in ranks]
    counters = [rng.integers(1, 1 << 32, job.units * _COUNTERS, dtype=np.uint32) for _ in ranks]
    want_area, want_counters = [a.copy() for a in areas], [c.copy() for c in counters]
    in_message = np.zeros(areas[0].size, bool)
    for me, peer in enumerate(route):
        for unit in range(job.units) if peer >= 0 else ():
            counter = want_counters[me if job.local else peer]
            at = unit * _COUNTERS + _ARRIVED
            counter[at] = (int(counter[at]) + job.value * job.times + job.beside) & 0xFFFFFFFF
            to, start = unit * job.stride + job.target, unit * job.stride + job.source
            want_area[peer][to : to + job.bytes] = sources[me][start : start + job.bytes] ^ flip
            in_message[to : to + job.bytes] = True

    def judge(out: Outputs) -> str | None:
        if out.accesses and (problem := _requests_wrong(task, out, route, job)):
            return problem
        if job.then == _NOTHING:
            return None if out["noted"][0][0] == 1 else "the call did not return"
        for me in ranks:
            if problem := _counter_wrong(out["counters"][me], want_counters[me], counters[me]):
                return problem
            if problem := memory_wrong(out["area"][me], want_area[me], in_message, "in the end"):
                return problem
            if me in route and job.bytes:
                late = int(np.sum((out["seen"][me] != want_area[me]) & in_message))
                if late:
                    return f"when the counter grew, {late} of {int(in_message.sum())} bytes had not arrived"
        return None

    return Case(_scenario(route, job, areas, sources, counters), judge)


def _requests_wrong(task: int, out: Outputs, route: Route, job: Job) -> str | None:
    """A problem if a put was more than one request, or an addition was not atomic."""
    for me in range(len(route)):
        counts = out.accesses["area"][me].sum(axis=0)[STORES, :, :, COUNT]
        if task == 3 and 0 < job.bytes <= _ONE_PIECE and me in route and (got := int(counts[NIC].sum())) != job.units:
            return f"for {job.units} puts of {job.bytes} bytes, {got} requests were posted"
        stores = out.accesses["counters"][me].sum(axis=0)[STORES, :, :, COUNT]
        if task == 4 and (got := int(stores.sum() - stores[NIC].sum())):
            return f"{got} stores were made to a counter: what others add between your load and your store is lost"
    return None


def _counter_wrong(got: Array, want: Array, before: Array) -> str | None:
    if np.array_equal(got, want):
        return None
    at = int(np.flatnonzero(got != want)[0])
    if at % _COUNTERS != _ARRIVED:
        return "a counter next to the right one changed: counters have 32 bits"
    grew, asked = (int(np.int32(np.uint32((int(x[at]) - int(before[at])) & 0xFFFFFFFF))) for x in (got, want))
    return f"a counter grew by {grew} where it should grow by {asked}"


def _scenario(route: Route, job: Job, areas: list[Array], sources: list[Array], counters: list[Array]) -> Scenario:
    ranks = len(route)
    noted = [np.zeros(max(ranks, job.units), np.uint64) for _ in range(ranks)]
    for own, counter in zip(noted, counters, strict=True):
        own[: job.units] = counter.reshape(-1, _COUNTERS)[: job.units, _ARRIVED]
    return Scenario(
        ranks=ranks,
        launches=Launch(2, max(32, 32 * job.units)),
        called_by="warp",
        outputs=("area", "counters", "seen", "noted"),
        symmetric={"area": areas, "source": sources, "counters": counters},
        local={
            "seen": Room(areas[0].size, np.uint8),
            "noted": noted,
            "numbers": [job_numbers(job, *ways) for ways in zip(route, senders(route), strict=True)],
        },
        shim=True,
        watched=("area", "counters"),
    )


# ---- what is asked --------------------------------------------------------------------------------------------------
_SIZES = (0, 1, 2, 15, 16, 17, 33, 127, 512, 513, 4099, 66_001)
_OFFSETS = ((0, 0), (1, 0), (0, 3), (5, 5), (8, 4), (15, 2))


@drawn
def _sizes(rng: Rng, task: int, then: int, route: Route) -> Iterator[Case]:
    for number, size in enumerate(_SIZES):
        target, source = _OFFSETS[number % len(_OFFSETS)]
        job = _Job(bytes=size, target=target, source=source, then=then, queue_pair=number)
        yield _message_case(rng, task, job, route)


@drawn
def _sent(rng: Rng, task: int, then: int, finishers: tuple[int, ...], route: Route) -> Iterator[Case]:
    for finisher in finishers:
        job = _Job(bytes=320, target=16, units=2, then=then, finisher=finisher, value=3, queue_pair=1)
        yield _message_case(rng, task, job, route)


def _messages(task: int, then: int, *finishers: int, route: Route = BOTH) -> Cases:
    return under_checker(_sent(task, then, finishers or (0,), route))


@drawn
def _one_request(rng: Rng) -> Iterator[Case]:
    for size in (_ONE_PIECE, 2):
        yield _message_case(rng, 3, _Job(bytes=size, units=2, then=_QUIET))


@drawn
def _on_queue_pairs(rng: Rng, task: int) -> Iterator[Case]:
    for first in (0, 5, 14):  # the last one exceeds the NIC's queue pairs
        yield _message_case(rng, task, _Job(bytes=700, units=3, queue_pair=first, then=_SAME_QUEUE_PAIR))


def _queue_pairs(task: int) -> Cases:
    """Queue pairs of InfiniBand keep their order, so a counter on the right one needs no quiet."""
    return on_fabrics(under_checker(_on_queue_pairs(task)), RC)


@drawn
def _stuck(rng: Rng) -> Iterator[Case]:
    for kind in ("rc", "srd"):
        case = _message_case(rng, 3, _Job(then=_NOTHING))
        yield replace(case, scenario=replace(of_kernels(case), fabric=Fabric(kind, broken_links=((0, 1),))))


@drawn
def _adds(rng: Rng, route: Route, *, local: int = 0, beside: int = 0) -> Iterator[Case]:
    for number, value in enumerate((1, -3, 2**31 - 1)):
        job = _Job(bytes=0, units=2, value=value, times=1 + number, then=_QUIET, queue_pair=7 * number, local=local)
        yield _message_case(rng, 4, replace(job, beside=beside), route)


_TOGETHER = "A __syncwarp after the copy: then the lane that signals publishes the bytes of all lanes."
_POSTED = "One lane posts, once; the others do not go on before it has (a __syncwarp at the end)."
_PAIRS = "Which queue pair does qp_id mean? ep::ibgda::queue_pair() says so."
_ORDER = "A peer within reach sees data that was written before only if the add is a release at system scope."
_ADDERS = "A NIC's addition and one of the GPU itself can lose each other: which counters does the GPU alone add to?"
_ALONE = "A peer within reach is served by the warp itself; nobody waits for a NIC."
_OTHERS_ADD = "Others may add to the same counter at the same time, also where it is this rank's own."
_OWN: Route = (0, 1)

_IN_REACH = all_of(on_fabrics(_sizes(2, _STORE, PAIR), _P2P), on_fabrics(_sizes(2, _STORE, _NEIGHBOURS), NODES))
_BY_NIC = all_of(on_fabrics(_sizes(3, _QUIET, PAIR), RC, SRD), on_fabrics(_sizes(3, _QUIET, _ACROSS), NODES))
_STORED = on_fabrics(_messages(2, _STORE, 0, 9), _P2P), on_fabrics(_messages(2, _STORE, route=_NEIGHBOURS), NODES)
_WAITED_FOR = on_fabrics(_messages(3, _QUIET, 0, 7, 31), RC, SRD)
_ATOMIC = on_fabrics(under_checker(_adds(PAIR), 1), _P2P), on_fabrics(under_checker(_adds(PAIR, local=1), 1), RC)
_ANNOUNCED = on_fabrics(_messages(4, _STORE), _P2P), on_fabrics(_messages(4, _STORE, route=_NEIGHBOURS), NODES)
_GROWS = (
    on_fabrics(_adds(RING), _P2P, RC, SRD),
    on_fabrics(_adds(_NEIGHBOURS), NODES),
    on_fabrics(_adds(_NEIGHBOURS, beside=20), NODES),  # a NIC's additions would be lost
    on_fabrics(_adds(_OWN, beside=20), RC),
    on_fabrics(_adds(PAIR, local=1), _P2P, SRD),
)

BEHAVIOURS = (
    Behaviour(1, "own memory and peers within reach have an address, all others 0", _pointers()),
    Behaviour(2, "after the call, the lane that signals may publish what all lanes wrote", all_of(*_STORED), _TOGETHER),
    Behaviour(2, "messages of every size arrive whole, by loads and stores alone", _IN_REACH, _ALONE),
    Behaviour(3, "messages of every size arrive whole, and nothing comes for 0 bytes", _BY_NIC),
    Behaviour(3, "any lane may wait for the put after the call", _WAITED_FOR, _POSTED),
    Behaviour(3, "a put is one request", on_fabrics(under_checker(_one_request(), 1), RC), _POSTED),
    Behaviour(3, "the put goes over the queue pair that qp_id means", _queue_pairs(3), _PAIRS),
    Behaviour(3, "the call returns before the data has arrived", _stuck(), "Waiting is the work of quiet."),
    Behaviour(4, "32 bits grow by the value, wherever the counter lies", all_of(*_GROWS), _ADDERS),
    Behaviour(4, "every addition is atomic", all_of(*_ATOMIC), _OTHERS_ADD),
    Behaviour(4, "a peer within reach sees the data when the counter grows", all_of(*_ANNOUNCED), _ORDER),
    Behaviour(4, "on InfiniBand the counter stays behind the put of the same qp_id", _queue_pairs(4), _PAIRS),
    Behaviour(4, "after a quiet, it announces data on EFA", on_fabrics(_messages(4, _QUIET), SRD)),
)

REHEARSED = 99  # cases of each, in the public checks
