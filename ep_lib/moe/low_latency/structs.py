"""The structs of the low-latency kernels, as in :mod:`ep_lib.moe.kernels`: they mirror those of the device headers."""

from __future__ import annotations

from ep_lib.moe.kernels import struct

NUM_KINDS = 2  # kNumLowLatencyKinds in <moe/low_latency/common.cuh>
TURNS = 2  # kTurns
MAX_TOP_K = 32  # kMaxLowLatencyTopK
MAX_EXPERTS = 0x4000  # kMaxLowLatencyExperts in <moe/low_latency/dispatch.cuh>, on one rank
PACKET_BYTES = 16  # sizeof(ep::TaggedWord)
SENDS, RECEIVES = 1, 2  # LowLatencyHalf

LOW_LATENCY_ARGS = struct(
    ("finished", "u8"),
    ("mask", "u8"),
    ("credits", "u8"),
    ("num_tokens", "i4"),
    ("max_tokens", "i4"),
    ("top_k", "i4"),
    ("experts_per_rank", "i4"),
    ("row_vectors", "i4"),
    ("role_blocks", "i4"),
    ("send_blocks", "i4"),
    ("mask_on_timeout", "i4"),
)

LOW_LATENCY_DISPATCH_ARGS = struct(
    ("common", LOW_LATENCY_ARGS), ("slots", "u8"), ("row_flags", "u8"), ("routes", "u8"), ("weights", "u8")
)

LOW_LATENCY_ARRIVALS = struct(
    ("rows", "u8"), ("scales", "u8"), ("counts", "u8"), ("places", "u8"), ("token_counts", "u8"), ("weights", "u8")
)

LOW_LATENCY_COMBINE_ARGS = struct(
    ("common", LOW_LATENCY_ARGS),
    ("slots", "u8"),
    ("row_flags", "u8"),
    ("weights", "u8"),
    ("places", "u8"),
    ("token_counts", "u8"),
    ("known_weights", "u8"),
)


def route_words(top_k: int) -> int:
    """``route_words`` of <moe/low_latency/dispatch.cuh>: packets with one token's expert ids."""
    return -(-top_k // 4)


def weight_words(top_k: int) -> int:
    """``weight_words`` of <moe/low_latency/common.cuh>: packets with one token's weights."""
    return -(-top_k // 2)
