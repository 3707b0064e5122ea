"""The puzzles of notebook 06: ask for a row, count first, a place by a vote, a warp copies a row."""

from __future__ import annotations

import numpy as np

from ep_lib.workshop.course.puzzles.puzzle import Bench, Flow, Puzzle

_VECTORS = 70  # of a row


def _a_row_each(bench: Bench) -> None:
    rows, next_row = bench.symmetric("rows", 16), bench.symmetric("next_row", 1, np.uint32)
    bench.launch(1, 8, rows, next_row)
    bench.rank.barrier()
    if bench.me == 0:
        got = sorted(bench.rank.to_host(rows).tolist())
        wanted = [1, 2, 3, 4, 5, 6, 7, 8, 101, 102, 103, 104, 105, 106, 107, 108]
        bench.require(got == wanted, f"rank 0's rows hold {got}, in some order; each of {wanted} should be there once")


def _rows(table: np.ndarray) -> str:
    """As code, whose columns stand below each other."""
    return "\n".join(f"`{row}`" for row in str(table).split("\n"))


def _counts_first(bench: Bench) -> None:
    rng = np.random.default_rng(6)
    for ranks in (2, 4, 8, 1):
        counts = rng.integers(0, 9, (ranks, ranks))
        wanted = np.zeros_like(counts)
        for source in range(1, ranks):
            wanted[source] = wanted[source - 1] + counts[source - 1]
        got = np.asarray(bench.call(counts.copy()))
        shape = f"first_row has the shape {got.shape}, and should have {wanted.shape}"
        bench.require(got.shape == wanted.shape, shape)
        if not np.array_equal(got, wanted):
            told, yours, right = map(_rows, (counts, got, wanted))
            bench.wrong(f"for counts\n{told}\nyour first_row is\n{yours}\nand should be\n{right}")


def _a_place_by_a_vote(bench: Bench) -> None:
    goes = (np.random.default_rng(3).random(32) < 0.6).astype(np.int32)
    goes[[0, 31]] = 1
    place = bench.array("place", np.full(32, 77, np.int32))
    bench.launch(1, 32, bench.array("goes", goes), place)
    why = "A lane that goes has the number of lanes below it that go, too; the others have -1."
    bench.expect("place", np.where(goes == 1, np.cumsum(goes) - goes, -1), why)


def _a_warp_copies(bench: Bench) -> None:
    row = bench.symmetric("row", 4 * _VECTORS)
    flag = bench.symmetric("flag", 1, np.uint64)
    token = bench.array("token", np.arange(4 * _VECTORS, dtype=np.int32) + 1000 * bench.me)
    heard = bench.array("heard", np.zeros(4 * _VECTORS, np.int32))
    bench.launch(1, 32, row, token, _VECTORS, flag, heard)
    bench.expect("heard", np.arange(4 * _VECTORS) + 1000 * (1 - bench.me), "This is the other rank's token.")
    bench.rank.barrier()
    bench.expect("flag", 1, "The peer gets one signal.")


PUZZLES = (
    Puzzle(
        number="06.1",
        title="A row for every token, by asking for it",
        task="""
Two ranks of eight threads each, and every thread has one token, the number `mine`. All of them go to **rank 0**,
into its `rows`, one row each, in any order. Its counter `next_row` says which row is free next. Take one, and write
`mine` there. Two or three lines.
""",
        template="""
#include <ep/memory.cuh>
#include <ep/peer.cuh>

extern "C" __global__ void puzzle(int* rows, uint32_t* next_row) {
    const int mine = 100 * ep::rank() + threadIdx.x + 1, to = 0;
    // YOUR LINES
}
""",
        main=_a_row_each,
        hints=(
            "Rung 0 of notebook 06, dispatch_atomics, does this for every token and rank.",
            "`ep::atom_add_relaxed_sys_u32(address, 1)` adds 1 and returns what was there before: a number that no "
            "other thread gets. Which rank's counter must it be, if both ranks write to rank 0?",
            "`row = ep::atom_add_relaxed_sys_u32(ep::peer_ptr(next_row, to), 1);`, then `ep::peer_ptr(rows, ...)[...]`",
        ),
        solution="""
const uint32_t row = ep::atom_add_relaxed_sys_u32(ep::peer_ptr(next_row, to), 1);
ep::peer_ptr(rows, to)[row] = mine;
""",
        discussion="""
The atomic hands out numbers, each of them once. It is right, and no thread waits for another. But for
every row a question crosses the link and an answer comes back before the row may leave, and the order of the rows
is that of the questions: another one on every run. Both are reasons to **count first**.
""",
        flows=(
            Flow("next_row", "writes", "another", "Each token has to ask `next_row` of rank 0 for its row.", threads=8),
        ),
    ),
    Puzzle(
        number="06.2",
        title="Where do my rows begin?",
        task="""
`counts[source, destination]` says how many rows each source sends to each destination. In a destination's memory
the rows of source 0 come first, then those of source 1, and so on. Make `first_row[source, destination]`: the row
where the source's own begin. In Python, with NumPy (`np`). One line.
""",
        template="""
def puzzle(counts):
    # YOUR LINES
    return first_row
""",
        main=_counts_first,
        hints=(
            "Write one column on paper, of four sources: 3, 1, 0, 2. Where does each begin?",
            "`np.cumsum(counts, axis=...)` adds up along an axis, with the number itself (inclusive). You need the sum "
            "of those **before** it (exclusive).",
            "The inclusive sum over the sources, less the counts themselves.",
        ),
        solution="first_row = np.cumsum(counts, axis=0) - counts",
        discussion="""
An **exclusive prefix sum** over the sources. On the GPU every rank works out only its own line of this table, from
the counts that all ranks have sent it: `ep::rows_before` of `<ep/slots.cuh>`, which is task 3 of exercise 06_slots.
""",
        ranks=0,
    ),
    Puzzle(
        number="06.3",
        title="A place by a vote",
        task="""
One warp, one token for each lane. `goes[lane]` is 1 if the token goes to some rank, else 0. Its place there is the
number of lanes **below** it whose tokens go there, too. Write it to `place[lane]`, or -1 if the token does not go.
No loop, no atomics: two or three lines.
""",
        template="""
#include <ep/platform.cuh>

extern "C" __global__ void puzzle(const int* goes, int* place) {
    const int lane = ep::lane_id();
    // YOUR LINES
}
""",
        main=_a_place_by_a_vote,
        hints=(
            "`__ballot_sync(ep::kFullWarp, condition)` gives every lane the answers of all 32: bit 5 is lane 5.",
            "`__popc(number)` counts bits that are 1. Which bits do you want to count? A mask that has exactly the "
            "bits below `lane` is one less than the bit of `lane` itself.",
            "`__popc(votes & ((1u << lane) - 1))` is the place; and `goes[lane] ? ... : -1`.",
        ),
        solution="""
const unsigned votes = __ballot_sync(ep::kFullWarp, goes[lane]);
place[lane] = goes[lane] ? __popc(votes & ((1u << lane) - 1)) : -1;
""",
        discussion="""
A prefix sum over 32 lanes in two instructions, without a byte of memory. For a whole block the warps' totals are
added up through shared memory (`ep::sum_of_lower_warps`), and for all ranks the counts travel once. That is all
there is to it: three prefix sums, one inside the other.
""",
        ranks=1,
        seeds=2,
        forbids={
            r"\b(?:for|while|do)\b|atom|red_add": "No loop and no atomics: one vote tells every lane about all others."
        },
    ),
    Puzzle(
        number="06.4",
        title="A warp copies a row",
        task="""
`token` has `vectors` vectors of 16 bytes. The 32 lanes copy it into the `row` of the **peer**, so that lanes beside
each other write vectors beside each other; `vectors` need not be a multiple of 32. Then the peer gets **one**
signal: `ep::signal_add(flag, 1, peer)`. Three lines.
""",
        template="""
#include <ep/signal.cuh>

extern "C" __global__ void puzzle(int4* row, const int4* token, int vectors, uint64_t* flag,
                                  int4* heard) {
    const int peer = 1 - ep::rank(), lane = ep::lane_id();
    // YOUR LINES

    if (!ep::wait_until_ge_warp(flag, 1, {ep::kPhaseSignal, peer, -1})) return;
    for (int i = lane; i < vectors; i += ep::kWarpSize) heard[i] = row[i];
}
""",
        main=_a_warp_copies,
        hints=(
            "The last line of the template goes over a row with 32 lanes. Your copy goes over it in the same way.",
            "Lane 0 signals. But it may be done with its own vectors long before lane 17 is: what puts the stores of "
            "all lanes before lane 0's signal?",
            "The loop with `ep::peer_ptr(row, peer)[i] = token[i];`, then `__syncwarp();`, then `if (lane == 0) ...`",
        ),
        solution="""
for (int v = lane; v < vectors; v += 32) ep::peer_ptr(row, peer)[v] = token[v];
__syncwarp();
if (lane == 0) ep::signal_add(flag, 1, peer);
""",
        discussion="""
32 lanes beside each other write 512 bytes beside each other: four full lines of 128 bytes, which leave the SM as
such. One thread alone would have one store of 16 bytes under way where the warp has 32. Data, `__syncwarp`, signal:
it is notebook 01's rule. In a dispatch the signal waits for **all** rows, and comes once per rank and not once per
row.
""",
        picture=("row", "flag"),
        flows=(
            Flow(
                "row",
                "writes",
                "another",
                "All 32 lanes have to copy, beside each other: lane l begins with vector l.",
                threads=32,
                begins_within=512,
            ),
            Flow("row", "reads", "own", "`heard` must be what is read from `row`; the template does it."),
        ),
    ),
)
