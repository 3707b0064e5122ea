"""Handles: sequences with DeepEP's fields, which are computed on access.

They are no tuples, so that code that rebuilds containers (pytrees, checkpointing) passes them on unchanged: a handle
has a reference to its engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, overload

import torch
from torch import Tensor

from ep_lib.compat.deep_ep.engines import Engine
from ep_lib.compat.deep_ep.layout import ranks_of
from ep_lib.errors import ArgumentError, HandleError
from ep_lib.memory.arrays import like
from ep_lib.moe.handle import DispatchHandle
from ep_lib.moe.low_latency.mode import LowLatencyHandle


class _Fields(Sequence[Any]):
    """Unpacks like the tuple that DeepEP returns."""

    num_fields = 6

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @cached_property
    def fields(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def __len__(self) -> int:
        return self.num_fields

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Any, ...]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self.fields[index]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.engine.buffer!r})"


class Handle(_Fields):
    """The handle of a normal dispatch: ``(rank_prefix_matrix, channel_prefix_matrix, recv_channel_prefix_matrix,
    recv_src_idx, is_token_in_rank, send_head)``.

    There are no channels here, so the fields are those of one channel. A rank knows the number of rows that each rank
    sends to it, but not the numbers between others: only its own column of ``rank_prefix_matrix`` is filled, the one
    that DeepEP's combine reads; the others are -1.
    """

    def __init__(self, engine: Engine, inner: DispatchHandle, is_token_in_rank: Tensor) -> None:
        super().__init__(engine)
        self.inner = inner
        self._is_token_in_rank = is_token_in_rank

    @cached_property
    def fields(self) -> tuple[Tensor, ...]:
        sent = self._is_token_in_rank
        rank, ranks = self.engine.buffer.rank.rank, sent.shape[1]
        prefix = torch.full((ranks, ranks), -1, dtype=torch.int32, device=sent.device)
        received = self.inner.recv_tokens_per_rank
        came = received if isinstance(received, Tensor) else like("torch", received)
        prefix[:, rank] = came.to(sent.device).cumsum(0)
        place = sent.cumsum(0) - 1
        return (
            prefix,
            sent.sum(0, dtype=torch.int32).unsqueeze(1),
            torch.zeros(ranks, 1, dtype=torch.int32, device=sent.device),
            self.inner._recv_src_token,
            sent,
            torch.where(sent, place, -1).to(torch.int32),
        )


class LowLatencyFields(_Fields):
    """The fields of a low-latency dispatch's handle: ``(packed_recv_src_info, packed_recv_layout_range,
    num_max_dispatch_tokens_per_rank, hidden, num_experts)``.

    ``packed_recv_src_info`` int32 ``[experts, capacity]``: each row's index on its source rank, -1 behind them.
    ``packed_recv_layout_range`` int64 ``[experts, ranks]``: the first row of each source (high half) and the number of
    its rows (low half).
    """

    num_fields = 5

    def __init__(self, engine: Engine, inner: LowLatencyHandle) -> None:
        super().__init__(engine)
        self.inner = inner

    @cached_property
    def fields(self) -> tuple[Any, ...]:
        config, shape = self.engine.buffer.config, self.engine.shape
        index: Tensor = self.inner._arrivals.recv_index  # [ranks, tokens, top_k]: expert * capacity + row, -1
        counts: Tensor = self.inner._arrivals.token_counts  # [ranks]: tokens covered by index
        ranks, tokens, _ = index.shape
        rows = config.experts_per_rank * ranks * tokens
        token = torch.arange(tokens, device=index.device)
        here = (index >= 0) & (token.view(1, -1, 1) < counts.view(-1, 1, 1))
        place = torch.where(here, index, rows).long().flatten()  # missing choices go to a place behind all rows
        number = torch.arange(ranks * tokens, device=index.device).view(ranks, tokens, 1).expand_as(index).flatten()
        came = torch.full((rows + 1,), -1, dtype=torch.int64, device=index.device).scatter_(0, place, number)
        came = came[:rows].view(config.experts_per_rank, -1)
        source = torch.where(came < 0, -1, came % tokens).to(torch.int32)
        many = (came.unsqueeze(2) // tokens == torch.arange(ranks, device=index.device)).sum(1)
        begin = many.cumsum(1) - many
        return source, begin << 32 | many, shape.low_latency_tokens, shape.hidden, shape.num_experts


class EPHandle:
    """The handle of a V2 dispatch: DeepEP's attributes, with tensors on the dispatch's device.

    ``psum_num_recv_tokens_per_scaleup_rank`` int32 ``[ranks of a node]``: the prefix sum of received rows by rank.
    ``psum_num_recv_tokens_per_expert`` int32 ``[experts of this rank]``: the end of each expert's rows; without
    do_expand including the padding to expert_alignment, with it without the padding.
    ``num_unaligned_recv_tokens_per_expert``: the number of each expert's rows; None without do_expand.
    ``num_recv_tokens_per_expert_list``: padded to expert_alignment; empty with ``do_cpu_sync=False``, where
    ``num_recv_tokens`` and ``num_expanded_tokens`` are the largest possible numbers.
    """

    token_metadata_at_forward = channel_linked_list = None  # of DeepEP's hybrid mode

    def __init__(
        self,
        engine: Engine,
        inner: DispatchHandle,
        *,
        do_expand: bool,
        expert_alignment: int,
        num_max_tokens_per_rank: int,
        topk_idx: Tensor,
        num_recv_tokens_per_expert_list: list[int],
        nodes: int,
    ) -> None:
        config, self.engine, self.inner = engine.buffer.config, engine, inner
        self.do_expand, self.expert_alignment = do_expand, expert_alignment
        self.num_experts, self.num_sms = config.num_experts, engine.shape.num_sms
        self.num_max_tokens_per_rank, self.topk_idx = num_max_tokens_per_rank, topk_idx
        self.num_recv_tokens_per_expert_list = num_recv_tokens_per_expert_list
        self.num_recv_tokens = inner.num_recv_tokens
        rows, alignment = inner._by_expert, expert_alignment
        self.num_expanded_tokens = sum(num_recv_tokens_per_expert_list) if rows is None else len(rows.row)
        # Computed now instead of on access, so that replays of a graph compute them again.
        here: Tensor = inner._recv_topk_idx
        chosen = torch.where(here < 0, config.experts_per_rank, here).long().flatten()
        counts = torch.zeros(config.experts_per_rank + 1, dtype=torch.int32, device=here.device)
        counts = counts.scatter_add_(0, chosen, torch.ones_like(chosen, dtype=torch.int32))[:-1]
        padded = -(-counts // alignment) * alignment
        ends = padded.cumsum(0, dtype=torch.int32)
        self.counts = counts
        self.num_unaligned_recv_tokens_per_expert = counts if do_expand else None
        self.psum_num_recv_tokens_per_expert = ends - padded + counts if do_expand else ends
        received = inner.recv_tokens_per_rank
        came = (received if isinstance(received, Tensor) else like("torch", received)).to(here.device)
        self.psum_num_recv_tokens_per_scaleup_rank = came.view(nodes, -1).sum(0).cumsum(0, dtype=torch.int32)
        self._recv_src_metadata: Tensor | None = None

    @property
    def recv_src_metadata(self) -> Tensor:
        """int32 ``[N, 2 + k]``: the row's token as ``source rank * num_max_tokens_per_rank + token``, the row, and with
        do_expand the row of each choice; -1 if there is none."""
        if self._recv_src_metadata is not None:
            return self._recv_src_metadata
        inner, here = self.inner, self.inner._recv_topk_idx
        token = torch.where(
            inner._recv_src_token < 0, -1, inner._recv_src_rank * self.num_max_tokens_per_rank + inner._recv_src_token
        )
        row = torch.arange(len(here), dtype=torch.int32, device=here.device)
        slots = torch.full_like(here, -1, dtype=torch.int32)
        if inner._by_expert is not None:
            slots = torch.where(here < 0, -1, inner._by_expert.slot)
        return torch.cat([token.unsqueeze(1), row.unsqueeze(1), slots], dim=1).to(torch.int32)

    @recv_src_metadata.setter
    def recv_src_metadata(self, value: Tensor) -> None:
        self._recv_src_metadata = value

    @property
    def dst_buffer_slot_idx(self) -> Tensor:
        """int32 ``[T, k]``: the index of this rank's token among its rows to the choice's rank; -1 for no choice."""
        ids, ranks = self.topk_idx, self.engine.buffer.config.world_size
        place = ranks_of(ids, self.num_experts, ranks).cumsum(0) - 1
        home = (ids.clamp(min=0) // (self.num_experts // ranks)).long()
        return torch.where(ids < 0, -1, place.gather(1, home)).to(torch.int32)

    @property
    def on_device(self) -> tuple[Any, ...]:
        """All tensors of its dispatch."""
        inner, rows = self.inner, self.inner._by_expert
        made = (self.topk_idx, self.counts, self.psum_num_recv_tokens_per_expert)
        grouped = () if rows is None else (rows.offsets, rows.row, rows.slot)
        routing = (inner._recv_topk_idx, inner._recv_src_rank, inner._recv_src_token)
        return (*made, self.psum_num_recv_tokens_per_scaleup_rank, *grouped, *routing)

    def by_row(self, weights: Tensor) -> Tensor:
        """float32 ``[N, k]``: the weights of each received row's choices, 0 elsewhere, from ``[M]`` or ``[N, k]``."""
        rows, here = self.inner._by_expert, self.inner._recv_topk_idx
        if rows is None:
            return weights
        return torch.where(here < 0, 0.0, weights[torch.where(here < 0, 0, rows.slot).long()])

    def require_same(
        self, num_experts: int | None, num_max_tokens_per_rank: int | None, expert_alignment: int | None
    ) -> None:
        """Raises ArgumentError if a given value differs from the handle's."""
        asked = {"num_experts": num_experts, "num_max_tokens_per_rank": num_max_tokens_per_rank}
        for name, value in (asked | {"expert_alignment": expert_alignment}).items():
            if value is not None and value != getattr(self, name):
                raise ArgumentError(f"{name} is {value}, and the handle's is {getattr(self, name)}: leave it out")


def require_handle(handle: Any, cls: type[Any], operation: str) -> None:
    """Raises HandleError unless it is a handle of this module."""
    if not isinstance(handle, cls):
        raise HandleError(
            f"handle is a {type(handle).__name__}; it must be the very object that {operation} returned (not a tuple "
            "that was made of it)"
        )
