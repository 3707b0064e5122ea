"""PCIe mode's sizes: channels, rings, messages, and where they lie in symmetric memory. None depends on max_tokens."""

from __future__ import annotations

from dataclasses import dataclass

from ep_lib.errors import ArgumentError
from ep_lib.jit.structs import header_constant, header_struct
from ep_lib.moe.config import VECTOR_BYTES, BufferConfig
from ep_lib.moe.memory import ModeMemory, Part, Shape, lay_out
from ep_lib.runtime.rank import Rank

# A message must keep a NIC busy for much longer than it costs to post one: 64 KiB take 1.3 us at 400 Gb/s. Small rows
# are gathered up to a number at which one more saves nothing.
#
# A ring must hold what its NIC sends while a credit is on its way back; four messages outlast a round trip. A combine
# needs more. Its receiver adds rows up as they lie in the rings, token by token: the next token's row may be missing in
# one ring while the others are full. A rank whose rings are full is sent less, and NICs, which take turns among what is
# posted, spend their line on the other ranks. Nothing brings it back into step: it falls further behind with every
# token, and receives what it lacks at the end, alone, with one NIC of N busy. On the virtual clock at EP8 with 4096
# tokens, rings of 16 rows (4 messages) reach 47 GB/s and leave the NICs nearly idle for the last fifth of the time; 32
# rows reach 53, 64 rows 55, 128 rows 55 GB/s, each for twice the memory of the one before. 8 messages are the choice.
MESSAGE_BYTES = 64 << 10
MAX_ROWS_PER_MESSAGE = 8
MESSAGES_PER_RING = 8


@dataclass(frozen=True)
class PcieSizes:
    """Sizes that follow from a BufferConfig in PCIe mode. A ring is ``num_slots`` messages of up to ``slot_bytes``."""

    channels: int
    num_slots: int
    slot_bytes: int

    @property
    def ring_bytes(self) -> int:
        """The bytes of one ring on one side."""
        return self.num_slots * self.slot_bytes


def packet_bytes(row_bytes: int, scale_bytes: int, top_k: int) -> int:
    """The bytes of a token's packet: row, scales, ids and weights of ``top_k`` experts, and the token's number.

    With ``top_k`` 0 (a handle, no weights) only row and scales.
    """
    return round_up(row_bytes + scale_bytes + (8 * top_k + 4 if top_k else 0), VECTOR_BYTES)


def make_pcie_sizes(config: BufferConfig) -> PcieSizes:
    """Check PCIe mode's limits, and choose sizes. Raises ArgumentError."""
    most = header_constant("moe/pcie/rings.cuh", "kMaxPcieRanks")
    if config.world_size > most:
        raise ArgumentError(
            f"PCIe mode (allow_nvlink_for_normal_mode=False) connects at most {most} ranks, not "
            f"{config.world_size}; use fewer ranks, or allow NVLink"
        )
    if not config.merge_sender_receiver and config.num_sms % 2:
        raise ArgumentError(
            f"num_sms is {config.num_sms}; in PCIe mode one half of the blocks sends and the other receives: pass an "
            f"even number, {config.num_sms + 1} for example, or merge_sender_receiver=True"
        )
    packet = packet_bytes(config.row_bytes, 0, config.top_k)  # FP8 rows with their scales are shorter
    if config.bounce_bytes is None:
        rows = min(max(MESSAGE_BYTES // packet, 1), MAX_ROWS_PER_MESSAGE)
        slots = MESSAGES_PER_RING
    elif config.bounce_bytes < packet:
        raise ArgumentError(
            f"bounce_bytes is {config.bounce_bytes}, too small for one token: a row of {config.row_bytes} bytes with "
            f"ids and weights of {config.top_k} experts takes {packet} bytes; pass at least {packet}, or None for the "
            f"default of {MESSAGES_PER_RING} messages of about {MESSAGE_BYTES} bytes"
        )
    else:
        room = config.bounce_bytes // packet
        slots = min(room, MESSAGES_PER_RING)
        rows = room // slots
    channels = config.num_sms if config.merge_sender_receiver else config.num_sms // 2
    if rows * packet >= 2**31:
        raise ArgumentError(f"bounce_bytes is {config.bounce_bytes}: a message must be below 2**31 bytes; pass less")
    return PcieSizes(channels, slots, rows * packet)


def check_resident(num_sms: int, gpu_sms: int) -> None:
    """Raise ArgumentError for more blocks than a GPU has SMs: PCIe mode's blocks wait for each other."""
    if num_sms > gpu_sms:
        raise ArgumentError(
            f"num_sms is {num_sms}, but this GPU has {gpu_sms} SMs; in PCIe mode all blocks must run at once: pass at "
            f"most {gpu_sms - gpu_sms % 2}"
        )


def make_pcie_map(config: BufferConfig) -> tuple[dict[str, Part], int]:
    """The parts by name and the bytes of all. Parts before ``inbox`` must be zero at the start. Raises
    ArgumentError."""
    sizes = make_pcie_sizes(config)
    ring_flags, bounce_buffers = ring_parts(sizes, config.world_size - 1)
    signals, boxes = exchange_parts(config, sizes.channels)
    return lay_out([*ring_flags, signals, *boxes, *bounce_buffers])


def ring_parts(sizes: PcieSizes, peers: int) -> tuple[list[Shape], list[Shape]]:
    """The parts of the rings (<ep/ring.cuh>) to ``peers`` other ranks: those that must be zero at the start, and bounce
    buffers."""
    rings = (sizes.channels, peers)
    buffers = (*rings, sizes.num_slots, sizes.slot_bytes // 8)
    return (
        [("arrived", (*rings, sizes.num_slots), "u8"), ("credits", rings, "u8")],
        [("staging", buffers, "u8"), ("slots", buffers, "u8")],
    )


def exchange_parts(config: BufferConfig, channels: int) -> tuple[Shape, list[Shape]]:
    """The parts of an exchange of counts (exchange_counts.cu): those that must be zero at the start, and inbox and
    outbox."""
    ranks, tag = config.world_size, header_struct("moe/pcie/exchange_counts.cu", "Message").size
    message = round_up(tag + 4 * (channels + 1 + config.experts_per_rank), VECTOR_BYTES)
    boxes: list[Shape] = [("inbox", (2, ranks, message), "u1"), ("outbox", (2, ranks, message), "u1")]
    return ("signals", (2, ranks), "u8"), boxes


def allocate(rank: Rank, config: BufferConfig, sizes: PcieSizes) -> ModeMemory:
    """Collective. Raises OutOfSymmetricMemory."""
    who = (
        f"a Buffer in PCIe mode for {config.world_size} ranks, {sizes.channels} channels and rings of "
        f"{sizes.ring_bytes} bytes"
    )
    return ModeMemory(rank, make_pcie_map(config), "inbox", who=who, lower="bounce_bytes or num_sms")


def round_up(value: int, step: int) -> int:
    """``value``, rounded up to a multiple of ``step``."""
    return -(-value // step) * step
