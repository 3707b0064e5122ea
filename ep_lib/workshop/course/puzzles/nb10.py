"""The puzzles of notebook 10: a rank's partner, rows that cross, forwarding a row, a node's sum."""

from __future__ import annotations

import numpy as np

from ep_lib.workshop.course.puzzles.puzzle import Bench, Flow, Puzzle

_MATES = 2  # of 4 ranks


def _partner(bench: Bench) -> None:
    for rank, node, mates, wanted in ((0, 1, 8, 8), (3, 1, 8, 11), (11, 0, 8, 3), (5, 2, 4, 9), (6, 1, 4, 6)):
        got = bench.call(rank, node, mates)
        bench.require(
            got == wanted, f"rank={rank}, node={node}, ranks_per_node={mates} gives {got}, and should give {wanted}"
        )


def _crossing(bench: Bench) -> None:
    for seed, (ranks, mates, tokens) in enumerate(((4, 2, 6), (16, 8, 20), (8, 2, 5))):
        rng = np.random.default_rng(seed)
        topk_ranks = rng.integers(0, ranks, (tokens, 3))
        mine = int(rng.integers(0, ranks // mates))
        wanted = len({(t, int(r) // mates) for t in range(tokens) for r in topk_ranks[t] if r // mates != mine})
        got = bench.call(topk_ranks, mine, mates)
        bench.require(
            got == wanted,
            f"tokens to the ranks {topk_ranks[:3].tolist()}..., ranks_per_node={mates}, from node {mine}: {got} rows, "
            f"and it should be {wanted}",
        )


def _hand_on(bench: Bench) -> None:
    me, first = bench.me, bench.me // _MATES * _MATES
    wanted = [0b10, 0b11, 0b01, 0b10][me]
    box, row = bench.symmetric("box", (4, 8)), bench.array("row", np.arange(8, dtype=np.int32) + 100 * (me + 1))
    bench.launch(1, 8, box, row, first, wanted)
    bench.rank.barrier()
    expected = np.zeros((4, 8), np.int32)
    for source in (first, first + 1):
        if [0b10, 0b11, 0b01, 0b10][source] >> (me - first) & 1:
            expected[source] = np.arange(8) + 100 * (source + 1)
    bench.expect(
        "box",
        expected,
        "Row s of the box is what rank s handed on to this rank, and zeros if no bit of its `wanted` names this rank.",
    )


def _results(rank: int) -> np.ndarray:
    return (np.random.default_rng(rank).standard_normal(32) * 10.0 ** (2 * rank)).astype(np.float32)


def _add_up(bench: Bench) -> None:
    y = bench.symmetric("y", 32, np.float32)
    y[...] = _results(bench.me)
    total = bench.array("total", np.zeros(32, np.float32))
    bench.rank.barrier()
    bench.launch(1, 32, y, total)
    wanted = np.zeros(32, np.float32)
    for rank in range(4):
        wanted = wanted + _results(rank)
    bench.expect("total", wanted, "The same order on every rank gives the same bits.")


PUZZLES = (
    Puzzle(
        number="10.1",
        title="Who is my partner?",
        task="""
Ranks are numbered node by node, `ranks_per_node` in each. The partner of `rank` in another `node` is the rank with the
same place there: of 8 ranks in two nodes, rank 3 (the last of node 0) and rank 7. In Python, one line.
""",
        template='''
def puzzle(rank, node, ranks_per_node):
    """The rank in this node that has the same place there."""
    # YOUR LINES
    return partner
''',
        main=_partner,
        hints=(
            "`partner_in` in 10_two_levels.cuh.",
            "Which rank is the first of a node? And which place has `rank` within its own node?",
            "`partner = node * ... + rank % ...`",
        ),
        solution="partner = node * ranks_per_node + rank % ranks_per_node",
        discussion="""
Every rank has one partner in each node, so all NICs of a node work, and none of them twice. With a single forwarder for
each node, one NIC would carry everything.
""",
        ranks=0,
    ),
    Puzzle(
        number="10.2",
        title="How many rows cross?",
        task="""
`topk_ranks[token]` are the ranks of a token's experts (some twice). How many rows does this rank's NIC send, if a token
crosses to each *other* node once? In Python, up to four lines.
""",
        template='''
def puzzle(topk_ranks, mine, ranks_per_node):
    """Rows to other nodes; this rank is in node `mine`."""
    # YOUR LINES
    return rows
''',
        main=_crossing,
        hints=(
            "`by_node` in ep_lib/workshop/lessons/two_levels.py does it with NumPy.",
            "A node counts once for a token, however many of its ranks are needed: what keeps each thing once?",
            "`rows = sum(len(set(ranks // ranks_per_node) - {mine}) for ranks in ...)`",
        ),
        solution="rows = sum(len(set(ranks // ranks_per_node) - {mine}) for ranks in topk_ranks)",
        discussion="""
Pairs of token and node, without one's own. With one level it would be pairs of token and rank, `set(ranks)`, of other
nodes: that is what rung 0 of notebook 10 sends.
""",
        ranks=0,
    ),
    Puzzle(
        number="10.3",
        title="Hand a row on",
        task="""
Two nodes of two ranks. A `row` of 8 words has come to this rank; bit *i* of `wanted` says that rank *i* of this node
(rank `first + i`) needs it. Eight threads run. Store the row into row `me` of the `box` of every rank that needs it.
One to three lines.
""",
        template="""
#include <ep/peer.cuh>

extern "C" __global__ void puzzle(int* box, const int* row, int first, unsigned wanted) {
    const int me = ep::rank(), thread = threadIdx.x;
    // YOUR LINES
}
""",
        main=_hand_on,
        hints=(
            "`store_own_node_warp` in 10_two_levels.cuh goes through the bits of a word.",
            "`__ffs(left)` is the place of the lowest bit, counted from 1; `left &= left - 1` removes it. A loop over "
            "`i` from 0 to 1 and `wanted >> i & 1` does as well.",
            "`for (int i = 0; i < 2; ++i)`, then `if (wanted >> i & 1) ep::peer_ptr(box, first + i)[8 * me + thread] "
            "= ...;`",
        ),
        solution="""
for (int i = 0; i < 2; ++i)
    if (wanted >> i & 1) ep::peer_ptr(box, first + i)[8 * me + thread] = row[thread];
""",
        discussion="""
The row came over the network once and is now stored as often as it is needed, by NVLink. Row `me` of the box is written
by no other rank, so no two ranks write to the same words.
""",
        ranks=4,
        seeds=4,
        flows=(
            Flow("box", "writes", "another", "No rank has handed a row on: rank 0 has one for rank 1, for instance."),
        ),
    ),
    Puzzle(
        number="10.4",
        title="Add up a node, in a fixed order",
        task="""
The four ranks of a node have results of one token, `y`, 32 floats. Add them up into `total`, one lane for each float,
so that every rank gets the same bits: ranks 0, 1, 2, 3, beginning with 0.0f. Two or three lines.
""",
        template="""
#include <ep/peer.cuh>

extern "C" __global__ void puzzle(const float* y, float* total) {
    const int lane = threadIdx.x;
    float sum = 0.0f;
    // YOUR LINES
}
""",
        main=_add_up,
        hints=(
            "Every rank's `y` can be read through `ep::peer_ptr(y, rank)`.",
            "(a + b) + c and a + (b + c) differ in float32. If every rank began with its own result, what would the "
            "four totals be?",
            "`for (int rank = 0; rank < 4; ++rank) sum += ...;` and then one store.",
        ),
        solution="""
for (int rank = 0; rank < 4; ++rank) sum += ep::peer_ptr(y, rank)[lane];
total[lane] = sum;
""",
        discussion="""
The order is part of the result. Atomic additions, or "my own first", give other last bits on every rank or in every
run, and a training run that cannot be repeated.
""",
        ranks=4,
        seeds=4,
        flows=(
            Flow("total", "writes", "own", "Nothing was stored into `total`."),
            Flow("y", "reads", "another", "The results of other ranks are read through `ep::peer_ptr`."),
        ),
    ),
)
