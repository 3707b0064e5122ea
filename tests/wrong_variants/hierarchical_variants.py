"""One-line mistakes in hierarchical mode's kernels, and a Buffer that runs with them."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.dispatch_combine_cases import BF16

from ep_lib import Buffer, Rank
from ep_lib.moe.hierarchical import mode as hierarchical
from wrong_variants.all_in_one import KINDS, Mistake
from wrong_variants.pcie_variants import BAD_PLACE, MIXED_UP, STUCK

HEADERS = {
    name: ("moe/pcie/rings", "moe/hierarchical/nodes", f"moe/hierarchical/{file}")
    for name, file in (
        ("exchange_nodes", "exchange_nodes"),
        ("stored", "exchange_nodes"),
        ("staged", "exchange_nodes"),
        ("dispatch", "dispatch"),
        ("combine", "combine"),
        ("send_weights", "combine"),
    )
}
INCLUDES = ("moe/common/sums", "ep/ring", "ep/trace", "ep/signal")
MODES = dict.fromkeys(HEADERS, hierarchical)
SETTINGS = dict.fromkeys(
    (f"ep_lib.moe.hierarchical.memory.{name}" for name in ("_MESSAGES_PER_RING", "MAX_ROWS_PER_MESSAGE")), 1
)
_BARRIER = "uint64_t* signals, int ranks_of_node, uint64_t epoch"
# Parameters and arguments of each kernel; @Type is a struct of the variant's own, all of which are alike.
ENTRIES = {
    "exchange_nodes": (
        "@ExchangeNodesArgs args, const int* index, const int* counts, const int* first_row, int* plan",
        "exchange_nodes(@args, index, counts, first_row, plan)",
    ),
    "stored": (_BARRIER, "node_barrier(signals, ranks_of_node, kNodeStored, epoch, kPhaseDispatch)"),
    "staged": (_BARRIER, "node_barrier(signals, ranks_of_node, kNodeStaged, epoch, kPhaseCombine)"),
    "dispatch": (
        "@DispatchArgs args, @Tokens tokens, const int* index, const int* node_index, const int* sends, "
        "const int* receives, const int* first_forward, const int* first_rows, int* forwards",
        "dispatch(@args, @tokens, index, node_index, sends, receives, first_forward, first_rows, forwards)",
    ),
    "combine": (
        "@CombineArgs args, @NodeRouting routing, int4* out, const float* weights, const float* topk_weights",
        "combine<__nv_bfloat16>(@args, @routing, out, weights, topk_weights)",
    ),
    "send_weights": (
        "@CombineArgs args, @NodeRouting routing, float* weights, const float* topk_weights",
        "send_weights(@args, @routing, weights, topk_weights)",
    ),
}

_POST = "args.signals + here, args.epoch, node * mates + me - first, 0, NetSignal::kSet"
_TABLES = "if (!node_barrier(args.node_signals, mates, kNodeTables, args.epoch, kPhaseLayout)) return;"
_PARTNERS = "if (node != here) failed |= !wait_until_ge(args.signals + node, args.epoch, partner);"
_TELL = "signal_set(signals + kind * ranks_of_node + me, epoch, first + i);"
_WAIT = "failed |= !wait_until_ge(signals + kind * ranks_of_node + i, epoch, {phase, first + i, kind});"
_ROOM = "if (!ring_has_room(ring_at(rings, role.channel, k, receiver_at(rings, k)), left.message)) return false;"
_ROW_WAIT = "if (from_ring && in.row == 0) failed = !ring_wait_for_message(in.ring, in.message, kPhaseCombine);"
_LISTED = "__syncwarp();  // all lanes may read the pointers"
_READ = "__syncwarp();  // all lanes have read the previous token's pointers"
_ALL_READ = "__syncwarp();  // all lanes have read their part before the slot is given back"
_MESSAGE = "__syncwarp();  // all lanes may read the message"
_PLACE = "first_rows[lane * num_ranks() + source] + s"
_RELAXED = "st_relaxed_sys_u64(peer_ptr(signals + kind * ranks_of_node + me, first + i), epoch);"
_EARLY = _POST.replace("args.epoch,", "args.epoch - 1,")

VARIANTS = [
    Mistake("the node is not waited for", "exchange_nodes", _TABLES, "", BAD_PLACE),
    Mistake("partners are not waited for", "exchange_nodes", _PARTNERS, "", MIXED_UP | BAD_PLACE),
    Mistake(
        "posts before the block wrote", "exchange_nodes", "__syncthreads();\n\n    for (int node", "for (int node"
    ),
    Mistake("signals the epoch before", "exchange_nodes", _POST, _EARLY, STUCK),
    Mistake("rows are read before they are stored", "stored", _WAIT, "", BAD_PLACE),
    Mistake("a rank does not say that it has stored", "stored", _TELL, "", STUCK),
    Mistake("waits for the operation before", "stored", _WAIT, _WAIT.replace("epoch,", "epoch - 1,"), BAD_PLACE),
    Mistake("rows are added before they are there", "staged", _WAIT, "", BAD_PLACE),
    Mistake("signals without release", "staged", _TELL, _RELAXED, BAD_PLACE),
    Mistake("sends without credits", "dispatch", _ROOM, ""),
    Mistake("pointers read before they are written", "dispatch", _LISTED, "//", BAD_PLACE),
    Mistake("pointers written before they are read", "dispatch", _READ, "//"),
    Mistake("partners' rows go to the wrong place", "dispatch", _PLACE, "s", BAD_PLACE),
    Mistake("credit before all lanes read", "dispatch", _ALL_READ, ""),
    Mistake("sends sums without credits", "combine", _ROOM, ""),
    Mistake("adds rows before they came", "combine", _ROW_WAIT, "", KINDS | STUCK),
    Mistake("reads before the lanes waited", "combine", f"{_LISTED}, and the messages", "//", BAD_PLACE),
    Mistake("credit before all lanes added", "combine", "__syncwarp();  // all lanes have read: slots", "//"),
    Mistake("no credits", "combine", "ring_return_credit(in.ring);", "", STUCK),
    Mistake("lanes read weights before lane 0 waited", "send_weights", _MESSAGE, "//"),
]  # fmt: skip


def main(rank: Rank, tokens: int = 14) -> Any:
    """Two dispatches and three combines; every token goes to every rank."""
    ranks = rank.world_size
    shape = {"num_experts": ranks, "top_k": ranks, "hidden": 256, "max_tokens": 14, "num_sms": 3}
    x = np.full((tokens, 256), rank.rank + 1, BF16)
    idx = np.tile(np.arange(ranks), (tokens, 1))
    weights = np.ones((tokens, ranks), np.float32)
    with Buffer(rank, **shape, hierarchical=True) as buffer:
        recv = buffer.dispatch(x, idx)
        outs = [buffer.combine(recv.x, recv.handle, given) for given in (None, weights, None)]
        again = buffer.dispatch(x, handle=recv.handle)
        return recv.x, again.x, *outs
