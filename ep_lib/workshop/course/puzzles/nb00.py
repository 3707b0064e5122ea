"""The puzzles of notebook 00: a store into the peer's memory, an index, a signal, an atomic."""

from __future__ import annotations

import numpy as np

from ep_lib.workshop.course.puzzles.puzzle import Bench, Flow, Puzzle


def _one_number(bench: Bench) -> None:
    box = bench.symmetric("box", 1)
    bench.launch(1, 1, box)
    bench.rank.barrier()
    bench.expect("box", 100 + (1 - bench.me), "The number comes from the other rank.")


def _a_list(bench: Bench) -> None:
    words = bench.symmetric("list", 32)
    bench.launch(2, 16, words)
    bench.rank.barrier()
    bench.expect("list", 10 * np.arange(32) + (1 - bench.me))


def _two_numbers(bench: Bench) -> None:
    box, flag = bench.symmetric("box", 2), bench.symmetric("flag", 1, np.uint64)
    heard = bench.array("heard", np.zeros(2, np.int32))
    bench.launch(1, 1, box, flag, heard)
    peer = 1 - bench.me
    bench.expect("heard", [100 + peer, 200 + peer], "These are the numbers that the other rank wrote.")


def _a_count(bench: Bench) -> None:
    counter = bench.symmetric("counter", 1, np.uint32)
    bench.launch(2, 16, counter)
    bench.rank.barrier()
    if bench.me == 0:
        bench.expect("counter", 64, "That is 2 ranks x 2 blocks x 16 threads, each of them once.")


PUZZLES = (
    Puzzle(
        number="00.1",
        title="One number, left with the other rank",
        task="""
Two ranks run this kernel, one thread each. `box` is one `int` that every rank has. Write `100 + me` into the box
**of the peer**. One line is enough.
""",
        template="""
#include <ep/peer.cuh>

extern "C" __global__ void puzzle(int* box) {
    const int me = ep::rank(), peer = 1 - me;
    // YOUR LINES
}
""",
        main=_one_number,
        hints=(
            "`ep::peer_ptr(pointer, rank)` is in `<ep/peer.cuh>`, which the template includes already.",
            "`*box = 7;` writes into your own box. What must stand in the place of `box`, so that the same assignment "
            "reaches the peer's?",
            "`*ep::peer_ptr(box, ...) = 100 + ...;` with the peer in one place and yourself in the other.",
        ),
        solution="*ep::peer_ptr(box, peer) = 100 + me;",
        discussion="""
`box` lies at the same offset in every rank's symmetric heap, so the peer's box is yours plus the distance between
the two heaps: that is all that `ep::peer_ptr` computes. The store is an ordinary store. On GPUs it travels over
NVLink.
""",
        flows=(
            Flow("box", "writes", "another", "Nothing was written across: each rank has filled its own box."),
            Flow(
                "box",
                "writes",
                "another",
                "One rank wrote both numbers: each is to write into the box of the other.",
                everywhere=True,
            ),
        ),
    ),
    Puzzle(
        number="00.2",
        title="Thirty-two threads, thirty-two words",
        task="""
Now each rank runs two blocks of 16 threads, and `list` has 32 words. Thread number *i* of a rank, counted over both
blocks from 0 to 31, writes `10 * i + me` into word *i* of the **peer's** list.
""",
        template="""
#include <ep/peer.cuh>

extern "C" __global__ void puzzle(int* list) {
    const int me = ep::rank(), peer = 1 - me;
    // YOUR LINES
}
""",
        main=_a_list,
        hints=(
            "CUDA gives each thread `threadIdx.x`, `blockIdx.x` and `blockDim.x` (here 16).",
            "`threadIdx.x` goes from 0 to 15 in **both** blocks. Which threads meet in word 3 if you use it alone?",
            "`const int i = blockIdx.x * blockDim.x + threadIdx.x;` and then `ep::peer_ptr(list, peer)[i] = ...;`",
        ),
        solution="""
const int i = blockIdx.x * blockDim.x + threadIdx.x;
ep::peer_ptr(list, peer)[i] = 10 * i + me;
""",
        discussion="""
One pointer to the peer's list is enough; the index goes behind it. `threadIdx.x` alone would send both blocks to
the first 16 words, two threads to each: that is a **race**, and the checker says so even in a run in which both
write the same value.
""",
        flows=(
            Flow("list", "writes", "another", "Nothing was written across: each rank has filled its own list."),
            Flow("list", "writes", "another", "Each of the 32 threads has to write its own word.", threads=32),
        ),
    ),
    Puzzle(
        number="00.3",
        title="Two numbers, and the word that they are there",
        task="""
The second half of this kernel waits until **its own** `flag` has reached 1, and then reads its box. Write the first
half: put `100 + me` into word 0 and `200 + me` into word 1 of the peer's box, and tell the peer. Three lines.
""",
        template="""
#include <ep/peer.cuh>
#include <ep/signal.cuh>
#include <ep/wait.cuh>

extern "C" __global__ void puzzle(int* box, uint64_t* flag, int* heard) {
    const int me = ep::rank(), peer = 1 - me;
    // YOUR LINES

    if (!ep::wait_until_ge(flag, 1, {ep::kPhaseSignal, peer, -1})) return;
    heard[0] = box[0];
    heard[1] = box[1];
}
""",
        main=_two_numbers,
        hints=(
            "The kernel `greet` of notebook 00 does the same with one number: look at its lines 1 and 2.",
            "`ep::signal_add(flag, 1, peer)` adds 1 to the **peer's** flag; it finds the peer's copy by itself. Once "
            "the peer sees that, it reads. What must have happened before?",
            "Two stores through `ep::peer_ptr(box, peer)`, to `[0]` and `[1]`, and `ep::signal_add(flag, 1, peer);` as "
            "the last line.",
        ),
        solution="""
ep::peer_ptr(box, peer)[0] = 100 + me;
ep::peer_ptr(box, peer)[1] = 200 + me;
ep::signal_add(flag, 1, peer);
""",
        discussion="""
Data, then signal. The signal is a **release**: it promises that all that this thread wrote before it can be seen by
every thread that sees the new value. With the signal first, nothing would be promised, whatever values come out of a
run. So the checker does not look at the values alone. One signal is enough for both stores.
""",
        seeds=12,
        flows=(
            Flow(
                "box",
                "writes",
                "another",
                "In this run nothing came from the other rank: its numbers go into your `box`.",
            ),
            Flow(
                "box",
                "reads",
                "own",
                "`heard` must be what is read from `box`; the last two lines of the template do it.",
            ),
            Flow("flag", "writes", "another", "No signal came from the other rank: it goes to the peer's `flag`."),
        ),
    ),
    Puzzle(
        number="00.4",
        title="Sixty-four threads, one counter",
        task="""
Two ranks run this, each with two blocks of 16 threads. Every thread adds 1 to the `counter` **of rank 0**, which should
hold 64 in the end. One line.
""",
        template="""
#include <ep/memory.cuh>
#include <ep/peer.cuh>

extern "C" __global__ void puzzle(uint32_t* counter) {
    // YOUR LINES
}
""",
        main=_a_count,
        hints=(
            "The kernel `take_a_number` of notebook 00 adds to such a counter.",
            "`+= 1` is a load, an addition and a store. What if another thread loads between your load and your store? "
            "You need one operation that nothing can come between.",
            "`ep::atom_add_relaxed_sys_u32(address, 1);` where the address is that of the counter of rank 0.",
        ),
        solution="ep::atom_add_relaxed_sys_u32(ep::peer_ptr(counter, 0), 1);",
        discussion="""
An **atomic** reads, adds and writes in one step. `sys` is its scope: threads of other GPUs take part. `relaxed`
says that it orders nothing else: to count, that is enough; to tell somebody that data is there, it is not.
""",
        flows=(
            Flow(
                "counter", "writes", "another", "Each of the 64 threads adds its own 1 to rank 0's counter.", threads=32
            ),
            Flow("counter", "writes", "own", "Each of the 64 threads adds its own 1 to rank 0's counter.", threads=32),
        ),
    ),
)
