"""The configuration of a dispatch-combine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ep_lib.errors import ArgumentError
from ep_lib.jit.device_state import MAX_RANKS
from ep_lib.moe.config import MAX_EXPERTS_PER_RANK, VECTOR_BYTES, most_sms, parse_dtype
from ep_lib.moe.pcie.memory import packet_bytes
from ep_lib.require import at_least_one, whole_number

# Default number of a kernel's blocks: each costs the emulator time.
_EMULATED_SMS = 4


@dataclass(frozen=True)
class Config:
    """The numbers of a dispatch-combine, checked at construction; equal on all ranks except ``rank``.

    ``world_size``: the number of ranks; ``rank``: this one's number, from 0. ``hidden_dim``: elements of a token.
    ``max_tokens_per_rank``: the most tokens that a rank sends at once. ``num_experts_per_rank``: experts on each rank;
    expert e is on rank ``e // num_experts_per_rank``. ``num_experts_per_token``: experts that each token chooses.
    ``gpu_per_node``: ranks of a host, which on the emulator reach each other by P2P (on GPUs the reach is detected).

    Not in the source document: ``dtype`` of the tokens, "bfloat16" or "float32"; ``window_bytes``: flow control for all
    pairs of ranks, the most bytes in flight from one rank to another (None: if all ranks reach each other, tokens are
    stored directly to their places, without flow control; else bounce buffers of the default size); ``num_sms``: blocks
    of a kernel, an even number (None: 24 on GPUs, or all SMs that a rank has if there are fewer, and 4 on the
    emulator).

    Raises ArgumentError.
    """

    world_size: int
    rank: int
    hidden_dim: int = 4096
    max_tokens_per_rank: int = 128
    num_experts_per_rank: int = 8
    num_experts_per_token: int = 2
    gpu_per_node: int = 8
    dtype: Any = "bfloat16"
    window_bytes: int | None = None
    num_sms: int | None = None

    def __post_init__(self) -> None:
        world_size = whole_number("world_size", self.world_size, 1, MAX_RANKS)
        checked: dict[str, Any] = {
            "world_size": world_size,
            "rank": whole_number("rank", self.rank, 0, world_size - 1),
            "hidden_dim": at_least_one("hidden_dim", self.hidden_dim),
            "max_tokens_per_rank": at_least_one("max_tokens_per_rank", self.max_tokens_per_rank),
            "num_experts_per_rank": whole_number(
                "num_experts_per_rank", self.num_experts_per_rank, 1, MAX_EXPERTS_PER_RANK
            ),
            "num_experts_per_token": at_least_one("num_experts_per_token", self.num_experts_per_token),
            "gpu_per_node": at_least_one("gpu_per_node", self.gpu_per_node),
            "dtype": parse_dtype(self.dtype),
        }
        for name in ("window_bytes", "num_sms"):
            if getattr(self, name) is not None:
                checked[name] = at_least_one(name, getattr(self, name))
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        self._check_together()

    def _check_together(self) -> None:
        if self.num_experts_per_token > self.num_experts:
            raise ArgumentError(
                f"num_experts_per_token is {self.num_experts_per_token}, and {self.world_size} ranks with "
                f"{self.num_experts_per_rank} experts each have {self.num_experts}: lower it to at most that"
            )
        if self.row_bytes % VECTOR_BYTES:
            step = VECTOR_BYTES // self.dtype.itemsize
            raise ArgumentError(
                f"hidden_dim is {self.hidden_dim}: a token of {self.row_bytes} bytes ({self.dtype.name}) is no "
                f"multiple of {VECTOR_BYTES} bytes; take a multiple of {step}, for example "
                f"{-(-self.hidden_dim // step) * step}"
            )
        if self.world_size > self.gpu_per_node and self.world_size % self.gpu_per_node:
            raise ArgumentError(
                f"world_size is {self.world_size} and gpu_per_node {self.gpu_per_node}: the last node would not be "
                f"full; take a multiple of {self.gpu_per_node} ranks, or another gpu_per_node"
            )
        if self.num_sms is not None and self.num_sms % 2:
            raise ArgumentError(
                f"num_sms is {self.num_sms}; one half of the blocks sends, the other receives: take an even number, "
                f"for example {self.num_sms + 1}"
            )

    @property
    def num_experts(self) -> int:
        """Experts of all ranks."""
        return self.world_size * self.num_experts_per_rank

    @property
    def row_bytes(self) -> int:
        """Bytes of one token."""
        return self.hidden_dim * int(np.dtype(self.dtype).itemsize)

    def shared(self) -> dict[str, Any]:
        """The fields that must be equal on all ranks."""
        return {name: value for name, value in asdict(self).items() if name != "rank"}

    def buffer_arguments(self, backend: str, *, direct: bool, sm_count: int | None = None) -> dict[str, Any]:
        """The arguments of the :class:`ep_lib.Buffer` that does the work: ``direct`` stores, or rings of bounce buffers
        with credits. ``sm_count``: the rank's SMs, if known. Raises ArgumentError if the window is too small for a
        token."""
        num_sms = self.num_sms
        if num_sms is None:
            num_sms = _EMULATED_SMS if backend == "emulator" else most_sms(sm_count)
        arguments: dict[str, Any] = {
            "num_experts": self.num_experts,
            "top_k": self.num_experts_per_token,
            "hidden": self.hidden_dim,
            "max_tokens": self.max_tokens_per_rank,
            "dtype": self.dtype,
            "num_sms": num_sms,
        }
        if direct:
            return arguments
        arguments["allow_nvlink_for_normal_mode"] = False
        if self.window_bytes is not None:
            channels = num_sms // 2  # each has a ring to each other rank
            least = channels * packet_bytes(self.row_bytes, 0, self.num_experts_per_token)
            if self.window_bytes < least:
                raise ArgumentError(
                    f"window_bytes is {self.window_bytes}; {channels} channels (num_sms={num_sms}) with one token each "
                    f"take {least} bytes: pass at least that, or fewer num_sms"
                )
            arguments["bounce_bytes"] = self.window_bytes // channels
        return arguments
