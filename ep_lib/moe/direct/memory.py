"""The symmetric memory of direct writes."""

from __future__ import annotations

from dataclasses import asdict

from ep_lib.jit.structs import header_constant, header_struct
from ep_lib.moe.config import BufferConfig
from ep_lib.moe.formats import FP8_GROUP
from ep_lib.moe.memory import ModeMemory, Part, lay_out
from ep_lib.moe.regroup import MEETINGS
from ep_lib.runtime.rank import Rank


def make_direct_map(config: BufferConfig) -> tuple[dict[str, Part], int]:
    """Each part of the symmetric memory by name, and the bytes of all. The parts before ``recv_topk`` must be zero at
    the start."""
    ranks, rows, buffers = config.world_size, config.max_rows, 2
    received = max(1, config.receive_areas) * rows
    kinds = header_constant("moe/common/notify.cuh", "kNumSignals")
    hello = header_struct("moe/common/regroup.cu", "Hello").size // 8
    shapes: list[tuple[str, tuple[int, ...], str]] = [
        ("hellos", (MEETINGS, ranks, hello), "u8"),
        ("state", (header_struct("moe/common/epoch.cuh", "WorkspaceState").size // 8,), "u8"),
        ("flags", (kinds, ranks), "u8"),
        ("tags", (buffers, kinds, ranks), "u8"),
        ("counts", (ranks, ranks + 1), "i4"),
        ("expert_counts", (ranks, config.experts_per_rank), "i4"),
        ("arrived", (ranks, config.max_tokens), "u8"),
        ("recv_topk", (rows, config.top_k), "i4"),
        ("recv_weights", (rows, config.top_k), "f4"),
        ("recv_source", (rows, 2), "i4"),
        ("recv_scales", (received, row_scales(config)), "f4"),
        ("returned", (rows, config.row_bytes // 8), "u8"),
    ]
    if config.receive_areas:
        shapes.append(("rows", (received, config.row_bytes // 8), "u8"))
    parts, nbytes = lay_out(shapes)
    if not config.receive_areas:  # dispatch and combine take turns (<moe/common/epoch.cuh>)
        parts["rows"] = parts["returned"]
    return parts, nbytes


def row_scales(config: BufferConfig) -> int:
    """Scales of an FP8 row; none where hidden is not a multiple of a scale's group."""
    return 0 if config.hidden % FP8_GROUP else config.hidden // FP8_GROUP


def allocate(rank: Rank, config: BufferConfig) -> ModeMemory:
    """Collective. Raises OutOfSymmetricMemory, which names a max_tokens that would fit."""

    def lower(available: int) -> str:
        fits = _tokens_that_fit(config, available)
        return f"max_tokens (max_tokens={fits} would fit)" if fits else "max_tokens (not even max_tokens=1 would fit)"

    who = (
        f"a Buffer for {config.world_size} ranks x max_tokens={config.max_tokens} x hidden={config.hidden} "
        f"{config.dtype.name}"
    )
    return ModeMemory(rank, make_direct_map(config), "recv_topk", who=who, lower=lower)


def _tokens_that_fit(config: BufferConfig, available: int) -> int:
    """The largest max_tokens with which the Buffer takes at most ``available`` bytes; 0 if there is none."""
    low, high = 0, config.max_tokens
    while low < high:
        middle = (low + high + 1) // 2
        smaller = BufferConfig(**{**asdict(config), "max_tokens": middle})
        fits = make_direct_map(smaller)[1] <= available
        low, high = (middle, high) if fits else (low, middle - 1)
    return low
