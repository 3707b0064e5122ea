"""Where tokens go, in DeepEP's terms: counts for ranks and experts, and a mask."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ep_lib.jit.kernel import library_kernel
from ep_lib.jit.structs import header_constant, header_struct
from ep_lib.runtime.rank import Rank

_THREADS, _EMULATED_THREADS = 512, 64


class Layout(NamedTuple):
    """Of T tokens."""

    num_tokens_per_rank: Tensor  # int32 [ranks]
    num_tokens_per_expert: Tensor  # int32 [experts]: choices of each
    is_token_in_rank: Tensor  # bool [T, ranks]


def layout_by_torch(topk_idx: Tensor, num_experts: int, ranks: int) -> Layout:
    """Before there is a rank to launch a kernel on."""
    sent = ranks_of(topk_idx, num_experts, ranks)
    chosen = torch.where(topk_idx < 0, num_experts, topk_idx).long().flatten()
    choices = torch.zeros(num_experts + 1, dtype=torch.int32, device=topk_idx.device)
    choices.scatter_add_(0, chosen, torch.ones_like(chosen, dtype=torch.int32))
    return Layout(sent.sum(0, dtype=torch.int32), choices[:num_experts], sent)


def layout_by_kernel(topk_idx: Tensor, num_experts: int, rank: Rank) -> Layout:
    """One launch of <moe/common/layout.cuh> in the current stream, and two of torch."""
    ranks, (num_tokens, top_k) = rank.world_size, topk_idx.shape
    ids = topk_idx.to(torch.int32).contiguous()
    send_index, per_rank, choices = (
        torch.empty(shape, dtype=torch.int32, device=ids.device) for shape in ((num_tokens, ranks), ranks, num_experts)
    )
    args = header_struct("moe/common/layout.cuh", "LayoutArgs").pack(
        num_tokens=num_tokens, top_k=top_k, experts_per_rank=num_experts // ranks
    )
    library_kernel("moe/common/layout.cu", "ep_get_dispatch_layout").launch(
        rank,
        ranks,
        _THREADS if rank.backend == "cuda" else _EMULATED_THREADS,
        args,
        ids,
        send_index,
        per_rank,
        choices,
        shared_bytes=4 * (header_constant("moe/common/layout.cuh", "kMaxWarps") + num_experts // ranks),
    )
    if rank.backend == "emulator":
        rank.synchronize()
    return Layout(per_rank, choices, send_index >= 0)


def ranks_of(topk_idx: Tensor, num_experts: int, ranks: int) -> Tensor:
    """bool ``[T, ranks]``: whether a token goes to a rank."""
    home = torch.where(topk_idx < 0, ranks, topk_idx // (num_experts // ranks)).long()
    sent = torch.zeros(len(topk_idx), ranks + 1, dtype=torch.bool, device=topk_idx.device)
    return sent.scatter_(1, home, True)[:, :ranks].contiguous()
