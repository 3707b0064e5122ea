"""The puzzles of notebook 01: an acquire, a warp's one signal, a credit, and an exchange that repeats."""

from __future__ import annotations

import numpy as np

from ep_lib.workshop.course.puzzles.puzzle import Bench, Flow, Puzzle

_ROUNDS = 7
_RETURNS = {r"\breturn\b": "Return if the wait fails, for it has a limit: `if (!ep::wait_until_ge(...)) return;`"}


def _hear_four(bench: Bench) -> None:
    box, flag = bench.symmetric("box", 4), bench.symmetric("flag", 1, np.uint64)
    heard = bench.array("heard", np.zeros(4, np.int32))
    bench.launch(1, 1, box, flag, heard)
    bench.expect("heard", 100 * (1 - bench.me) + np.arange(4))


def _a_warp_writes(bench: Bench) -> None:
    box, flag = bench.symmetric("box", 32), bench.symmetric("flag", 1, np.uint64)
    heard = bench.array("heard", np.zeros(32, np.int32))
    bench.launch(1, 32, box, flag, heard)
    bench.rank.barrier()
    bench.expect("heard", 100 * (1 - bench.me) + np.arange(32))
    bench.expect("flag", 1, "One signal for the whole warp.")


def _two_slots(bench: Bench) -> None:
    slots, heard = bench.symmetric("slots", 2), bench.array("heard", np.zeros(_ROUNDS, np.int32))
    arrived, credits = bench.symmetric("arrived", 1, np.uint64), bench.symmetric("credits", 1, np.uint64)
    bench.launch(1, 1, slots, arrived, credits, heard, _ROUNDS, kernel="send" if bench.me == 0 else "receive")
    bench.rank.barrier()
    if bench.me == 1:
        bench.expect("heard", 10 * np.arange(_ROUNDS))
    one = bench.symmetric("one credit", 1, np.uint64, fill=1)
    if bench.me == 0:
        with bench.ends(
            "With one credit `send` must come through round 2: it waits for a credit that it does not need."
        ):
            bench.launch(1, 1, slots, arrived, one, heard, 3, kernel="send")


def _again_and_again(bench: Bench) -> None:
    box, flag, read = (bench.symmetric(name, 1, np.uint64) for name in ("box", "flag", "read"))
    heard = bench.array("heard", np.zeros(_ROUNDS, np.uint64))
    bench.launch(1, 1, box, flag, read, heard, _ROUNDS)
    bench.rank.barrier()
    bench.expect("heard", 100 * (1 - bench.me) + np.arange(_ROUNDS))


PUZZLES = (
    Puzzle(
        number="01.1",
        title="Wait, and then read",
        task="""
The sender's half is here: four numbers, then the signal. Write the loop that waits until **your own** `flag` is 1.
Do it by hand, with one of the loads of `<ep/memory.cuh>` and without a limit, to see what is in
`ep::wait_until_ge`. One or two lines.
""",
        template="""
#include <ep/memory.cuh>
#include <ep/peer.cuh>
#include <ep/signal.cuh>

extern "C" __global__ void puzzle(int* box, uint64_t* flag, int* heard) {
    const int me = ep::rank(), peer = 1 - me;
    for (int i = 0; i < 4; ++i) ep::peer_ptr(box, peer)[i] = 100 * me + i;
    ep::signal_add(flag, 1, peer);
    // YOUR LINES
    for (int i = 0; i < 4; ++i) heard[i] = box[i];
}
""",
        main=_hear_four,
        hints=(
            "`ld_relaxed_sys_u64(address)` and `ld_acquire_sys_u64(address)` both read eight bytes that another GPU "
            "may write at the same time. `ep::wait_until_ge` in `<ep/wait.cuh>` polls with one of them.",
            "The sender's signal is a release. What must your load be, so that what came *before* the signal is there "
            "when you go on?",
            "`while (ep::ld_acquire_sys_u64(flag) < ...) {` and `}`",
        ),
        solution="""
while (ep::ld_acquire_sys_u64(flag) < 1) {
}
""",
        discussion="""
A release without an acquire promises nothing, and an acquire without a release neither: they work in pairs. A
relaxed load sees the signal just as early, but then the loads of `box` may be older than it. A plain `*flag` is
worse still: the compiler may read it once and loop for ever.
""",
        forbids={
            r"\b(?:wait|poll|look)_until": "Write the loop yourself this time, with a load of `<ep/memory.cuh>`: "
            "what you have called has it inside."
        },
        flows=(
            Flow("flag", "reads", "own", "No thread has looked at its own `flag`: wait for it."),
            Flow(
                "box", "reads", "own", "`heard` must be what is read from `box`; the last line of the template does it."
            ),
        ),
    ),
    Puzzle(
        number="01.2",
        title="Thirty-two lanes, one signal",
        task="""
Now a whole warp sends: lane *l* writes `100 * me + l` into word *l* of the peer's box. Then the peer gets **one**
signal, by which all 32 words are there. Three lines.
""",
        template="""
#include <ep/peer.cuh>
#include <ep/signal.cuh>
#include <ep/wait.cuh>

extern "C" __global__ void puzzle(int* box, uint64_t* flag, int* heard) {
    const int me = ep::rank(), peer = 1 - me, lane = ep::lane_id();
    // YOUR LINES

    if (!ep::wait_until_ge(flag, 1, {ep::kPhaseSignal, peer, -1})) return;
    heard[lane] = box[lane];
}
""",
        main=_a_warp_writes,
        hints=(
            "Rung 3 of notebook 01 has two kernels: one is right, one is not. What differs?",
            "A release covers what *its own thread* wrote before. What can make 31 other lanes' stores come before it?",
            "A store by every lane, `__syncwarp();`, and `if (lane == 0) ep::signal_add(...);`",
        ),
        solution="""
ep::peer_ptr(box, peer)[lane] = 100 * me + lane;
__syncwarp();
if (lane == 0) ep::signal_add(flag, 1, peer);
""",
        discussion="""
`__syncwarp()` is not only a meeting point: it orders memory among the lanes that take part. So lane 7's store comes
before the barrier, the barrier before lane 0's release, the release before the peer's acquire, and that before its
loads. Take one link out of this chain, and the checker names it.
""",
        picture=("box", "flag"),
        flows=(
            Flow("box", "writes", "another", "All 32 lanes have to write a word of the peer's box.", threads=32),
            Flow(
                "box", "reads", "own", "`heard` must be what is read from `box`; the last line of the template does it."
            ),
        ),
    ),
    Puzzle(
        number="01.3",
        title="When is the slot free?",
        task="""
Rank 0 sends seven rounds through **two** slots of rank 1. Rank 1 adds 1 to rank 0's `credits` for each round that
it has read. Write the wait that belongs before the store: round 0 and 1 need no credit; how many does each later
`round` need? Return if the wait fails. Two lines.
""",
        template="""
#include <ep/peer.cuh>
#include <ep/signal.cuh>
#include <ep/wait.cuh>

extern "C" __global__ void send(int* slots, uint64_t* arrived, uint64_t* credits,
                                int* heard, int rounds) {
    const int peer = 1;
    for (uint64_t round = 0; round < rounds; ++round) {
        // YOUR LINES
        ep::peer_ptr(slots, peer)[round % 2] = 10 * round;
        ep::signal_add(arrived, 1, peer);
    }
}

extern "C" __global__ void receive(int* slots, uint64_t* arrived, uint64_t* credits,
                                   int* heard, int rounds) {
    const int peer = 0;
    for (uint64_t round = 0; round < rounds; ++round) {
        if (!ep::wait_until_ge(arrived, round + 1, {ep::kPhaseSignal, peer, -1})) return;
        heard[round] = slots[round % 2];
        ep::signal_add(credits, 1, peer);
    }
}
""",
        main=_two_slots,
        hints=(
            "The table of rung 5 in notebook 01 has the condition: `credits >= r + 1 - n`, here with n = 2. "
            "`ep::wait_until_ge(signal, expected, info)` waits, and says whether it came.",
            "`round` is **unsigned**. What is `round + 1 - 2` for round 0? Not -1. So the first rounds must not "
            "wait at all.",
            "`if (round >= ... && !ep::wait_until_ge(credits, round - ..., {ep::kPhaseCredit, peer, -1})) return;`",
        ),
        solution="""
if (round >= 2 && !ep::wait_until_ge(credits, round - 1, {ep::kPhaseCredit, peer, -1}))
    return;
""",
        discussion="""
Before round 2 overwrites slot 0, round 0 must have been read: one credit. `round + 1 - 2` is right for all rounds
but the first, where an unsigned number wraps around to 18,446,744,073,709,551,615, and the sender waits for ever
for that many credits. The last argument, a `WaitInfo`, does nothing but say what the wait was about if it fails:
the phase, which rank is waited for, and which slot (-1: none in particular).
""",
        picture=("slots", "arrived", "credits"),
        flows=(Flow("credits", "reads", "own", "No thread has looked at `credits`: wait for them."),),
        requires=_RETURNS,
        frees="credits",
    ),
    Puzzle(
        number="01.4",
        title="The same again, without a reset",
        task="""
Seven times in a row, each rank writes `value` into the peer's box, signals, waits and reads. Nothing is ever set
back to 0, and `read` counts how often the peer has read **your** value. Write what comes before the store of each
`epoch`: wait until the peer has read what you wrote in the epoch before. Return if the wait fails. One or two lines.
""",
        template="""
#include <ep/peer.cuh>
#include <ep/signal.cuh>
#include <ep/wait.cuh>

extern "C" __global__ void puzzle(uint64_t* box, uint64_t* flag, uint64_t* read,
                                  uint64_t* heard, int epochs) {
    const int me = ep::rank(), peer = 1 - me;
    for (uint64_t epoch = 0; epoch < epochs; ++epoch) {
        const uint64_t value = 100 * me + epoch;
        // YOUR LINES
        *ep::peer_ptr(box, peer) = value;
        ep::signal_add(flag, 1, peer);
        if (!ep::wait_until_ge(flag, epoch + 1, {ep::kPhaseSignal, peer, -1})) return;
        heard[epoch] = *box;
        ep::signal_add(read, 1, peer);
    }
}
""",
        main=_again_and_again,
        hints=(
            "The peer adds 1 to your `read` at the end of each epoch: the last line of the loop.",
            "In epoch 0 nothing was written before. In epoch 1 the peer must have read once. And no counter is reset, "
            "so which number does each `epoch` wait for?",
            "`if (!ep::wait_until_ge(read, ..., {ep::kPhaseCredit, peer, -1})) return;` with the number of the epoch.",
        ),
        solution="if (!ep::wait_until_ge(read, epoch, {ep::kPhaseCredit, peer, -1})) return;",
        discussion="""
Epoch 0 waits for 0, which is there already, so no special case is needed: with *at least* and counters that only
grow, the first epoch looks like all others. Without the wait, a rank that is quick overwrites a value that the
other one, which has seen the signal, has not read yet. A signal says that data has come. It does not say that it
has been read: that is the second signal, the **acknowledgement**. Later notebooks save it by two boxes in turn, a
double buffer.
""",
        picture=("box", "flag", "read"),
        requires=_RETURNS,
        frees="read",
    ),
)
