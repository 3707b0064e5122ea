"""One-line mistakes in the kernels of direct writes, the normal mode over NVLink, and a Buffer that runs with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from support.dispatch_combine_cases import BF16

from ep_lib import Buffer, Kernel, Rank
from ep_lib.moe.direct import combine, dispatch
from ep_lib.moe.direct.tuning import EMULATED
from wrong_variants.all_in_one import Mistake

_MEETING = ("ep/all_ranks", "moe/common/notify", "moe/common/epoch", "moe/direct/tokens")
_SUMS = (*_MEETING, "ep/groups", "moe/direct/packed_rows", "moe/direct/combine_send", "moe/direct/combine_add")
# A name's first word is the kernel's; the second one of its templates.
HEADERS = {
    "dispatch_bulk": (*_MEETING, "moe/common/dispatch", "moe/direct/side_rows", "moe/direct/dispatch_bulk"),
    "combine_push": (*_SUMS, "moe/direct/combine_push"),
    "combine_pull": (*_SUMS, "moe/direct/expert_rows", "moe/direct/combine_pull"),
    "combine_pull staged": (*_SUMS, "moe/direct/expert_rows", "moe/direct/combine_pull"),
    "combine_pull by expert": (*_SUMS, "moe/direct/expert_rows", "moe/direct/combine_pull"),
    "copy_epilogue by expert": ("moe/direct/expert_rows", "moe/direct/copy_epilogue"),
}
INCLUDES = ("ep/wait", "moe/common/failure", "moe/common/layout", "ep/tma", "moe/common/sums", "ep/block_scales")
MODES = {name: combine if name.startswith("combine") else dispatch for name in HEADERS}
SETTINGS: dict[str, int] = {}
_SUM_PARAMETERS = (
    "int4* out, const int4* y, const int* topk_idx, const float* topk_weights, const int* send_index, const int* plan, "
    "int* differs"
)
_SUM_ARGUMENTS = "(@args, out, y, topk_idx, topk_weights, send_index, plan, differs)"
ENTRIES = {
    "dispatch_bulk": (
        "@BulkDispatchArgs args, const int4* x, const float* scales, const int* topk_idx, const float* topk_weights, "
        "const int* send_index, const int* plan, int* differs, const float* row_scales",
        "dispatch_bulk<kByLanes, 2>(@args, x, scales, topk_idx, topk_weights, send_index, plan, differs, row_scales)",
    ),
    "combine_push": (f"@PushCombineArgs args, {_SUM_PARAMETERS}", f"combine_push<__nv_bfloat16>{_SUM_ARGUMENTS}"),
    "combine_pull": (
        f"@PullCombineArgs args, {_SUM_PARAMETERS}",
        f"combine_pull<__nv_bfloat16, kInPlace>{_SUM_ARGUMENTS}",
    ),
    "combine_pull staged": (
        f"@PullCombineArgs args, {_SUM_PARAMETERS}",
        f"combine_pull<__nv_bfloat16, kElsewhere>{_SUM_ARGUMENTS}",
    ),
    "combine_pull by expert": (
        f"@PullCombineArgs args, {_SUM_PARAMETERS}",
        f"combine_pull<__nv_bfloat16, kByExpert>{_SUM_ARGUMENTS}",
    ),
    "copy_epilogue by expert": (
        "@CopyEpilogueArgs args, @ExpertRowsArgs by, const int* plan, int4* x, float* scales, long long* topk, "
        "float* weights, int* src_rank, int* src_token",
        "copy_by_expert<long long, float>(@args, @by, plan, x, scales, topk, weights, src_rank, src_token)",
    ),
}
_DISPATCH, _PUSH, _PULL, _STAGED, _SUMMED, _GROUPED = HEADERS
_SIGNAL = "st_release_sys_u64(peer_ptr(signals.flags + mine, peer), signals.epoch)"
_ROWS_THERE = "ok = wait_for_all(signals, kSignalRows, signals.epoch, kPhaseDispatch);"
_LAST = "if (last == LastBlock::kNo) return;\n    ok = last == LastBlock::kYes;"
_BARRIER_DISPATCH = "ok = ok && barrier_before_reuse(signals, args.workspace.state->last_dispatch, kPhaseDispatch);"
_BARRIER_COMBINE = " && barrier_before_reuse(signals, args.workspace.state->last_combine, kPhaseCombine)"
_GROUP_SIGNAL = "st_release_sys_u64(peer_ptr(flag, owner), epoch);"
_GROUP_WAIT = "wait_until_ge(flag, epoch, {kPhaseCombine, from, group})"
_TAG_WAIT = "wait_until_ge(signals.flags + entry, signals.epoch,"
_ALL_COPIED = "is_last_block(&args.workspace.state->copied_blocks, args.send.blocks)"
_ALL_PULLED = "ok = wait_for_all(signals, kSignalPulled, signals.epoch, kPhaseCombine);"
_PLACED = "__syncthreads();  // slots are read by all warps; of_thread is written again"
_COMPLETE = "ld_acquire_sys_u64(complete_ + r)"

VARIANTS = [
    Mistake("a relaxed signal for all rows", _DISPATCH, _SIGNAL, _SIGNAL.replace("release", "relaxed")),
    Mistake("each block for itself says that all rows are there", _DISPATCH, _LAST, "ok = true;"),
    Mistake("rows are taken before they are there", _DISPATCH, _ROWS_THERE, ""),
    Mistake("a second dispatch without a barrier", _DISPATCH, _BARRIER_DISPATCH, ""),
    Mistake("a combine in the same area without a barrier", _DISPATCH, "&& args.areas == 0)", "&& false)"),
    Mistake("a row's place is filled while lanes read", _DISPATCH, "__syncwarp();  // all lanes have read the row", ""),
    Mistake("a relaxed signal of a group", _PUSH, _GROUP_SIGNAL, _GROUP_SIGNAL.replace("release", "relaxed")),
    Mistake("a group is signalled a row early", _PUSH, "is_last ? item_.group : -1", "item_.group"),
    Mistake("rows are added before they are there", _PUSH, _GROUP_WAIT, _GROUP_WAIT.replace("epoch", "0")),
    Mistake("a second combine without a barrier", _PUSH, _BARRIER_COMBINE, ""),
    Mistake("a dispatch in the same area without a barrier", _PUSH, "&& args.shares_area)", "&& false)"),
    Mistake("pieces come where rows still are", _PUSH, "__syncthreads();  // pieces reuse the rows' memory", ""),
    Mistake("pieces are loaded while lanes add", _PUSH, "__syncwarp();  // all lanes have read the pieces", ""),
    Mistake("rows are read before experts are done", _PULL, _TAG_WAIT, _TAG_WAIT.replace("signals.epoch", "0")),
    Mistake("experts write while others read", _PULL, _ALL_PULLED, ""),
    Mistake("one block says that all have copied", _STAGED, _ALL_COPIED, "blockIdx.x == args.pull_blocks"),
    Mistake("a relaxed look whether all have copied", _STAGED, _COMPLETE, _COMPLETE.replace("acquire", "relaxed")),
    Mistake("rows are copied while others read", _STAGED, _ALL_PULLED, ""),
    Mistake(
        "own sums are read before they are made", _SUMMED, "signals.epoch, kRows == kByExpert);", "signals.epoch);"
    ),
    Mistake(
        "a lane speaks for all before they are done", _SUMMED, "__syncwarp();  // the group's rows are of all lanes", ""
    ),
    Mistake("rows are copied before they have places", _GROUPED, _PLACED, ""),
    Mistake(
        "choices are counted while zeros look for places",
        _GROUPED,
        "__syncthreads();  // the next round changes `next`",
        "",
    ),
    Mistake("blocks count choices without atomics", _GROUPED, "atomicAdd(&next[expert], 1)", "next[expert] += 1"),
    Mistake(
        "an expert's next place changes while lanes read", _GROUPED, "__syncwarp();  // all lanes have read `next`", ""
    ),
]


# What experts write must be seen by the checker, which does not see what NumPy does.
EXPERTS = Kernel.from_source(
    """
    extern "C" __global__ void experts(int4* place, const int4* y, int vectors) {
        for (int i = threadIdx.x; i < vectors; i += blockDim.x) place[i] = y[i];
    }
    """,
    "experts",
)


def main(rank: Rank, kernel: str) -> Any:
    """Dispatches and combines, several of a kind in a row, in the way in which ``kernel`` works."""
    ranks, tokens, outs = rank.world_size, 7, []
    x = np.full((tokens, 256), rank.rank + 1, BF16)
    takes_turns = kernel in (_DISPATCH, _PUSH)  # dispatch and combine, in one area
    idx = (np.arange(tokens)[:, None] + np.arange(2)) % ranks
    with Buffer(
        rank, num_experts=ranks, top_k=2, hidden=256, max_tokens=tokens, num_sms=2, receive_areas=int(not takes_turns)
    ) as buffer:
        direct: Any = buffer._mode
        direct.tuning = replace(EMULATED, push=takes_turns, group_rows=3, add_vectors=5)
        recv = buffer.dispatch(x, idx, sorted_by_expert=kernel in (_SUMMED, _GROUPED))
        for turn in range(3):
            if kernel == _DISPATCH:
                again = buffer.dispatch(x * BF16(turn + 1), handle=recv.handle, async_finish=True)
                rank.synchronize()
                outs.append(again.x)
            if kernel == _GROUPED:
                grouped = buffer.dispatch(
                    x * BF16(turn + 1), idx, sorted_by_expert=True, num_worst_tokens=ranks * tokens
                )
                rank.synchronize()
                outs.append(grouped.by_expert.x[: grouped.by_expert.offsets[-1]])
            if kernel == _SUMMED:
                outs.append(buffer.combine(recv.by_expert.x * BF16(turn + 1), recv.handle, sorted_by_expert=True))
            y = recv.x * BF16(rank.rank + turn + 1)
            if kernel == _PULL:
                place = buffer.combine_input(recv.handle, recv.x)
                EXPERTS.launch(rank, 1, 32, place, y, y.nbytes // 16)
                y = place
            if kernel not in (_DISPATCH, _GROUPED, _SUMMED):
                outs.append(buffer.combine(y, recv.handle))
        for _ in range(2 * takes_turns):
            outs.append(buffer.dispatch(x, handle=recv.handle, async_finish=True).x)
            outs.append(buffer.combine(x[recv.src_token], recv.handle, async_finish=True)[0])
        rank.synchronize()
    return outs
