"""The puzzles of notebook 09: a router's weights, the load of experts, rows that cross once, and a token's way back."""

from __future__ import annotations

import numpy as np

from ep_lib.workshop.course.puzzles.puzzle import Bench, Flow, Puzzle

_EXPERTS = 6


def _weights(bench: Bench) -> None:
    for logits, top_k in (([2.0, -1.0, 0.5, 1.5], 2), ([0.0, 0.0, 5.0], 1), ([1.0, 3.0, 2.0], 3)):
        order = np.argsort(-np.array(logits), kind="stable")[:top_k]
        wanted = np.exp(np.array(logits)[order])
        wanted /= wanted.sum()
        got = bench.call(list(logits), top_k)
        experts, weights = list(got[0]), np.array(got[1], dtype=float)
        bench.require(
            experts == order.tolist(),
            f"logits {logits}, top {top_k}: it chose {experts}, and the largest are those of {order.tolist()}",
        )
        bench.require(
            weights.shape == wanted.shape and np.allclose(weights, wanted),
            f"logits {logits}, top {top_k}: the weights are {np.round(weights, 3).tolist()}, which sum to "
            f"{weights.sum():.3f}, and should be {np.round(wanted, 3).tolist()}",
        )


def _loads(bench: Bench) -> None:
    rng = np.random.default_rng(9)
    chosen = rng.integers(-1, _EXPERTS, 70).astype(np.int32)
    wanted = np.bincount(chosen[chosen >= 0], minlength=_EXPERTS)
    topk_idx, load = bench.array("topk_idx", chosen), bench.array("load", np.zeros(_EXPERTS, np.uint32))
    bench.launch(2, 32, topk_idx, len(chosen), load)
    bench.expect("load", wanted, "Each choice counts once for its expert, and -1 for none.")


def _ranks(bench: Bench) -> None:
    choices = np.array([[0, 1, 2], [5, 4, 5], [3, -1, 0], [-1, -1, -1], [1, 3, 5]], np.int32)
    wanted = [len({int(e) // 2 for e in row if e >= 0}) for row in choices]
    topk_idx, rows = bench.array("topk_idx", choices.ravel()), bench.array("rows", np.zeros(5, np.int32))
    bench.launch(1, 5, topk_idx, rows)
    bench.expect("rows", wanted, "A rank that holds two of a token's experts gets its row once; -1 is no expert.")


def _sums(bench: Bench) -> None:
    experts = bench.symmetric("made", 4, np.float32)
    experts[...] = np.array([1.0, 2.0, 3.0, 4.0], np.float32) * 10 ** (4 * bench.me)
    choices = np.array([1, 4], np.int32)  # expert 1 of rank 0, expert 0 of rank 1
    bench.rank.barrier()
    topk_idx = bench.array("topk_idx", choices)
    weights, out = (
        bench.array("weights", np.array([0.25, 0.75], np.float32)),
        bench.array("out", np.zeros(1, np.float32)),
    )
    bench.launch(1, 1, experts, topk_idx, weights, out)
    bench.rank.barrier()
    bench.expect("out", [0.25 * 2.0 + 0.75 * 1e4], "A token's result is the weighted sum of what its experts made.")


PUZZLES = (
    Puzzle(
        number="09.1",
        title="Two experts, and how much of each",
        task="""
A router gives a token one number per expert, the logits. Choose the `top_k` largest (`experts`, the largest first),
and give them `weights`: a softmax over the chosen ones **only**. Two lines of Python.
""",
        template='''
import numpy as np


def puzzle(logits, top_k):
    """The experts of one token, and their weights."""
    logits = np.array(logits)
    # YOUR LINES
    return experts.tolist(), (weights / weights.sum()).tolist()
''',
        main=_weights,
        hints=(
            "The comment in `route` of exercise 09_router says the same of torch's `topk`.",
            "`np.argsort` sorts upwards. Of what must it sort, for the largest to come first? The division by the sum "
            "is written already: what is left of a softmax?",
            "`experts = np.argsort(-logits)[...]` and `weights = np.exp(logits[...])`.",
        ),
        solution="""
experts = np.argsort(-logits)[:top_k]
weights = np.exp(logits[experts])
""",
        discussion="""
The weights of a token sum to 1, whatever its other logits are: that is Mixtral's way. Switch Transformers takes the
probability over all experts, which is less than 1, and lets a router say that no expert is much good. Both are fine;
a model must be served as it was trained.
""",
        ranks=0,
    ),
    Puzzle(
        number="09.2",
        title="How busy is every expert?",
        task="""
64 threads go through `count` choices. Add 1 to the `load` of this thread's experts; a choice of -1 is none. The loop
is written already. One or two lines.
""",
        template="""
#include <ep/memory.cuh>

extern "C" __global__ void puzzle(const int* topk_idx, int count, uint32_t* load) {
    const int threads = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads) {
        // YOUR LINES
    }
}
""",
        main=_loads,
        hints=(
            "Which expert is it? `topk_idx[i]`.",
            "Two threads may count for the same expert at once, on two SMs: which kind of addition loses none?",
            "`if (topk_idx[i] >= 0) ep::red_add_relaxed_gpu_u32(..., 1);`",
        ),
        solution="if (topk_idx[i] >= 0) ep::red_add_relaxed_gpu_u32(load + topk_idx[i], 1);",
        discussion="""
Relaxed is enough: the counts are read by another kernel, and the end of this one puts everything before it. `gpu` is
the smallest scope that reaches all blocks. The picture shows how uneven the load is: hot experts are hot words, too.
""",
        ranks=1,
        flows=(
            Flow(
                "load",
                "writes",
                "own",
                "The work is shared: each thread counts for the choices of its own turns of the loop.",
                threads=20,
            ),
        ),
    ),
    Puzzle(
        number="09.3",
        title="How many rows does a token send?",
        task="""
Six experts on three ranks, two each; five tokens with three choices each, a thread per token. Put into `rows[token]`
how many rows it sends: one for every rank that holds **any** of its experts. One to three lines.
""",
        template="""
#include <ep/platform.cuh>

extern "C" __global__ void puzzle(const int* topk_idx, int* rows) {
    const int token = threadIdx.x;
    unsigned ranks = 0;  // a bit for each rank
    for (int k = 0; k < 3; ++k) {
        const int expert = topk_idx[3 * token + k];
        // YOUR LINES
    }
    rows[token] = __popc(ranks);
}
""",
        main=_ranks,
        hints=(
            "`__popc` counts the bits of `ranks`; so which bit does this choice set?",
            "Expert 5 lives on rank 2. A bit that is set twice is one bit. What is -1 / 2 in C++?",
            "`if (expert >= 0) ranks |= 1u << ...;`",
        ),
        solution="if (expert >= 0) ranks |= 1u << expert / 2;",
        discussion="""
That is the difference between counting choices and counting rows: with 256 experts on 4 ranks and 8 choices, a token
sends 3.6 rows instead of 8. -1 / 2 is 0 in C++, a rank that exists: the missing choice would become a row to rank 0.
""",
        ranks=1,
    ),
    Puzzle(
        number="09.4",
        title="What comes back",
        task="""
Two ranks, four experts each. What expert *e* made of this token lies in `made[e % 4]` of rank *e* / 4. Add up weight
times result over the token's two choices, into `sum`. Two lines.
""",
        template="""
#include <ep/peer.cuh>

extern "C" __global__ void puzzle(float* made, const int* topk_idx, const float* weights,
                                  float* out) {
    float sum = 0.0f;
    for (int k = 0; k < 2; ++k) {
        const int expert = topk_idx[k];
        // YOUR LINES
    }
    *out = sum;
}
""",
        main=_sums,
        hints=(
            "`made` is this rank's own copy. Which function finds the copy of another rank?",
            "Which rank, and which of its four results? A division and a remainder.",
            "`const float* const theirs = ep::peer_ptr(made, ...);`, then `sum += weights[k] * theirs[...];`",
        ),
        solution="""
const float* const theirs = ep::peer_ptr(made, expert / 4);
sum += weights[k] * theirs[expert % 4];
""",
        discussion="""
The whole way back of a token, in two lines: combine *reads*, so no rank needs an address to write to. The order of
the sum is the order of the choices, so its bits are the same on every run. The barrier before this kernel is what
makes the results readable; in one kernel, that would be a signal.
""",
        flows=(
            Flow(
                "made",
                "reads",
                "another",
                "What the other rank's expert made must be read there: through `ep::peer_ptr`.",
            ),
        ),
    ),
)
