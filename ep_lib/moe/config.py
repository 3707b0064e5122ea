"""The configuration of a Buffer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ep_lib.errors import ArgumentError
from ep_lib.jit.device_state import MAX_RANKS
from ep_lib.memory.arrays import BFLOAT16
from ep_lib.require import at_least_one, brief, flag, index, refuse, whole_number

VECTOR_BYTES = 16  # kernels move rows in vectors of this size
WARP = 32  # threads
FLOAT32 = np.dtype(np.float32)
INT32 = np.dtype(np.int32)
MAX_BLOCKS = 1024
MAX_EXPERTS_PER_RANK = 8192  # the layout kernel counts them in shared memory
MAX_RECEIVE_AREAS = 1024
DEFAULT_SMS = 24  # blocks of a kernel: on H200 more of them are no faster


@dataclass(frozen=True)
class BufferConfig:
    """The arguments of a Buffer, checked. Must be equal on all ranks."""

    world_size: int
    num_experts: int
    top_k: int
    hidden: int
    max_tokens: int
    dtype: np.dtype[Any]
    num_sms: int
    allow_nvlink_for_normal_mode: bool = True
    bounce_bytes: int | None = None  # None: PCIe mode's default
    merge_sender_receiver: bool = False
    num_max_dispatch_tokens_per_rank: int = 0  # 0: no low-latency mode; see ep_lib/moe/low_latency/memory.py
    num_low_latency_sms: int | None = None  # None: all SMs
    low_latency_mask_on_timeout: bool = False
    ranks_per_node: int | None = None  # of hierarchical mode; None: another mode
    receive_areas: int = 1  # direct mode: areas in which dispatched rows may stay, plus one; 0: shares combine's area

    @property
    def is_direct(self) -> bool:
        """Whether every rank writes into every other's memory."""
        return self.allow_nvlink_for_normal_mode and self.ranks_per_node is None

    @property
    def mode_name(self) -> str:
        """The mode's name for messages, with the option that selects it."""
        if self.is_direct:
            return "direct mode"
        return (
            "PCIe mode (allow_nvlink_for_normal_mode=False)"
            if self.ranks_per_node is None
            else "hierarchical mode (hierarchical=True)"
        )

    @cached_property
    def nodes(self) -> int:
        """The number of nodes in hierarchical mode."""
        return self.world_size // (self.ranks_per_node or self.world_size)

    @cached_property
    def experts_per_rank(self) -> int:
        """Experts on each rank."""
        return self.num_experts // self.world_size

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one token."""
        return self.hidden * self.dtype.itemsize

    @cached_property
    def row_vectors(self) -> int:
        """16-byte vectors of one token."""
        return self.row_bytes // VECTOR_BYTES

    @cached_property
    def max_rows(self) -> int:
        """Rows of the receive area: all tokens of all ranks may arrive here."""
        return self.world_size * self.max_tokens


def most_sms(available: int | None) -> int:
    """The default of ``num_sms`` for a rank with ``available`` SMs (None: an emulated one); even if possible."""
    if available is None or available >= DEFAULT_SMS:
        return DEFAULT_SMS
    return max(1, available - available % 2)


def make_config(
    world_size: int,
    *,
    num_experts: int,
    top_k: int,
    hidden: int,
    max_tokens: int,
    dtype: Any,
    num_sms: int,
    allow_nvlink_for_normal_mode: bool = True,
    bounce_bytes: int | None = None,
    merge_sender_receiver: bool = False,
    num_max_dispatch_tokens_per_rank: int = 0,
    num_low_latency_sms: int | None = None,
    low_latency_mask_on_timeout: bool = False,
    hierarchical: bool = False,
    ranks_per_node: int | None = None,
    receive_areas: int = 1,
) -> BufferConfig:
    """Check the arguments of a Buffer. Raises ArgumentError. Limits of single modes are in ep_lib/moe/pcie/memory.py
    and ep_lib/moe/low_latency/memory.py. With ``hierarchical`` the ``ranks_per_node`` are known; if all ranks are one
    node, direct writes do the same."""
    config = BufferConfig(
        world_size=whole_number("world_size", world_size, 1, MAX_RANKS),
        num_experts=at_least_one("num_experts", num_experts),
        top_k=at_least_one("top_k", top_k),
        hidden=at_least_one("hidden", hidden),
        max_tokens=at_least_one("max_tokens", max_tokens),
        dtype=parse_dtype(dtype),
        num_sms=at_least_one("num_sms", num_sms),
        allow_nvlink_for_normal_mode=flag("allow_nvlink_for_normal_mode", allow_nvlink_for_normal_mode),
        bounce_bytes=None if bounce_bytes is None else at_least_one("bounce_bytes", bounce_bytes),
        merge_sender_receiver=flag("merge_sender_receiver", merge_sender_receiver),
        num_max_dispatch_tokens_per_rank=_whole("num_max_dispatch_tokens_per_rank", num_max_dispatch_tokens_per_rank),
        num_low_latency_sms=None if num_low_latency_sms is None else _whole("num_low_latency_sms", num_low_latency_sms),
        low_latency_mask_on_timeout=flag("low_latency_mask_on_timeout", low_latency_mask_on_timeout),
        ranks_per_node=_node_size(hierarchical, ranks_per_node, world_size),
        receive_areas=whole_number("receive_areas", receive_areas, 0, MAX_RECEIVE_AREAS),
    )
    if config.receive_areas != 1 and not config.is_direct:
        raise ArgumentError(f"receive_areas: {config.mode_name} has one, from which rows are copied; leave it out")
    if config.ranks_per_node is not None and not config.allow_nvlink_for_normal_mode:
        raise ArgumentError(
            "hierarchical=True hands tokens on by loads and stores inside a node, which "
            "allow_nvlink_for_normal_mode=False forbids: leave one of them out"
        )
    if config.allow_nvlink_for_normal_mode and (config.bounce_bytes is not None or config.merge_sender_receiver):
        given = "bounce_bytes" if config.bounce_bytes is not None else "merge_sender_receiver"
        raise ArgumentError(
            f"{given} is for PCIe mode: pass allow_nvlink_for_normal_mode=False with it, or leave it out"
        )
    if config.num_experts % world_size:
        below, above = config.num_experts // world_size * world_size, -(-config.num_experts // world_size) * world_size
        choices = f"{below} or {above}" if below else str(above)
        raise ArgumentError(
            f"num_experts is {config.num_experts}, which the {world_size} ranks do not divide evenly; "
            f"use {choices} experts, or another number of ranks"
        )
    if config.experts_per_rank > MAX_EXPERTS_PER_RANK:
        raise ArgumentError(
            f"num_experts is {config.num_experts}: {config.experts_per_rank} on each rank, the most is "
            f"{MAX_EXPERTS_PER_RANK}"
        )
    if config.top_k > config.num_experts:
        raise ArgumentError(f"top_k is {config.top_k}, but there are only {config.num_experts} experts (num_experts)")
    if config.row_bytes % VECTOR_BYTES:
        step = VECTOR_BYTES // config.dtype.itemsize
        raise ArgumentError(
            f"hidden is {config.hidden}: a row of {config.row_bytes} bytes ({config.dtype.name}) is not a multiple of "
            f"{VECTOR_BYTES} bytes; use a multiple of {step} elements, for example {-(-config.hidden // step) * step}"
        )
    if config.num_sms > MAX_BLOCKS:
        raise ArgumentError(f"num_sms is {config.num_sms}; it is the number of blocks of a kernel, 1 to {MAX_BLOCKS}")
    if config.max_rows * config.top_k >= 2**31:
        raise ArgumentError(
            f"world_size * max_tokens * top_k is {config.max_rows * config.top_k}; it must be below 2**31: "
            "lower max_tokens"
        )
    return config


def _node_size(hierarchical: Any, ranks_per_node: Any, world_size: int) -> int | None:
    """The ranks per node; None for a single node."""
    if not flag("hierarchical", hierarchical):
        if ranks_per_node is not None:
            raise ArgumentError(f"ranks_per_node is {brief(ranks_per_node)}, which only hierarchical=True uses")
        return None
    if ranks_per_node is None:
        raise ArgumentError("hierarchical=True needs ranks_per_node here: how many ranks share a node")
    size = whole_number("ranks_per_node", ranks_per_node, 1, world_size)
    if world_size % size:
        raise ArgumentError(f"ranks_per_node is {size}, which is no divisor of the {world_size} ranks")
    return None if size == world_size else size


def _whole(name: str, value: Any) -> int:
    """A whole number within low-latency mode's limits."""
    number = index(value)
    return refuse(name, value, "a whole number") if number is None else number


def parse_dtype(dtype: Any) -> np.dtype[Any]:
    """bfloat16 or float32, from a name, a NumPy dtype or type, or a torch dtype. Raises ArgumentError."""
    if isinstance(dtype, np.dtype):
        dtype = dtype.name
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", brief(dtype))
    name = str(name).removeprefix("torch.")
    for known in (BFLOAT16, FLOAT32):
        if name == known.name:
            return known
    raise ArgumentError(f"dtype is {brief(dtype)}; a Buffer carries 'bfloat16' or 'float32'")
