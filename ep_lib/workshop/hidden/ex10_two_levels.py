"""Hidden tests of exercise 10_two_levels: each function among nodes that the grader plays, bit for bit with NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ep_lib.emulator.fabric import Fabric
from ep_lib.jit.device_state import FAULT_NONE, PHASE_NAMES
from ep_lib.workshop.grader.scenario import Array, ByRank, Launch, Outputs, Scenario
from ep_lib.workshop.hidden import Behaviour, Case, Rng
from ep_lib.workshop.hidden.cases import Cases, all_of, drawn, under_checker
from ep_lib.workshop.hidden.inputs import Job, job_numbers, job_of
from ep_lib.workshop.hidden.judging import each_rank, fault_of
from ep_lib.workshop.lessons.two_levels import by_node

_BLOCKS, _LANES = 3, 32
_BEFORE = 3.5  # the initial content of the places of sums
_FALSE = "forward_warp returned false, although every message comes"

_Job = job_of(__file__)


class _World:
    """The ranks that need each token, and the expected content of all arrays. ``few``: token 0 is only for the first
    rank of each node (label 1), the last token is for no rank, and the last rank has nothing for node 0. ``last``: only
    the last 270 tokens are wanted, by all ranks."""

    def __init__(self, rng: Rng, ranks: int, job: Job, *, few: bool = False, last: bool = False) -> None:
        self.ranks, self.job, self.nodes = ranks, job, ranks // job.mates
        self.wants = rng.random((ranks, job.count, ranks)) < 0.4
        self.wants[:, 0, :] = np.arange(ranks) % job.mates == 0 if few else True  # there is always something to do
        if few:
            self.wants[:, -1] = self.wants[-1, :, : job.mates] = False
        if last:
            self.wants[:, :-270], self.wants[:, -270:] = False, True
        self.rows = rng.standard_normal((ranks, job.count, job.words)).astype(np.float32)
        scale = 10.0 ** rng.integers(-3, 4, ranks)
        self.results = [(self.rows * scale[r] * (r + 1)).astype(np.float32) for r in range(ranks)]
        for results in self.results if job.words > 1 else ():
            results[..., 0] = -0.0  # a sum of these that begins with 0.0 is 0.0
        self.by_node = by_node(self.wants, job.mates)

    def node(self, rank: int) -> int:
        return rank // int(self.job.mates)

    def partner(self, rank: int, node: int) -> int:
        return node * int(self.job.mates) + rank % int(self.job.mates)

    def tokens_for(self, source: int, node: int) -> list[int]:
        return [int(token) for token in np.flatnonzero(self.by_node[source, :, node])]

    def label(self, source: int, token: int, node: int) -> int:
        bits = self.wants[source, token, node * self.job.mates : (node + 1) * self.job.mates]
        return token << 32 | int((bits << np.arange(self.job.mates)).sum())

    def relay(self, rank: int) -> tuple[Array, Array]:
        """The rows and labels that partners put into this rank's slots."""
        shape = (self.nodes, self.job.count)
        rows, labels = np.zeros((*shape, self.job.words), np.float32), np.zeros(shape, np.uint64)
        for node in range(self.nodes):
            source = self.partner(rank, node)
            for k, token in enumerate(self.tokens_for(source, self.node(rank)) if node != self.node(rank) else []):
                rows[node, k], labels[node, k] = self.rows[source, token], self.label(source, token, self.node(rank))
        return rows, labels

    def comes(self, rank: int) -> Array:
        return np.asarray((self.relay(rank)[1] != 0).sum(axis=1), np.int32)

    def arrived(self, rank: int, of: Any) -> Array:
        """Rows of other nodes' ranks that this rank needs; zeros elsewhere. ``of``: all rows."""
        needs = self.wants[:, :, rank].copy()
        needs[[self.node(source) == self.node(rank) for source in range(self.ranks)]] = False
        return np.where(needs[:, :, None], of, np.float32(0)).astype(np.float32)

    def sum(self, source: int, token: int, node: int) -> Array:
        total = np.zeros(self.job.words, np.float32)
        for r in range(node * self.job.mates, (node + 1) * self.job.mates):
            if self.wants[source, token, r]:
                total = total + self.results[r][source, token]
        return total


def _scenario(world: _World, task: int, fabric: str, **given: ByRank) -> Scenario:
    """``given``: initial content of symmetric arrays, which are otherwise empty."""
    job, ranks = world.job, world.ranks
    wants = (world.wants.astype(np.uint64) << np.arange(ranks, dtype=np.uint64)).sum(axis=2, dtype=np.uint64)
    # Arrays that a task's functions do not see are as small as possible.
    shape, back = (world.nodes, job.count), (world.nodes, job.count) if task == 4 else (1, 1)
    before = _BEFORE if task == 3 else 0  # a sum may be 0, too
    symmetric: dict[str, ByRank] = {
        "rows": list(world.rows),
        "arrived": np.zeros((ranks, job.count, job.words), np.float32),
        "signals": np.zeros(ranks, np.uint64),
    }
    for name, slots in (("relay", shape), ("back", back)):
        symmetric[f"{name}_rows"] = np.zeros((*slots, job.words), np.float32)
        symmetric[f"{name}_labels"] = np.zeros(slots, np.uint64)
    symmetric["staging"] = np.zeros((*back, job.words), np.float32)
    return Scenario(
        ranks=ranks,
        launches=Launch(_BLOCKS, _LANES),
        outputs=("arrived", "relay_rows", "relay_labels", "signals", "back_rows", "back_labels", "out", "noted"),
        symmetric={**symmetric, **given},
        local={
            "all_wants": wants,
            "expects": list(world.wants.sum(axis=1).T.astype(np.int32)),
            "comes": [world.comes(r) for r in range(ranks)],
            "out": np.full((ranks, job.count, job.words) if task > 1 else 1, before, np.float32),
            "noted": np.zeros(8, np.uint64),
            "numbers": job_numbers(job),
        },
        fabric=Fabric(fabric, ranks_per_node=job.mates),
    )


def _differs(got: Array, want: Array, what: str, rank: int) -> str | None:
    if want.dtype == np.float32:  # bit for bit
        got, want = got.view(np.uint32), want.view(np.uint32)
    wrong = np.any(got.reshape(*want.shape) != want, axis=-1) if want.ndim > 2 else got != want
    return f"{int(wrong.sum())} of {wrong.size} {what} of rank {rank} are wrong" if np.any(wrong) else None


def _send_case(world: _World, fabric: str) -> Case:
    def judge(out: Outputs, rank: int) -> str | None:
        rows, labels = world.relay(rank)
        return (
            _differs(out["relay_labels"][rank], labels, "labels in the slots for partners", rank)
            or _differs(out["relay_rows"][rank], rows, "rows in the slots for partners", rank)
            or _differs(out["arrived"][rank], world.arrived(rank, world.rows), "rows handed on", rank)
        )

    return Case(_scenario(world, 1, fabric), each_rank(world.ranks, judge))


def _forward_case(world: _World, fabric: str) -> Case:
    def judge(out: Outputs, rank: int) -> str | None:
        if out["noted"][rank][1]:
            return _FALSE
        wanted = world.arrived(rank, world.rows)
        signals = world.wants[:, :, rank].sum(axis=1)
        signals[[world.node(source) == world.node(rank) for source in range(world.ranks)]] = 0
        return (
            _differs(out["arrived"][rank], wanted, "rows handed on", rank)
            or _differs(out["out"][rank], wanted, "rows, when their signals had come,", rank)
            or _differs(out["signals"][rank].astype(np.int64), signals, "counts of rows", rank)
        )

    return Case(_scenario(world, 2, fabric), each_rank(world.ranks, judge))


@drawn
def _missing(rng: Rng) -> Iterator[Case]:
    """The first message for rank 0 never comes; those behind it do."""
    world = _World(rng, 4, _Job(12, 33, missing=1))

    def judge(out: Outputs) -> str | None:
        gave_up = [bool(noted[1]) for noted in out["noted"]]
        if not gave_up[0]:
            return "a message never came, those behind it did, and forward_warp returned true"
        fault = fault_of(out["noted"][0][2:])
        if fault.code != FAULT_NONE and not fault.is_about("dispatch", world.partner(0, 1), 0):
            about = f"{PHASE_NAMES[fault.phase]}, rank {fault.peer} and slot {fault.slot}"
            return f"the report of the wait that failed is about {about}"
        return _FALSE if any(gave_up[1:]) else None

    yield Case(_scenario(world, 2, "rc"), judge, endless=True)


def _sum_case(world: _World, fabric: str) -> Case:
    def judge(out: Outputs, rank: int) -> str | None:
        node, want = world.node(rank), np.full_like(world.rows, _BEFORE)
        for source, token in np.argwhere(world.by_node[:, :, node]):
            want[source, token] = world.sum(int(source), int(token), node)
        return _differs(out["out"][rank], want, "sums", rank)

    return Case(_scenario(world, 3, fabric, arrived=world.results), each_rank(world.ranks, judge))


def _return_case(world: _World, fabric: str) -> Case:
    def judge(out: Outputs, rank: int) -> str | None:
        here = world.node(rank)
        sums = np.zeros((world.nodes, world.job.count, world.job.words), np.float32)
        labels = np.zeros((world.nodes, world.job.count), np.uint64)
        for node in range(world.nodes):
            for k, token in enumerate(world.tokens_for(rank, node) if node != here else []):
                sums[node, k], labels[node, k] = world.sum(rank, token, node), world.label(rank, token, node)
        taken = out["out"][rank].reshape(-1, world.job.words)[: world.nodes * world.job.count]
        return (
            _differs(out["back_labels"][rank], labels, "labels of sums", rank)
            or _differs(out["back_rows"][rank], sums, "sums that came back", rank)
            or _differs(taken, sums, "sums, when their labels had come,", rank)
        )

    came = [world.relay(rank)[1] for rank in range(world.ranks)]
    scenario = _scenario(world, 4, fabric, arrived=world.results, relay_labels=came)
    return Case(scenario, each_rank(world.ranks, judge))


@drawn
def _worlds(rng: Rng, make: Callable[[_World, str], Case], *shapes: tuple[int, int, int]) -> Iterator[Case]:
    """Each of ``shapes`` is (ranks, mates, count)."""
    for number, (ranks, mates, count) in enumerate(shapes):
        for fabric in ("rc", "srd"):
            yield make(_World(rng, ranks, _Job(count, 33 if number else 40, mates, 10 * number)), fabric)


@drawn
def _large(rng: Rng, make: Callable[[_World, str], Case]) -> Iterator[Case]:
    """More than 8 bits count, and more ranks than 32 bits name."""
    if make is _send_case:  # more nodes than lanes, and more tokens than 16 bits count: 270 go to the other node
        yield make(_World(rng, 36, _Job(2, 4, 1)), "rc")
        yield make(_World(rng, 2, _Job((1 << 16) + 270, 1, 1), last=True), "rc")
    else:
        yield make(_World(rng, 4, _Job(270, 1)), "rc")
    if make is _sum_case:
        yield make(_World(rng, 4, _Job(2, 300)), "rc")
    yield make(_World(rng, 36, _Job(2, 33, 18)), "rc")
    yield make(_World(rng, 6, _Job(4, 33, 2), few=True), "srd")


def _all(make: Callable[[_World, str], Case]) -> Cases:
    return all_of(_worlds(make, (4, 2, 5), (6, 2, 4), (6, 3, 3)), _large(make))


def _checked(make: Callable[[_World, str], Case]) -> Cases:
    return under_checker(_worlds(make, (4, 2, 4)), 3)


_ONCE = "One message per token and other node, in the slots of your node at the partner, with label_of as its signal."
_HAND_ON = "Wait for each slot's own label; the row is one of the source's, for the ranks of this node."
_GIVES_UP = "After the limit it returns false; {kPhaseDispatch, source, k} says whom it has waited for."
_ORDER = "Ascending ranks, from 0.0f; and a barrier before one lane posts the sum."
_BACK = "One place in staging for each sum, one operation to the slot of your node in the partner's back."

BEHAVIOURS = (
    Behaviour(1, "each token crosses once per node", all_of(_all(_send_case), _checked(_send_case)), _ONCE),
    Behaviour(2, "rows reach those who need them", _all(_forward_case), _HAND_ON),
    Behaviour(2, "rows are there before their signals", _checked(_forward_case), _HAND_ON),
    Behaviour(2, "a message that never comes", _missing(), _GIVES_UP),
    Behaviour(3, "sums are NumPy's, bit for bit", all_of(_all(_sum_case), _checked(_sum_case)), _ORDER),
    Behaviour(4, "sums come back to their source", all_of(_all(_return_case), _checked(_return_case)), _BACK),
)

REHEARSED = 99  # cases of each, in the public checks
