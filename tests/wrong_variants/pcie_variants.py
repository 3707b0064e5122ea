"""One-line mistakes in PCIe mode's kernels, and a Buffer that runs with them."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.dispatch_combine_cases import BF16

from ep_lib import Buffer, Rank
from ep_lib.errors import RankMismatchError
from ep_lib.moe.pcie import mode as pcie
from wrong_variants.all_in_one import KINDS, Mistake

HEADERS = {
    "exchange_counts": ("moe/pcie/rings", "moe/pcie/exchange_counts"),
    "dispatch": ("moe/pcie/rings", "moe/pcie/dispatch"),
    "combine": ("moe/pcie/rings", "moe/pcie/combine"),
}
INCLUDES = ("moe/common/sums", "ep/ring", "ep/trace")
MODES = dict.fromkeys(HEADERS, pcie)
SETTINGS: dict[str, int] = {}
# Parameters and arguments of each kernel; @Type is a struct of the variant's own, all of which are alike.
ENTRIES = {
    "exchange_counts": (
        "@ExchangeArgs args, const int* index, const int* ranks, const int* experts, uint64_t* tags, int* plan",
        "exchange_counts(@args, index, ranks, experts, tags, plan)",
    ),
    "dispatch": (
        "@DispatchArgs args, @Tokens tokens, @Arrivals arrivals, const int* index, const int* sends, "
        "const int* receives, const int* first_row",
        "dispatch(@args, @tokens, @arrivals, index, sends, receives, first_row)",
    ),
    "combine": (
        "@CombineArgs args, int4* out, const int4* y, const int* idx, const float* weights, const int* index, "
        "const int* sends, const int* receives, const int* first_row",
        "combine<__nv_bfloat16>(@args, out, y, idx, weights, index, sends, receives, first_row)",
    ),
}
STUCK = frozenset({"timeout", "deadlock"})
MIXED_UP = KINDS | STUCK | {"assertion"}
BAD_PLACE = frozenset({"uninitialised", "misaligned", "out of bounds", "race"})


_ROOM = "if (!ring_has_room(ring_at(rings, role.channel, k, receiver_at(rings, k)), left.message)) return false;"
_ALL_READ = "__syncwarp();  // all lanes have read their part before the slot is given back"
_SHARED_RINGS = "static_cast<int64_t>(channel) * (ends_of_rings(rings) - 1) + k"
_WAITS = "from_ring && in.row == 0)"
_CREDIT = "if (lane_id() == 0) ring_return_credit(ring);"
_TAKE = "taker.take_warp(ring_received"
_LISTED = "__syncwarp();  // all lanes may read the pointers"
_COUNTED_IN = "atom_add_acq_rel_gpu_u32(readers, 1) + 1 == static_cast<uint32_t>(role.warps)"
_POST = """net_put_signal_nbi(message(inbox, me), message(outbox, peer), bytes, signals + me, args.epoch, peer, 0,
                           NetSignal::kSet);"""
_TWO_POSTS = """net_put_nbi(message(inbox, me), message(outbox, peer), bytes, peer, 0);
        net_put_signal_nbi(message(inbox, me), message(outbox, peer), 0, signals + me, args.epoch, peer, 0,
                           NetSignal::kSet);"""

VARIANTS = [
    Mistake("sends without credits", "dispatch", _ROOM, ""),
    Mistake("fills before all lanes may", "dispatch", "__syncwarp();  // all lanes may read the chunk", "//"),
    Mistake("posts before all lanes filled", "dispatch", "__syncwarp();  // all lanes have filled", "//"),
    Mistake("credit before the read", "dispatch", _TAKE, f"{_CREDIT}\n {_TAKE}", KINDS | STUCK),
    Mistake("credit before all lanes read", "dispatch", _ALL_READ, ""),
    Mistake("lanes read before lane 0 waited", "dispatch", "__syncwarp();  // all lanes may read the message", "//"),
    Mistake("no credits", "dispatch", _CREDIT, "", STUCK),
    Mistake("all messages in one slot", "dispatch", "left = {chunk.message + 1,", "left = {chunk.message,"),
    Mistake("the channels share their rings", "dispatch", _SHARED_RINGS, "k"),
    Mistake(
        "message numbers begin again with each kernel",
        "dispatch",
        "rings.sent[ring_index(rings, role.channel, k)] = outgoing[k - 1].message;",
        "",
        KINDS | STUCK,
    ),
    Mistake("the first warp returns the credit", "combine", _COUNTED_IN, _COUNTED_IN.replace("role.warps", "1")),
    Mistake("warps count themselves in without order", "combine", "atom_add_acq_rel", "atom_add_relaxed"),
    Mistake("counted in before all lanes read", "combine", "__syncwarp();  // all lanes have read: slots", "//"),
    Mistake("reads before the lanes waited", "combine", _LISTED, "//", BAD_PLACE),
    Mistake("one warp waits for all", "combine", _WAITS, _WAITS.replace("== 0", "== 0 && !role.warp")),
    Mistake("a number overwritten while it is read", "combine", "__syncthreads();  // all warps", "//", KINDS, 3),
    Mistake("rows of the ring's first message", "combine", "++in.message;", "in.message += 2;", KINDS | STUCK),
    Mistake("posts before the block wrote", "exchange_counts", "__syncthreads();\n\n    const size_t", "const size_t"),
    Mistake("counts, then their signal", "exchange_counts", _POST, _TWO_POSTS),
    Mistake("one box for all operations", "exchange_counts", "static_cast<int>(args.epoch % 2)", "0", MIXED_UP, 0),
]  # fmt: skip


def main(rank: Rank, tokens: int = 14) -> Any:
    """Two dispatches and two combines with rings of two small slots; every token goes to every rank."""
    try:
        return operations(rank, tokens)
    except RankMismatchError as error:  # what the ranks said got mixed up
        raise AssertionError(str(error)) from error


def operations(rank: Rank, tokens: int) -> Any:
    ranks = rank.world_size
    shape = {"num_experts": ranks, "top_k": ranks, "hidden": 256, "max_tokens": 14, "num_sms": 4}
    x = np.full((tokens, 256), rank.rank + 1, BF16)
    idx = np.tile(np.arange(ranks), (tokens, 1))
    packet = 256 * 2 + 8 * ranks + 4 + 15 & ~15
    with Buffer(rank, **shape, allow_nvlink_for_normal_mode=False, bounce_bytes=2 * packet) as buffer:
        recv = buffer.dispatch(x, idx)
        outs = [buffer.combine(recv.x, recv.handle) for _ in range(2)]
        again = buffer.dispatch(x, handle=recv.handle)
        return recv.x, again.x, *outs
