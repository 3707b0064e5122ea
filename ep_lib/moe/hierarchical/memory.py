"""Hierarchical mode's sizes, and where its parts lie in symmetric memory."""

from __future__ import annotations

from ep_lib.errors import ArgumentError
from ep_lib.jit.structs import header_constant
from ep_lib.moe.config import MAX_EXPERTS_PER_RANK, VECTOR_BYTES, BufferConfig
from ep_lib.moe.direct.memory import row_scales
from ep_lib.moe.memory import ModeMemory, Part, Shape, lay_out
from ep_lib.moe.pcie.memory import MAX_ROWS_PER_MESSAGE, PcieSizes, exchange_parts, ring_parts, round_up
from ep_lib.runtime.rank import Rank

_NODES = "moe/hierarchical/nodes.cuh"
KINDS_OF_BLOCKS = 3  # senders, receivers, and those that store inside the node

# There are more channels than in PCIe mode, so messages may be shorter: 32 KiB take a NIC of 400 Gb/s 0.65 us.
_MESSAGE_BYTES = 32 << 10
_MESSAGES_PER_RING = 8


def warps_per_block() -> int:
    """Warps in a block of the kernels that send and receive."""
    return header_constant(_NODES, "kWarps")


def packet_bytes(
    row_bytes: int, scale_bytes: int, top_k: int, *, ranks_per_node: int, with_routing: bool, with_weights: bool
) -> int:
    """The bytes of a token's packet for another node: row, scales, its places there, ids and weights of its experts,
    and its number. Without routing and weights, only row and scales."""
    beside = 0
    if with_routing or with_weights:
        beside = 4 * (ranks_per_node * with_routing + top_k * (1 + with_weights) + 1)
    return round_up(row_bytes + scale_bytes + beside, VECTOR_BYTES)


def make_hierarchical_sizes(config: BufferConfig) -> PcieSizes:
    """Check hierarchical mode's limits, and choose sizes. Raises ArgumentError."""
    mates, nodes = config.ranks_per_node, config.nodes
    assert mates is not None
    for name, number, limit in (
        ("ranks_per_node", mates, header_constant(_NODES, "kMaxRanksPerNode")),
        ("the number of nodes", nodes, header_constant(_NODES, "kMaxNodes")),
    ):
        if number > limit:
            raise ArgumentError(f"{name} is {number}; hierarchical mode connects nodes of up to {limit}: use fewer")
    if mates * config.experts_per_rank > MAX_EXPERTS_PER_RANK:
        raise ArgumentError(
            f"num_experts is {config.num_experts}: {mates * config.experts_per_rank} on each node, the most in "
            f"hierarchical mode is {MAX_EXPERTS_PER_RANK}"
        )
    if config.num_sms < KINDS_OF_BLOCKS:
        raise ArgumentError(
            f"num_sms is {config.num_sms}; in hierarchical mode a third of the blocks sends to other nodes, a third "
            f"receives, and the rest stores inside the node: pass {KINDS_OF_BLOCKS} or more"
        )
    packet = packet_bytes(
        config.row_bytes, 0, config.top_k, ranks_per_node=mates, with_routing=True, with_weights=True
    )  # FP8 rows with their scales are shorter
    rows = min(max(_MESSAGE_BYTES // packet, 1), MAX_ROWS_PER_MESSAGE)
    channels = config.num_sms // KINDS_OF_BLOCKS * warps_per_block()
    return PcieSizes(channels, _MESSAGES_PER_RING, rows * packet)


def make_hierarchical_map(config: BufferConfig) -> tuple[dict[str, Part], int]:
    """The parts by name and the bytes of all. Parts before ``inbox`` must be zero at the start. Raises
    ArgumentError."""
    sizes = make_hierarchical_sizes(config)
    mates, nodes, rows = config.ranks_per_node, config.nodes, config.max_rows
    assert mates is not None
    ring_flags, bounce_buffers = ring_parts(sizes, nodes - 1)
    signals, boxes = exchange_parts(config, 1)
    message = round_up(4 * (sizes.channels + 1), VECTOR_BYTES)
    shapes: list[Shape] = [
        *ring_flags,
        signals,
        ("partner_signals", (nodes,), "u8"),
        ("node_signals", (header_constant(_NODES, "kNumNodeSignals"), mates), "u8"),
        *boxes,
        ("partner_inbox", (nodes, message), "u1"),
        ("partner_outbox", (nodes, message), "u1"),
        ("tables", (mates, config.world_size), "i4"),
        *bounce_buffers,
        ("topk", (rows, config.top_k), "i4"),
        ("weights", (rows, config.top_k), "f4"),
        ("source", (rows, 2), "i4"),
        ("scales", (rows, row_scales(config)), "f4"),
        ("rows", (rows, config.row_bytes // 8), "u8"),
    ]
    return lay_out(shapes)


def allocate(rank: Rank, config: BufferConfig) -> ModeMemory:
    """Collective. Raises OutOfSymmetricMemory."""
    who = (
        f"a Buffer in hierarchical mode for {config.nodes} nodes of {config.ranks_per_node} ranks x "
        f"max_tokens={config.max_tokens}"
    )
    return ModeMemory(rank, make_hierarchical_map(config), "inbox", who=who, lower="max_tokens or num_sms")


def weight_bytes(config: BufferConfig) -> int:
    """The bytes of a token's weights on the ranks of a node."""
    assert config.ranks_per_node is not None
    return round_up(4 * config.ranks_per_node, VECTOR_BYTES)
