"""Where tokens go, in DeepEP's terms: counts for ranks and experts, and a mask."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ep_lib.errors import ArgumentError
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
    """Before there is a rank to launch a kernel on. Ids that are no expert's count nowhere."""
    sent = ranks_of(topk_idx, num_experts, ranks)
    known = topk_idx.clamp(-1, num_experts)
    chosen = torch.where(known < 0, num_experts, known).long().flatten()
    choices = torch.zeros(num_experts + 1, dtype=torch.int32, device=topk_idx.device)
    choices.scatter_add_(0, chosen, torch.ones_like(chosen, dtype=torch.int32))
    return Layout(sent.sum(0, dtype=torch.int32), choices[:num_experts], sent)


def layout_by_kernel(topk_idx: Tensor, num_experts: int, rank: Rank) -> Layout:
    """One launch of <moe/common/layout.cuh> in the current stream, and three of torch. Ids that are no expert's count
    nowhere."""
    ranks, (num_tokens, top_k) = rank.world_size, topk_idx.shape
    ids = topk_idx.clamp(-1, num_experts).to(torch.int32).contiguous()  # int64 2**32 + 1 is not expert 1
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
    known = topk_idx.clamp(-1, num_experts)  # num_experts // (num_experts // ranks) is the column that is cut off
    home = torch.where(known < 0, ranks, known // (num_experts // ranks)).long()
    sent = torch.zeros(len(topk_idx), ranks + 1, dtype=torch.bool, device=topk_idx.device)
    return sent.scatter_(1, home, True)[:, :ranks].contiguous()


def choices_sent(topk_idx: Tensor, sent: Tensor, num_experts: int) -> Tensor:
    """``topk_idx`` without the choices on ranks where ``sent``, bool ``[T, ranks]``, does not send the token: -1 in
    their place. Ids that are no expert's stay, for the dispatch to refuse. Waits for no GPU."""
    known = (topk_idx >= 0) & (topk_idx < num_experts)
    home = torch.where(known, topk_idx // (num_experts // sent.shape[1]), 0).long()
    kept: Tensor = torch.where(known & ~sent.gather(1, home), -1, topk_idx)
    return kept


def refuse_needless(topk_idx: Tensor, sent: Tensor, num_experts: int) -> None:
    """Raises ArgumentError if ``sent`` sends a token to a rank where none of its choices is. Waits for a GPU."""
    needless = sent & ~ranks_of(topk_idx, num_experts, sent.shape[1])
    if bool(needless.any()):
        token, rank = needless.nonzero()[0].tolist()
        raise ArgumentError(
            f"is_token_in_rank[{token}, {rank}] is True, and topk_idx[{token}] is {topk_idx[token].tolist()}: none of "
            f"these experts is on rank {rank}. Pass the mask of get_dispatch_layout, or one with fewer True; or leave "
            "topk_idx out, and rows go where the mask says"
        )
