"""One-line mistakes in the low-latency kernels, and a Buffer that runs with them."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.dispatch_combine_cases import BF16

from ep_lib import Buffer, Rank
from ep_lib.moe.low_latency import mode as low_latency
from wrong_variants.all_in_one import Mistake

HEADERS = {
    "dispatch": ("moe/low_latency/common", "moe/low_latency/dispatch"),
    "combine": ("moe/low_latency/common", "moe/low_latency/combine"),
}
INCLUDES = ("moe/common/sums", "moe/common/failure", "ep/fp8", "ep/packet")
MODES = dict.fromkeys(HEADERS, low_latency)
SETTINGS: dict[str, int] = {}
# Parameters and arguments of each kernel; @Type is a struct of the variant's own, all of which are alike.
ENTRIES = {
    "dispatch": (
        "@DispatchArgs args, @Arrivals arrivals, const int4* x, const long long* idx, const float* weights",
        "run_dispatch<true, true>(@args, @arrivals, x, idx, weights)",
    ),
    "combine": (
        "@CombineArgs args, int4* out, const int4* rows, const long long* idx, const float* weights",
        "run_combine<true>(@args, out, rows, idx, weights)",
    ),
}
_DISPATCH, _COMBINE = HEADERS
_SENT = "__syncthreads();  // data, then signal"
_FLAG = "st_release_sys_u64(peer_ptr(args.row_flags + slot, r), epoch)"
_SUM_FLAG = "st_release_sys_u64(peer_ptr(args.row_flags + slot, source), epoch)"
_SUM_SENT = "if (__syncthreads_or(outcome != kArrived)) {  // data, then signal"
_CREDIT = "return {ld_acquire_sys_u64(args.credits + kind * num_ranks() + r), mask | failed}"
_LOOK = "ld_acquire_sys_u64(args.credits + kind"
_BUFFER = "static_cast<int>(epoch % kNumBuffers)"
_INDEXED = "__syncwarp();  // the counts are for the next row"

VARIANTS = [
    Mistake("signals before all threads stored", _DISPATCH, _SENT, "__syncwarp();"),
    Mistake("a relaxed flag", _DISPATCH, _FLAG, _FLAG.replace("release", "relaxed")),
    Mistake("lanes read before lane 0 waited", _DISPATCH, "__syncwarp();  // all lanes may read what lane 0", "//"),
    Mistake("waits for the row before", _DISPATCH, "args.row_flags + slot, epoch,", "args.row_flags + slot, 0,"),
    Mistake("no credits", _DISPATCH, _CREDIT, "return {1ull << 40, mask | failed}", alone=True),
    Mistake("a relaxed look at credits", _DISPATCH, _LOOK, _LOOK.replace("acquire", "relaxed"), alone=True),
    Mistake("one buffer", _DISPATCH, _BUFFER, "0"),
    Mistake("an index before the last row's", _DISPATCH, _INDEXED, ""),
    Mistake("sum signalled before all threads stored", _COMBINE, _SUM_SENT, "if (outcome != kArrived) {"),
    Mistake("a relaxed flag of a sum", _COMBINE, _SUM_FLAG, _SUM_FLAG.replace("release", "relaxed")),
    Mistake("lanes add before one waited", _COMBINE, "__syncwarp();  // all lanes may read what one lane", "//"),
    Mistake("adds before sums are there", _COMBINE, "args.row_flags + slot, epoch,", "args.row_flags + slot, 0,"),
    Mistake("no credits for sums", _COMBINE, _CREDIT, "return {1ull << 40, mask | failed}", alone=True),
    Mistake("one buffer of sums", _COMBINE, _BUFFER, "0"),
]


def main(rank: Rank, dispatches: int = 1, combines: int = 1, alone: bool = False) -> Any:
    """Dispatches, then combines, three times over; every token goes to every rank."""
    ranks, outs = rank.world_size, []
    tokens = 5 if rank.rank == 0 or not alone else 0
    x = np.full((tokens, 128), rank.rank + 1, BF16)
    idx = 2 * np.tile(np.arange(ranks), (tokens, 1)) + np.arange(tokens)[:, None] % 2
    for token in range(tokens):
        idx[token] = np.roll(idx[token], token)
    weights = np.ones(idx.shape, np.float32)
    shape = {"num_experts": 2 * ranks, "top_k": ranks, "hidden": 128, "max_tokens": 1, "num_low_latency_sms": 2}
    with Buffer(rank, **shape, num_max_dispatch_tokens_per_rank=5) as buffer:
        for _ in range(3):
            for _ in range(dispatches):
                sent = buffer.low_latency_dispatch(x, idx)
            rank.synchronize()
            rows = [sent.recv_x[0][e, :count].copy() for e, count in enumerate(sent.recv_count)]
            y = np.zeros(sent.recv_x[0].shape, BF16)
            for e, row in enumerate(rows):
                y[e, : len(row)] = row
            for _ in range(combines):
                outs.append(buffer.low_latency_combine(y, idx, weights, sent.handle).out)
            rank.synchronize()
            outs += rows
    return outs
