"""Handles: sequences with DeepEP's fields, which are worked out when somebody looks at them.

They are no tuples, so that what takes containers apart and builds them again (pytrees, checkpointing) passes them on
whole: a handle knows which engine it belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, overload

import torch
from torch import Tensor

from ep_lib.compat.deep_ep.engines import Engine
from ep_lib.errors import HandleError
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
    """Of a normal dispatch: ``(rank_prefix_matrix, channel_prefix_matrix, recv_channel_prefix_matrix, recv_src_idx,
    is_token_in_rank, send_head)``.

    There are no channels here, so the fields are those of one channel. A rank knows how many rows every rank sends to
    it, not what others send to each other: of ``rank_prefix_matrix`` its own column is filled, which is the one that
    DeepEP's combine reads, and the others are -1.
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
    """Of a low-latency dispatch: ``(packed_recv_src_info, packed_recv_layout_range, num_max_dispatch_tokens_per_rank,
    hidden, num_experts)``.

    ``packed_recv_src_info`` int32 ``[experts, capacity]``: each row's index on its source rank, -1 behind them.
    ``packed_recv_layout_range`` int64 ``[experts, ranks]``: where the rows of each source begin (high half) and how
    many they are (low half).
    """

    num_fields = 5

    def __init__(self, engine: Engine, inner: LowLatencyHandle) -> None:
        super().__init__(engine)
        self.inner = inner

    @cached_property
    def fields(self) -> tuple[Any, ...]:
        config, shape = self.engine.buffer.config, self.engine.shape
        index: Tensor = self.inner._arrivals.recv_index  # [ranks, tokens, top_k]: expert * capacity + row, -1
        counts: Tensor = self.inner._arrivals.token_counts  # [ranks]: tokens that index knows
        ranks, tokens, _ = index.shape
        rows = config.experts_per_rank * ranks * tokens
        token = torch.arange(tokens, device=index.device)
        here = (index >= 0) & (token.view(1, -1, 1) < counts.view(-1, 1, 1))
        place = torch.where(here, index, rows).long().flatten()  # what is not here goes to a place behind all rows
        number = torch.arange(ranks * tokens, device=index.device).view(ranks, tokens, 1).expand_as(index).flatten()
        came = torch.full((rows + 1,), -1, dtype=torch.int64, device=index.device).scatter_(0, place, number)
        came = came[:rows].view(config.experts_per_rank, -1)
        source = torch.where(came < 0, -1, came % tokens).to(torch.int32)
        many = (came.unsqueeze(2) // tokens == torch.arange(ranks, device=index.device)).sum(1)
        begin = many.cumsum(1) - many
        return source, begin << 32 | many, shape.low_latency_tokens, shape.hidden, shape.num_experts


def require_handle(handle: Any, cls: type[Any], operation: str) -> None:
    """Raises HandleError unless it is one of ours."""
    if not isinstance(handle, cls):
        raise HandleError(
            f"handle is a {type(handle).__name__}; it must be the very object that {operation} returned (not a tuple "
            "that was made of it)"
        )
