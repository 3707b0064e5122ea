"""The layout of tokens in DeepEP's terms: counts for ranks and experts, and a mask."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ep_lib.errors import ArgumentError
from ep_lib.jit.kernel import library_kernel
from ep_lib.jit.operation import Launch, Made, Operation, struct
from ep_lib.memory.arrays import describe
from ep_lib.moe.config import INT32
from ep_lib.runtime.rank import Rank

_THREADS, _EMULATED_THREADS = 512, 64


class Layout(NamedTuple):
    """The layout of T tokens."""

    num_tokens_per_rank: Tensor  # int32 [ranks]
    num_tokens_per_expert: Tensor  # int32 [experts]: choices of each
    is_token_in_rank: Tensor  # bool [T, ranks]


def layout_by_torch(topk_idx: Tensor, num_experts: int, ranks: int) -> Layout:
    """The layout by torch, before there is a rank to launch a kernel on. Invalid ids are not counted."""
    sent = ranks_of(topk_idx, num_experts, ranks)
    known = topk_idx.clamp(-1, num_experts)
    chosen = torch.where(known < 0, num_experts, known).long().flatten()
    choices = torch.zeros(num_experts + 1, dtype=torch.int32, device=topk_idx.device)
    choices.scatter_add_(0, chosen, torch.ones_like(chosen, dtype=torch.int32))
    return Layout(sent.sum(0, dtype=torch.int32), choices[:num_experts], sent)


class CountingKernel:
    """The same in one launch on a rank."""

    def __init__(self, rank: Rank) -> None:
        self._rank, self._streams = rank, rank.streams.operations()
        self._operations: dict[tuple[str, int], Operation] = {}

    def __call__(self, topk_idx: Tensor, num_experts: int) -> Layout:
        ids = describe(topk_idx.contiguous())
        key = "int" if ids.dtype == INT32 else "long long", num_experts
        operation = self._operations.get(key)
        if operation is None:
            operation = self._operations[key] = self._declare(*key)
        with self._streams.begin("torch", False):
            counted = operation.run(ids, *ids.shape)
        if self._rank._backend.host_waits:
            self._rank.synchronize()
        return Layout(*counted)

    def _declare(self, index: str, num_experts: int) -> Operation:
        ranks = self._rank.world_size
        each = num_experts // ranks
        file = "compat/deep_ep/layout.cu"
        args = struct(file, "CountArgs", num_tokens="tokens", top_k="top_k", experts_per_rank=each)
        made = [
            Made("per_rank", "torch", (ranks,), INT32),
            Made("choices", "torch", (num_experts,), INT32),
            Made("sent", "torch", ("tokens", ranks), np.dtype(bool)),
        ]
        launch = Launch(
            library_kernel(file, f"ep::deep_ep::count_choices<{index}>"),
            ranks,
            _EMULATED_THREADS if self._rank._backend.costly_threads else _THREADS,
            (args, "ids", "sent", "per_rank", "choices"),
            4 * each,
        )
        return Operation(self._rank, ("ids", "tokens", "top_k"), [launch], made)


def ranks_of(topk_idx: Tensor, num_experts: int, ranks: int) -> Tensor:
    """bool ``[T, ranks]``: whether a token goes to a rank."""
    known = topk_idx.clamp(-1, num_experts)  # num_experts // (num_experts // ranks) is the column that is cut off
    home = torch.where(known < 0, ranks, known // (num_experts // ranks)).long()
    sent = torch.zeros(len(topk_idx), ranks + 1, dtype=torch.bool, device=topk_idx.device)
    return sent.scatter_(1, home, True)[:, :ranks].contiguous()


def choices_sent(topk_idx: Tensor, sent: Tensor, num_experts: int) -> Tensor:
    """``topk_idx`` without the choices on ranks where ``sent``, bool ``[T, ranks]``, does not send the token: -1 in
    their place. Invalid ids stay, for the dispatch to refuse. Does not wait for the GPU."""
    known = (topk_idx >= 0) & (topk_idx < num_experts)
    home = torch.where(known, topk_idx // (num_experts // sent.shape[1]), 0).long()
    kept: Tensor = torch.where(known & ~sent.gather(1, home), -1, topk_idx)
    return kept


def refuse_needless(topk_idx: Tensor, sent: Tensor, num_experts: int) -> None:
    """Raises ArgumentError if ``sent`` sends a token to a rank without one of its choices. Waits for the GPU."""
    needless = sent & ~ranks_of(topk_idx, num_experts, sent.shape[1])
    if bool(needless.any()):
        token, rank = needless.nonzero()[0].tolist()
        raise ArgumentError(
            f"is_token_in_rank[{token}, {rank}] is True, and topk_idx[{token}] is {topk_idx[token].tolist()}: none of "
            f"these experts is on rank {rank}. Pass the mask of get_dispatch_layout, or one with fewer True; or leave "
            "topk_idx out, and rows go where the mask says"
        )
