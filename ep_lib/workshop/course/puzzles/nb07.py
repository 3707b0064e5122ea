"""The puzzles of notebook 07: order counts, sums in a fixed order, a token's weight, a group's signal."""

from __future__ import annotations

from typing import Any

import numpy as np

from ep_lib.workshop.course.puzzles.puzzle import Bench, Flow, Puzzle

_RANKS, _TOKENS, _TOP_K, _EXPERTS_PER_RANK = 4, 8, 3, 2
_GROUPS, _GROUP_WORDS = 3, 32


def _order_counts(bench: Bench) -> None:
    numbers = bench.call()
    single = all(isinstance(number, np.float32) for number in numbers)
    bench.require(single, f"a, b and c should be np.float32, and are {', '.join(type(n).__name__ for n in numbers)}")
    a, b, c = numbers
    with np.errstate(all="ignore"):
        left, right = (a + b) + c, a + (b + c)
    bench.require(np.isfinite(left) and np.isfinite(right), f"the sums are {left} and {right}: no infinities, please")
    bench.require(left != right, f"(a + b) + c is {left}, and a + (b + c) is {right}: the same")


def _in_a_fixed_order(bench: Bench) -> None:
    rng = np.random.default_rng(7)
    rows = (rng.standard_normal((_RANKS, 32)) * 10.0 ** rng.integers(-3, 4, (_RANKS, 32))).astype(np.float32)
    weights = rng.random(_RANKS).astype(np.float32)
    out = bench.array("out", np.zeros(32, np.float32))
    sums = np.zeros(32, np.float32)
    for weight, row in zip(weights, rows, strict=True):
        sums += weight * row
    bench.launch(1, 32, bench.array("rows", rows), bench.array("weights", weights), _RANKS, out)
    bench.expect("out", sums, "From rank 0 upwards; each product is rounded, and then each sum.")


def _weight_on_a_rank(bench: Bench) -> None:
    rng = np.random.default_rng(8)
    scores = rng.random((_TOKENS, _RANKS * _EXPERTS_PER_RANK))
    idx = np.argsort(-scores, axis=1)[:, :_TOP_K].astype(np.int32)
    idx[rng.random(idx.shape) < 0.3] = -1
    idx[0] = [0, 1, -1]
    weights = rng.random((_TOKENS, _TOP_K)).astype(np.float32)
    wanted: Any = np.zeros((_TOKENS, _RANKS), np.float32)
    for token, rank, k in np.ndindex(_TOKENS, _RANKS, _TOP_K):
        if idx[token, k] >= 0 and idx[token, k] // _EXPERTS_PER_RANK == rank:
            wanted[token, rank] += weights[token, k]
    weight = bench.array("weight", np.zeros((_TOKENS, _RANKS), np.float32))
    arrays = (bench.array("topk_idx", idx), bench.array("topk_weights", weights))
    bench.launch(1, _TOKENS * _RANKS, *arrays, _TOP_K, _EXPERTS_PER_RANK, weight)
    bench.expect("weight", wanted, "Token by token, for ranks 0 to 3.")


def _group_by_group(bench: Bench) -> None:
    words = _GROUPS * _GROUP_WORDS
    rows, arrived = bench.symmetric("rows", words), bench.symmetric("arrived", _GROUPS, np.uint64)
    heard = bench.array("heard", np.zeros(words, np.int32))
    bench.launch(2, 32, rows, arrived, heard)
    bench.expect("heard", np.arange(words) + 1000 * (1 - bench.me), "These are the other rank's rows.")


PUZZLES = (
    Puzzle(
        number="07.1",
        title="Three numbers whose order counts",
        task="""
Find three `np.float32` numbers `a`, `b` and `c` for which `(a + b) + c` and `a + (b + c)` are different, and
neither is infinite. In Python. One line is enough.
""",
        template="""
def puzzle():
    # YOUR LINES
    return a, b, c
""",
        main=_order_counts,
        hints=(
            "A float32 has 24 bits, about seven digits. What is `np.float32(1e8) + np.float32(1)`?",
            "Let the large number be cancelled in one order before the small one comes, and after it in the other.",
            "`a` is large, `b` is `-a`, and `c` is so small that it vanishes beside them.",
        ),
        solution="a, b, c = np.float32(1e8), np.float32(-1e8), np.float32(1)",
        discussion="""
`(1e8 - 1e8) + 1` is 1, and `1e8 + (-1e8 + 1)` is 0. The numbers of a model are tamer, and the difference is in the
last bit. But it is there, and it grows: an argmax may tip over, and the same question gets another answer on
another day.
""",
        ranks=0,
    ),
    Puzzle(
        number="07.2",
        title="The sum that everybody gets",
        task="""
`rows[rank][i]` is what the experts of a rank made of element `i` (32 elements, one thread each), and
`weights[rank]` is that rank's weight. Write the weighted sum to `out[i]`: from rank 0 upwards, in float32, rounded
where NumPy rounds, that is after each product and after each addition. Four lines.
""",
        template="""
#include <ep/platform.cuh>

extern "C" __global__ void puzzle(const float* rows, const float* weights, int ranks, float* out) {
    const int i = threadIdx.x;
    // YOUR LINES
}
""",
        main=_in_a_fixed_order,
        hints=(
            "Row `r` begins at `rows + 32 * r`. `__fmul_rn(a, b)` and `__fadd_rn(a, b)` round to the nearest.",
            "`sum += weight * value` may become **one** instruction, which rounds once. The two functions never do.",
            "`sum = __fadd_rn(sum, __fmul_rn(weights[r], rows[32 * r + i]));` in a loop over `r`, beginning with 0.",
        ),
        solution="""
float sum = 0.0f;
for (int r = 0; r < ranks; ++r)
    sum = __fadd_rn(sum, __fmul_rn(weights[r], rows[32 * r + i]));
out[i] = sum;
""",
        discussion="""
Three decisions make it reproducible: the **order** is that of the ranks and not of arrival, the **type** of the sum
is float32 whatever the rows are, and each operation **rounds** for itself. Then every run, every number of SMs and
NumPy get the same bits, and a test may ask for equality.
""",
        ranks=1,
        seeds=2,
    ),
    Puzzle(
        number="07.3",
        title="A token's weight on a rank",
        task="""
A token chose `top_k` experts, `ids[k]`, with weights `w[k]`; an id of -1 is no expert. Expert *e* lives on rank *e*
/ `experts_per_rank`. Add up into `sum` the weights of those that live on rank `r`. Two or three lines.
""",
        template="""
#include <ep/platform.cuh>

extern "C" __global__ void puzzle(const int* topk_idx, const float* topk_weights, int top_k,
                                  int experts_per_rank, float* weight) {
    const int token = threadIdx.x / 4, r = threadIdx.x % 4;
    const int* const ids = topk_idx + token * top_k;
    const float* const w = topk_weights + token * top_k;
    float sum = 0.0f;
    // YOUR LINES
    weight[threadIdx.x] = sum;
}
""",
        main=_weight_on_a_rank,
        hints=(
            "A token may have several experts on one rank: the row came there once, and went to each of them.",
            "What is -1 / 2 in C++? (It rounds toward zero.)",
            "`if (ids[k] >= 0 && ids[k] / experts_per_rank == r) sum += w[k];` in a loop over `k`",
        ),
        solution="""
for (int k = 0; k < top_k; ++k)
    if (ids[k] >= 0 && ids[k] / experts_per_rank == r) sum += w[k];
""",
        discussion="""
-1 / 2 is 0, so without the question `ids[k] >= 0` every missing expert would count for rank 0. Where the expert
itself multiplies by the weight (as most layers do), combine adds without weights; where it does not, `weight_on` of
`<ep/sums.cuh>` is what combine uses.
""",
        ranks=1,
        seeds=2,
    ),
    Puzzle(
        number="07.4",
        title="Home, group by group",
        task="""
Block 0 is an expert: group after group it writes rows straight into the memory of their `owner`. After each group
the owner must be told, so that block 1 over there can begin with it: set the group's entry of the owner's `arrived`
to 1. One or two lines.
""",
        template="""
#include <ep/signal.cuh>

extern "C" __global__ void puzzle(int* rows, uint64_t* arrived, int* heard) {
    const int me = ep::rank(), owner = 1 - me, lane = ep::lane_id();
    for (int group = 0; group < 3; ++group) {
        if (blockIdx.x == 0) {
            ep::peer_ptr(rows, owner)[32 * group + lane] = 1000 * me + 32 * group + lane;
            // YOUR LINES
        } else {
            if (!ep::wait_until_ge_warp(arrived + group, 1, {ep::kPhaseCombine, owner, group})) {
                return;
            }
            heard[32 * group + lane] = rows[32 * group + lane];
        }
    }
}
""",
        main=_group_by_group,
        hints=(
            "Puzzle 06.4 ended in the same way, with one flag for the whole row.",
            "All 32 lanes have written; one of them signals. `ep::signal_set(flag, value, rank)` stores with release "
            "into that rank's copy. Which flag is this group's?",
            "`__syncwarp();` and then `if (lane == 0) ep::signal_set(arrived + ..., 1, owner);`",
        ),
        solution="""
__syncwarp();
if (lane == 0) ep::signal_set(arrived + group, 1, owner);
""",
        discussion="""
A flag per group, and not one counter for all: the owner of a token waits for the groups that its own rows are in,
and for no others. So the first sums are done while the last experts have not begun. What it costs is a release per
group: it waits until the group's stores have arrived, so groups should not be too small.
""",
        picture=("rows", "arrived"),
        forbids={
            r"signal_add|atom|red_add": "The entry is to be set to 1, whatever it held: an addition makes a 2 of the 1 "
            "that a launch before this one has left there."
        },
        seeds=8,
        flows=(
            Flow("rows", "writes", "another", "The rows go to the other rank."),
            Flow("arrived", "writes", "another", "The owner has to be told by its own `arrived`."),
        ),
    ),
)
