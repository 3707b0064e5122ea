"""The puzzles of notebook 05: a put whose signal counts, a stream in chunks, how many slots fit, and a credit."""

from __future__ import annotations

import numpy as np

from ep_lib.workshop.course.puzzles.puzzle import SENT_TO_INBOX, Bench, Puzzle

_WORDS = 8


def _counted(bench: Bench) -> None:
    inbox, outbox = (bench.symmetric(name, _WORDS, np.uint64) for name in ("inbox", "outbox"))
    arrived = bench.symmetric("arrived", 1, np.uint64)
    got = bench.array("got", np.zeros(_WORDS, np.uint64))
    rows = 3 + bench.me
    outbox[:rows] = 10 * (bench.me + 1) + np.arange(rows)
    bench.rank.barrier()
    bench.launch(1, 1, inbox, outbox, arrived, rows, got)
    theirs = 3 + (1 - bench.me)
    wanted = np.zeros(_WORDS, np.uint64)
    wanted[:theirs] = 10 * (2 - bench.me) + np.arange(theirs)
    bench.expect("got", wanted, "The other rank sends so many words, and the signal says how many.")


def _chunks(bench: Bench) -> None:
    for rows, slot_rows in ((5, 2), (4, 2), (1, 4), (0, 4), (12, 1)):
        got = bench.call(rows, slot_rows)
        wanted = [(begin, min(slot_rows, rows - begin)) for begin in range(0, max(rows, 1), slot_rows)]
        told = "a stream of 0 rows is one chunk, too: the receiver has to be told" if rows == 0 else "see the task"
        bench.require(
            [tuple(each) for each in got] == wanted,
            f"rows={rows}, slot_rows={slot_rows} gives {got}, and should give {wanted}: {told}",
        )


def _credit(bench: Bench) -> None:
    slot, staging = (bench.symmetric(name, 32, np.uint32) for name in ("slot", "staging"))
    arrived, credits = (bench.symmetric(name, 1, np.uint64) for name in ("arrived", "credits"))
    out = bench.array("out", np.zeros((4, 32), np.uint32))
    bench.rank.barrier()
    bench.launch(1 if bench.me == 0 else 2, 32, slot, staging, arrived, credits, out)
    if bench.me == 1:
        wanted = 100 * np.arange(1, 5)[:, None] + np.arange(32)
        bench.expect("out", wanted, "Four chunks come through a single slot.")
    bench.rank.barrier()
    if bench.me == 0:
        bench.expect("credits", 4, "One credit for each chunk: one lane gives it.")


def _budget(bench: Bench) -> None:
    for budget, ranks, slot_rows, row_bytes, wanted in (
        (100_000_000, 8, 4, 14336, 108),
        (100_000_000, 32, 4, 14336, 27),
        (1_000_000, 8, 4, 14336, 1),
        (10_000, 2, 1, 16, 78),
    ):
        got = bench.call(budget, ranks, slot_rows, row_bytes)
        bench.require(
            got == wanted,
            f"budget={budget:,} bytes, ranks={ranks}, slot_rows={slot_rows}, row_bytes={row_bytes} gives {got}, and "
            f"should give {wanted}: whole slots, each with its header, and every ring stands in both areas",
        )


PUZZLES = (
    Puzzle(
        number="05.1",
        title="Rows, and how many",
        task="""
`rows` words of 8 bytes lie in `outbox`. Send them to the peer's `inbox`, with a signal that becomes `rows`, so that the
peer knows how many have come. One operation does both; it is one line, or a few.
""",
        template="""
#include <ep/net.cuh>
#include <ep/wait.cuh>

extern "C" __global__ void puzzle(uint64_t* inbox, uint64_t* outbox, uint64_t* arrived,
                                  int rows, uint64_t* got) {
    const int peer = 1 - ep::rank();
    // YOUR LINES

    uint64_t count;
    if (!ep::wait_until_nonzero(arrived, &count, {ep::kPhaseSignal, peer, -1})) return;
    for (uint64_t i = 0; i < count; ++i) got[i] = inbox[i];
    ep::net_quiet(peer);
}
""",
        main=_counted,
        hints=(
            "`exchange_unbounded` of notebook 05 does this for every peer.",
            "Two operations, data and then signal, arrive in any order on this network (srd). Which single operation "
            "promises that its signal comes after its data? And how long is a row?",
            "`ep::net_put_signal_nbi(inbox, outbox, bytes, arrived, value, peer, 0, ep::NetSignal::kSet);`",
        ),
        solution="""
const size_t bytes = rows * sizeof(uint64_t);
const auto set = ep::NetSignal::kSet;
ep::net_put_signal_nbi(inbox, outbox, bytes, arrived, rows, peer, 0, set);
""",
        discussion="""
The signal does two jobs: the rows are there, and so many. It is *set*, since it has a single sender. With a put and an
addition behind it the same holds on RC only; on SRD the addition may overtake the put.
""",
        fabric="srd",
        flows=SENT_TO_INBOX,
    ),
    Puzzle(
        number="05.2",
        title="A stream in chunks",
        task="""
In Python: a stream of `rows` rows goes through slots of `slot_rows`. Make the list of its chunks, as `(first row, how
many)`. A stream of no rows is one chunk, too: somebody has to tell the receiver. One to three lines.
""",
        template='''
def puzzle(rows, slot_rows):
    """The chunks of a stream: [(first row, how many), ...]."""
    chunks = []
    # YOUR LINES
    return chunks
''',
        main=_chunks,
        hints=(
            "`num_chunks` and `fill_slot` in 05_bounce_buffer.cuh.",
            "A chunk begins at every `slot_rows`-th row. How many rows has the last one? And where does the only chunk "
            "of an empty stream begin?",
            "`for begin in range(0, max(rows, 1), slot_rows):` and below it append `(begin, min(...))`.",
        ),
        solution="""
for begin in range(0, max(rows, 1), slot_rows):
    chunks.append((begin, min(slot_rows, rows - begin)))
""",
        discussion="""
The last chunk is what is left: that is the **flush** of a stream. The empty chunk costs a message and saves a special
case: the receiver waits for chunk 0 of everybody, and learns from its header that nothing follows.
""",
        ranks=0,
    ),
    Puzzle(
        number="05.3",
        title="How many slots can you afford?",
        task="""
In Python: a rank may register `budget` bytes. How many slots can each of its rings have? There is a ring
for each rank, once in the inbox and once in the staging area, and each slot has a header of 16 bytes beside its rows.
One or two lines.
""",
        template='''
def puzzle(budget, ranks, slot_rows, row_bytes):
    """Slots of a ring, so that inbox and staging together fit into `budget` bytes."""
    # YOUR LINES
    return slots
''',
        main=_budget,
        hints=(
            "The formula stands under **A ring of slots** in notebook 05.",
            "Solve it for the number of slots. Half a slot is none.",
            "`slots = budget // (2 * ranks * (16 + ...))`",
        ),
        solution="slots = budget // (2 * ranks * (16 + slot_rows * row_bytes))",
        discussion="""
100 MB on 8 ranks are 108 slots of four rows for each ring, many times more than are needed: notebook 05 measures
that from four slots on, more of them bring little. You choose the memory, and measure what it costs.
""",
        ranks=0,
    ),
    Puzzle(
        number="05.4",
        title="Give the slot back",
        task="""
Rank 0 sends four chunks through a *single* slot in the memory of rank 1, and waits for a credit before each next one.
You are the receiver, a warp. All lanes have just copied the slot out. Give rank 0 its credit: one lane adds 1 to the
`credits` of rank 0. Two lines.
""",
        template="""
#include <ep/net.cuh>
#include <ep/wait.cuh>

extern "C" __global__ void puzzle(unsigned* slot, unsigned* staging, uint64_t* arrived,
                                  uint64_t* credits,
                                  unsigned* out) {
    const int lane = ep::lane_id(), peer = 1 - ep::rank();
    if (blockIdx.x > 0) return;
    for (uint64_t chunk = 0; chunk < 4; ++chunk) {
        if (ep::rank() == 0) {
            if (!ep::wait_until_ge_warp(credits, chunk, {ep::kPhaseCredit, peer, 0})) return;
            staging[lane] = 100 * (chunk + 1) + lane;
            __syncwarp(ep::kFullWarp);
            if (lane == 0) ep::net_put_signal_nbi(slot, staging, 128, arrived, 1, peer);
        } else {
            if (!ep::wait_until_ge_warp(arrived, chunk + 1, {ep::kPhaseSignal, peer, 0})) return;
            out[32 * chunk + lane] = slot[lane];
            // YOUR LINES
        }
    }
    if (lane == 0) ep::net_quiet(peer);
}
""",
        main=_credit,
        hints=(
            "`receive_one_by_one` of notebook 05, behind the copy; `empty_slot` ends with one of the two lines.",
            "Lane 0 may be done while lane 17 still reads. When may the slot be overwritten?",
            "`__syncwarp();` and then `if (lane == 0) ep::net_atomic_add_u64_nbi(..., 1, peer);`",
        ),
        solution="""
__syncwarp();
if (lane == 0) ep::net_atomic_add_u64_nbi(credits, 1, peer);
""",
        discussion="""
The barrier puts every lane's read before the credit. The credit also frees the staging slot at the sender: what was
read here has arrived, so that NIC has read it. All 32 lanes giving a credit each would let the sender run 32 chunks
ahead.
""",
        fabric="rc",
        picture=("slot", "credits", "arrived"),
        gives="credits",
    ),
)
