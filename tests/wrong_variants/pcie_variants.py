"""One-line mistakes in PCIe mode's kernels, and a Buffer that runs with them."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.dispatch_combine_cases import BF16

from ep_lib import Buffer, Kernel, Rank
from ep_lib.errors import RankMismatchError
from ep_lib.moe.pcie import mode as pcie
from wrong_variants import all_in_one

HEADERS = {
    "exchange_counts": ("moe/pcie/rings", "moe/pcie/exchange_counts"),
    "dispatch": ("moe/pcie/rings", "moe/pcie/dispatch"),
    "combine": ("moe/pcie/rings", "moe/pcie/combine"),
}
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
RACE = frozenset({"race", "slot reused", "signal overtakes data", "source reused", "read before arrival"})
STUCK = frozenset({"timeout", "deadlock"})
MIXED_UP = RACE | STUCK | {"assertion"}
BAD_PLACE = frozenset({"uninitialised", "misaligned", "out of bounds", "race"})


class Variant(NamedTuple):
    """``old``, which is there once in the kernel's headers, becomes ``new``; a report has one of ``kinds``."""

    name: str
    kernel: str
    old: str
    new: str
    kinds: frozenset[str] = RACE
    tokens: int = 14
    fabric: str = "srd"


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
    Variant("sends without credits", "dispatch", _ROOM, ""),
    Variant("fills before all lanes may", "dispatch", "__syncwarp();  // all lanes may read the chunk", "//"),
    Variant("posts before all lanes filled", "dispatch", "__syncwarp();  // all lanes have filled", "//"),
    Variant("credit before the read", "dispatch", _TAKE, f"{_CREDIT}\n {_TAKE}", RACE | STUCK),
    Variant("credit before all lanes read", "dispatch", _ALL_READ, ""),
    Variant("lanes read before lane 0 waited", "dispatch", "__syncwarp();  // all lanes may read the message", "//"),
    Variant("no credits", "dispatch", _CREDIT, "", STUCK),
    Variant("all messages in one slot", "dispatch", "left = {chunk.message + 1,", "left = {chunk.message,"),
    Variant("the channels share their rings", "dispatch", _SHARED_RINGS, "k"),
    Variant(
        "message numbers begin again with each kernel",
        "dispatch",
        "rings.sent[ring_index(rings, role.channel, k)] = outgoing[k - 1].message;",
        "",
        RACE | STUCK,
    ),
    Variant("the first warp returns the credit", "combine", _COUNTED_IN, _COUNTED_IN.replace("role.warps", "1")),
    Variant("warps count themselves in without order", "combine", "atom_add_acq_rel", "atom_add_relaxed"),
    Variant("counted in before all lanes read", "combine", "__syncwarp();  // all lanes have read, before", "//"),
    Variant("reads before the lanes waited", "combine", _LISTED, "//", BAD_PLACE),
    Variant("one warp waits for all", "combine", _WAITS, _WAITS.replace("== 0", "== 0 && !role.warp")),
    Variant("a number overwritten while it is read", "combine", "__syncthreads();  // all warps", "//", RACE, 3),
    Variant("rows of the ring's first message", "combine", "++in.message;", "in.message += 2;", RACE | STUCK),
    Variant("posts before the block wrote", "exchange_counts", "__syncthreads();\n\n    const size_t", "const size_t"),
    Variant("counts, then their signal", "exchange_counts", _POST, _TWO_POSTS),
    Variant("one box for all operations", "exchange_counts", "static_cast<int>(args.epoch % 2)", "0", MIXED_UP, 0),
]  # fmt: skip


@functools.cache
def programs(name: str) -> Kernel:
    """The kernel ``name`` in all its variants."""
    return all_in_one.all_in_one(
        name, HEADERS[name], ENTRIES[name], ("moe/common/sums", "ep/ring", "ep/trace"), VARIANTS
    )


def use_variant(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Buffers in PCIe mode run with this mistake from now on."""
    all_in_one.use_variant(monkeypatch, pcie, programs, VARIANTS, number)


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
