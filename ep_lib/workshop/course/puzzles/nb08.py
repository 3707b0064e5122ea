"""The puzzles of notebook 08: a scale, a packet, rows that cross, and two buffers in turn."""

from __future__ import annotations

import numpy as np

from ep_lib import reference
from ep_lib.workshop.course.puzzles.puzzle import Bench, Flow, Puzzle

_ROUNDS = 6


def _scales(bench: Bench) -> None:
    rng = np.random.default_rng(2)
    groups = {
        "random numbers": rng.standard_normal(128),
        "negative numbers": -abs(rng.standard_normal(128)),
        "an outlier of -70000": np.append(rng.standard_normal(127), -70000),
        "zeros": np.zeros(128),
        "an infinity among ordinary numbers": np.append(rng.standard_normal(127), np.inf),
        "infinities": np.full(128, np.inf),
    }
    for name, group in groups.items():
        x = group.astype(np.float32)
        got, want = bench.call(x), float(reference.quantize_fp8(x[None])[1][0, 0])
        bench.require(got is not None, "`scale` has no value: assign a number to it.")
        bench.require(
            np.isclose(float(got), want, rtol=1e-6), f"A group of {name}: {got:.6g}, and {want:.6g} is right."
        )


def _packet(bench: Bench) -> None:
    box = bench.symmetric("box", 2, np.uint64)
    heard = bench.array("heard", np.zeros(_ROUNDS, np.uint64))
    bench.launch(1, 1, box, heard, _ROUNDS)
    rounds = np.arange(_ROUNDS)
    wanted = np.where(rounds % 2 == bench.me, 0, 100 * (2 - bench.me) + rounds)
    bench.expect("heard", wanted, "0 where this rank sends; the other rank's value where it listens.")


def _crossing(bench: Bench) -> None:
    cases = [([[0, 1, 2, 3]], 4, 0), ([[0, 1, 2, 3]], 2, 0), ([[0, 4, 5, 12], [3, 2, 1, 0]], 4, 0)]
    rng = np.random.default_rng(3)
    random = np.argsort(rng.random((50, 16)), axis=1)[:, :4].tolist()
    for topk_idx, per_rank, me in [*cases, (random, 4, 2), (random, 1, 5)]:
        got = bench.call(topk_idx, per_rank, me)
        want = sum(len({expert // per_rank for expert in row} - {me}) for row in topk_idx)
        shown = topk_idx if len(topk_idx) < 3 else f"{len(topk_idx)} tokens"
        bench.require(got == want, f"topk_idx={shown}, per_rank={per_rank}, me={me}: {got} rows; {want} cross.")


def _rounds(bench: Bench) -> None:
    box, flag = bench.symmetric("box", 2), bench.symmetric("flag", 1, np.uint64)
    heard = bench.array("heard", np.zeros(_ROUNDS, np.int32))
    bench.launch(1, 1, box, flag, heard, _ROUNDS)
    peer = 1 - bench.me
    bench.expect("heard", 100 * (peer + 1) + np.arange(_ROUNDS), "Two words by turns need no credit.")


PUZZLES = (
    Puzzle(
        number="08.1",
        title="The scale of a group",
        task="""
`x` is a group of 128 float32 numbers. Set `scale` so that `x / scale` just fits into E4M3, whose largest number is
448: the largest **finite** magnitude over 448. A group of zeros, or without a finite number, gets the scale 1. Two
lines of Python, with NumPy.
""",
        template="""
def puzzle(x):
    scale = None
    # YOUR LINES
    return scale
""",
        main=_scales,
        hints=(
            "`abs(x).max()` is the largest magnitude; `np.isfinite(x)` says which numbers are finite.",
            "What would 0 / 448 do to the next division? And what would an infinity do to 127 good neighbours?",
            "`largest = abs(x[...]).max(initial=0)`, then `scale = largest / 448 if ... else 1.0`",
        ),
        solution="""
largest = abs(x[np.isfinite(x)]).max(initial=0)
scale = largest / 448 if largest > 0 else 1.0
""",
        discussion="""
The numbers are *divided* by the scale before the cast, and multiplied by it afterwards. An infinity becomes NaN in
E4M3, which has no infinity: it stays visible, and its neighbours stay right. (The library gives the scale 1
also to a group whose scale would be below the smallest normal float32; its numbers become zeros.)
""",
        ranks=0,
    ),
    Puzzle(
        number="08.2",
        title="Data and tag in one store",
        task="""
`box` is a packet: a word of data, and a tag. In your rounds, send `value` with the tag `round + 1` into the
**peer's** box, by one store of 16 bytes. In the others, the loop waits for the peer's packet. One line.
""",
        template="""
#include <ep/packet.cuh>

extern "C" __global__ void puzzle(ep::TaggedWord* box, uint64_t* heard, int rounds) {
    const int me = ep::rank(), peer = 1 - me;
    for (int round = 0; round < rounds; ++round) {
        const uint64_t value = 100 * (me + 1) + round;
        if (me == round % 2) {
            // YOUR LINES
            heard[round] = 0;
        } else if (!ep::wait_packet(box, round + 1, heard + round,
                                    {ep::kPhaseSignal, peer, round})) {
            return;
        }
    }
}
""",
        main=_packet,
        hints=(
            "`ep::st_relaxed_sys_u64x2(address, first, second)` stores two words at once.",
            "Data first, tag second. And whose box is `box`?",
            "`ep::st_relaxed_sys_u64x2(&ep::peer_ptr(box, peer)->data, value, ...);`",
        ),
        solution="ep::st_relaxed_sys_u64x2(&ep::peer_ptr(box, peer)->data, value, round + 1);",
        discussion="""
No release, no fence, no wait: the tag cannot be there without its data, since both are one access. Two stores side
by side give the same in every plain run; what tears them is the GPU's memory model, which the checker tries. A release
for the tag would not be enough: the packet's reader does not acquire.
""",
        flows=(
            Flow("box", "writes", "another", "The packet goes to the other rank's box."),
            Flow(
                *("box", "writes", "another"),
                "Data and tag came in two stores, which nothing keeps together: one store for both words.",
                in_pairs=True,
            ),
        ),
    ),
    Puzzle(
        number="08.3",
        title="How many rows cross?",
        task="""
`topk_idx` is a list of tokens, each a list of the experts that it wants; rank `r` has the experts `r * per_rank` up
to `(r + 1) * per_rank - 1`. How many rows leave rank `me`, if each token goes **once to each rank** that it needs,
and never to its own? Set `rows`. One to three lines of Python.
""",
        template="""
def puzzle(topk_idx, per_rank, me):
    rows = 0
    # YOUR LINES
    return rows
""",
        main=_crossing,
        hints=(
            "`expert // per_rank` is the rank of an expert.",
            "Two experts of a token on one rank are one row. Which Python type keeps each value once?",
            "For each token: `{expert // per_rank for expert in token} - {me}`, and its length.",
        ),
        solution="""
for token in topk_idx:
    rows += len({expert // per_rank for expert in token} - {me})
""",
        discussion="""
With 8 of 256 experts on 4 ranks that is 2.7 rows per token instead of 6; neither number has the rows that stay at
home.
""",
        ranks=0,
    ),
    Puzzle(
        number="08.4",
        title="Which buffer this round?",
        task="""
Two ranks exchange one word per round, through a `box` of two words, without a credit. Choose the word `at`
of this round, so that nothing is overwritten before it has been read. One line.
""",
        template="""
#include <ep/peer.cuh>
#include <ep/signal.cuh>
#include <ep/wait.cuh>

extern "C" __global__ void puzzle(int* box, uint64_t* flag, int* heard, int rounds) {
    const int me = ep::rank(), peer = 1 - me;
    for (int round = 0; round < rounds; ++round) {
        // YOUR LINES
        ep::peer_ptr(box, peer)[at] = 100 * (me + 1) + round;
        ep::signal_add(flag, 1, peer);
        if (!ep::wait_until_ge(flag, round + 1, {ep::kPhaseSignal, peer, round})) return;
        heard[round] = box[at];
    }
}
""",
        main=_rounds,
        hints=(
            "`exchange_rounds` of notebook 08 does the same with whole inboxes.",
            "When you are in round 2, the peer has sent its round 1: what has it read by then?",
            "`const int at = ...;` with a value that is 0, 1, 0, 1, ...",
        ),
        solution="const int at = round % 2;",
        discussion="""
You are in round 2 because you have read the peer's round 1, which it sent after it had read your round 0. So word 0
is free again, without a credit. With one word the peer may still be reading round 0 when your round 1 arrives.
""",
        flows=(Flow("box", "writes", "another", "The word goes to the other rank's box."),),
        forbids={r"wait|while|signal": "There is no wait or signal here; the choice of the word is enough."},
    ),
)
