"""Low-latency mode's limits, and where its parts lie in symmetric memory."""

from __future__ import annotations

from ep_lib.errors import ArgumentError
from ep_lib.jit.structs import header_constant, header_struct
from ep_lib.memory.arrays import BFLOAT16
from ep_lib.moe.config import MAX_BLOCKS, BufferConfig
from ep_lib.moe.memory import ModeMemory, Part, lay_out
from ep_lib.runtime.rank import Rank

MAX_TOKENS = 1024  # of a rank: decode batches; beyond that the normal mode is faster


def has_low_latency(config: BufferConfig) -> bool:
    """Whether a Buffer has low-latency mode. Raises ArgumentError for arguments that the mode does not support."""
    name = "num_max_dispatch_tokens_per_rank"
    max_tokens = config.num_max_dispatch_tokens_per_rank
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or not 0 <= max_tokens <= MAX_TOKENS:
        raise ArgumentError(
            f"{name} is {max_tokens!r}; low-latency mode takes 1 to {MAX_TOKENS} tokens per rank (0: no low-latency "
            "mode); larger batches are for dispatch and combine"
        )
    num_sms = config.num_low_latency_sms
    if num_sms is not None and (isinstance(num_sms, bool) or num_sms not in range(1, MAX_BLOCKS + 1)):
        raise ArgumentError(f"num_low_latency_sms is {num_sms!r}; it must be 1 to {MAX_BLOCKS}, or None: all")
    if max_tokens == 0:
        if num_sms is not None or config.low_latency_mask_on_timeout:
            given = "num_low_latency_sms" if num_sms is not None else "low_latency_mask_on_timeout"
            raise ArgumentError(f"{given} is for low-latency mode: pass {name} with it")
        return False
    if config.dtype != BFLOAT16:
        raise ArgumentError(
            f"low-latency mode ({name}={max_tokens}) carries bfloat16, and this Buffer's dtype is {config.dtype.name}"
        )
    most = header_constant("moe/low_latency/common.cuh", "kMaxTopK")
    if config.top_k > most:
        raise ArgumentError(f"top_k is {config.top_k}; low-latency mode ({name}={max_tokens}) takes up to {most}")
    most = header_constant("moe/low_latency/dispatch.cu", "kMaxExperts")
    if config.experts_per_rank > most:
        raise ArgumentError(
            f"num_experts is {config.num_experts}: {config.experts_per_rank} on each rank; low-latency mode takes up "
            f"to {most}"
        )
    if not config.allow_nvlink_for_normal_mode:
        raise ArgumentError(
            f"low-latency mode ({name}={max_tokens}) works by loads and stores between GPUs, and this Buffer was asked "
            "to use the NIC only: leave allow_nvlink_for_normal_mode=False out"
        )
    if config.ranks_per_node is not None:
        raise ArgumentError(
            f"low-latency mode ({name}={max_tokens}) works by loads and stores between all GPUs, and hierarchical=True "
            "is for ranks that only NICs connect: leave one of them out"
        )
    return True


def capacity_of(config: BufferConfig) -> int:
    """Rows that one expert can get: every token of every rank."""
    return config.world_size * config.num_max_dispatch_tokens_per_rank


def make_low_latency_map(config: BufferConfig) -> tuple[dict[str, Part], int]:
    """The parts by name and the bytes of all. Parts before ``dispatch_slots`` must be zero at the start."""
    ranks, tokens = config.world_size, config.num_max_dispatch_tokens_per_rank
    kinds, buffers = (header_constant("moe/low_latency/common.cuh", name) for name in ("kNumKinds", "kNumBuffers"))
    packet = header_struct("ep/packet.cuh", "TaggedWord").size // 8
    ids, weights = packets_per_token(config.top_k)
    return lay_out(
        [
            ("credits", (kinds + 1, ranks), "u8"),  # see common.cuh
            ("dispatch_flags", (buffers, ranks, tokens), "u8"),  # see dispatch.cu
            ("routes", (buffers, ranks, 1 + tokens * ids, packet), "u8"),
            ("dispatch_weights", (buffers, ranks, tokens * weights, packet), "u8"),  # weights sent with a dispatch
            ("combine_flags", (buffers, ranks, tokens), "u8"),  # see combine.cu
            ("weights", (buffers, ranks, tokens * weights, packet), "u8"),  # weights sent with a combine
            ("dispatch_slots", (buffers, ranks, tokens, config.hidden // 4), "u8"),  # bfloat16 rows
            ("combine_slots", (buffers, ranks, tokens, config.hidden // 4), "u8"),  # likewise
        ]
    )


def allocate(rank: Rank, config: BufferConfig) -> ModeMemory:
    """Collective. Raises OutOfSymmetricMemory."""
    tokens = config.num_max_dispatch_tokens_per_rank
    who = (
        f"low-latency mode for {config.world_size} ranks x num_max_dispatch_tokens_per_rank={tokens} x "
        f"hidden={config.hidden}"
    )
    layout, lower = make_low_latency_map(config), "num_max_dispatch_tokens_per_rank"
    return ModeMemory(rank, layout, "dispatch_slots", who=who, lower=lower)


def packets_per_token(top_k: int) -> tuple[int, int]:
    """How many packets carry one token's expert ids (``route_words`` in dispatch.cu) and weights (``weight_words``)."""
    ids = header_constant("moe/low_latency/dispatch.cu", "kIdsPerWord")
    weights = header_constant("moe/low_latency/common.cuh", "kWeightsPerWord")
    return -(-top_k // ids), -(-top_k // weights)
