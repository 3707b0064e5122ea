"""What low-latency mode is made for, and where its parts lie in symmetric memory."""

from __future__ import annotations

from dataclasses import dataclass

from ep_lib.errors import ArgumentError
from ep_lib.memory.arrays import BFLOAT16
from ep_lib.moe.config import BufferConfig, Part, lay_out
from ep_lib.moe.low_latency.structs import MAX_EXPERTS, MAX_TOP_K, NUM_KINDS, TURNS, route_words, weight_words

MAX_TOKENS = 1024  # a rank: decode batches; beyond that the normal mode is faster
_MAX_BLOCKS = 1024


@dataclass(frozen=True)
class LowLatencyConfig:
    """The arguments of low-latency mode, checked. Must be equal on all ranks."""

    world_size: int
    num_experts: int
    top_k: int
    hidden: int
    max_tokens: int
    mask_on_timeout: bool
    num_sms: int | None  # None: all

    @property
    def experts_per_rank(self) -> int:
        """Experts that live on each rank."""
        return self.num_experts // self.world_size

    @property
    def capacity(self) -> int:
        """Rows that one expert can get: every token of every rank."""
        return self.world_size * self.max_tokens

    @property
    def row_vectors(self) -> int:
        """16-byte vectors of one bfloat16 token."""
        return self.hidden * 2 // 16


@dataclass(frozen=True)
class LowLatencyMap:
    """The parts of low-latency mode's symmetric memory; everything before ``dispatch_slots`` must be zero at first."""

    credits: Part  # u64 [kinds + 1, ranks]: see <moe/low_latency/common.cuh>
    dispatch_flags: Part  # u64 [turns, ranks, max_tokens]: see <moe/low_latency/dispatch.cuh>
    routes: Part  # packets [turns, ranks, 1 + max_tokens * words]
    dispatch_weights: Part  # packets [turns, ranks, max_tokens * words]: weights that travel with a dispatch
    combine_flags: Part  # u64 [turns, ranks, max_tokens]: see <moe/low_latency/combine.cuh>
    weights: Part  # packets [turns, ranks, max_tokens * words]: those that travel with a combine
    dispatch_slots: Part  # [turns, ranks, max_tokens, hidden] bfloat16
    combine_slots: Part  # the same
    nbytes: int

    @property
    def zeroed_bytes(self) -> int:
        """How much at the start must be zero before the first operation."""
        return self.dispatch_slots.offset


def make_low_latency_config(config: BufferConfig) -> LowLatencyConfig | None:
    """What a Buffer's low-latency mode is made for; None: it has none. Raises ArgumentError."""
    name = "num_max_dispatch_tokens_per_rank"
    max_tokens = config.num_max_dispatch_tokens_per_rank
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or not 0 <= max_tokens <= MAX_TOKENS:
        raise ArgumentError(
            f"{name} is {max_tokens!r}; low-latency mode takes 1 to {MAX_TOKENS} tokens a rank (0: no low-latency "
            "mode); larger batches are for dispatch and combine"
        )
    num_sms = config.num_low_latency_sms
    if num_sms is not None and (isinstance(num_sms, bool) or num_sms not in range(1, _MAX_BLOCKS + 1)):
        raise ArgumentError(f"num_low_latency_sms is {num_sms!r}; it must be 1 to {_MAX_BLOCKS}, or None: all")
    if max_tokens == 0:
        if num_sms is not None or config.low_latency_mask_on_timeout:
            given = "num_low_latency_sms" if num_sms is not None else "low_latency_mask_on_timeout"
            raise ArgumentError(f"{given} is for low-latency mode: pass {name} with it")
        return None
    if config.dtype != BFLOAT16:
        raise ArgumentError(
            f"low-latency mode ({name}={max_tokens}) carries bfloat16, and this Buffer's dtype is {config.dtype.name}"
        )
    if config.top_k > MAX_TOP_K:
        raise ArgumentError(f"top_k is {config.top_k}; low-latency mode ({name}={max_tokens}) takes up to {MAX_TOP_K}")
    if config.experts_per_rank > MAX_EXPERTS:
        raise ArgumentError(
            f"num_experts is {config.num_experts}: {config.experts_per_rank} on each rank; low-latency mode takes up "
            f"to {MAX_EXPERTS}"
        )
    if not config.allow_nvlink_for_normal_mode:
        raise ArgumentError(
            f"low-latency mode ({name}={max_tokens}) works by loads and stores between GPUs, and this Buffer was asked "
            "to use the NIC only: leave allow_nvlink_for_normal_mode=False out"
        )
    return LowLatencyConfig(
        world_size=config.world_size,
        num_experts=config.num_experts,
        top_k=config.top_k,
        hidden=config.hidden,
        max_tokens=max_tokens,
        mask_on_timeout=config.low_latency_mask_on_timeout,
        num_sms=num_sms,
    )


def make_low_latency_map(config: LowLatencyConfig) -> LowLatencyMap:
    """Lay the parts out one after the other."""
    ranks, tokens = config.world_size, config.max_tokens
    shapes: list[tuple[str, tuple[int, ...], str]] = [
        ("credits", (NUM_KINDS + 1, ranks), "u8"),
        ("dispatch_flags", (TURNS, ranks, tokens), "u8"),
        ("routes", (TURNS, ranks, 1 + tokens * route_words(config.top_k), 2), "u8"),
        ("dispatch_weights", (TURNS, ranks, tokens * weight_words(config.top_k), 2), "u8"),
        ("combine_flags", (TURNS, ranks, tokens), "u8"),
        ("weights", (TURNS, ranks, tokens * weight_words(config.top_k), 2), "u8"),
        ("dispatch_slots", (TURNS, ranks, tokens, config.hidden // 4), "u8"),
        ("combine_slots", (TURNS, ranks, tokens, config.hidden // 4), "u8"),
    ]
    parts, nbytes = lay_out(shapes)
    return LowLatencyMap(**parts, nbytes=nbytes)
