"""The router of a Mixture-of-Experts layer in torch: where tokens go, how busy experts are, and evening that out.

Routing is that of Mixtral and Switch Transformers (arXiv 2401.04088, arXiv 2101.03961): softmax over the ``top_k``
largest logits, and an auxiliary loss that keeps the experts equally busy. No function
changes the tensors that it is given.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from ep_lib.errors import ArgumentError
from ep_lib.moe.autograd import require_tensor
from ep_lib.require import instance, refuse, whole_number


class Routing(NamedTuple):
    """Where each token goes. ``topk_idx`` int64 and ``topk_weights`` float32, both ``[tokens, top_k]``; the weights of
    a token sum to 1. ``probabilities`` float32 ``[tokens, num_experts]``: softmax over all experts."""

    topk_idx: Tensor
    topk_weights: Tensor
    probabilities: Tensor


class Router(Protocol):
    """The functions of a router that a model needs: this module is a router, and a learner's file is another."""

    def route(self, logits: Tensor, top_k: int) -> Routing: ...
    def load_balancing_loss(self, routing: Routing) -> Tensor: ...


def route(logits: Tensor, top_k: int) -> Routing:
    """Choose the ``top_k`` experts with the largest logits (``[tokens, num_experts]``) for every token."""
    if not torch.compiler.is_compiling():
        require_tensor("logits", logits)
        top_k = whole_number("top_k", top_k, 1, 2**31 - 1)
    num_experts = logits.shape[-1] if logits.dim() else 0
    if logits.dim() != 2 or logits.is_complex() or not 1 <= top_k <= num_experts:
        raise ArgumentError(
            f"routing needs logits [tokens, num_experts] and 1 <= top_k <= num_experts; got logits "
            f"{list(logits.shape)} and top_k {top_k}"
        )
    logits = logits.float()
    chosen, topk_idx = logits.topk(top_k, dim=-1)
    return Routing(topk_idx, chosen.softmax(dim=-1), logits.softmax(dim=-1))


def load_per_expert(topk_idx: Tensor, num_experts: int) -> Tensor:
    """How many (token, choice) pairs went to each expert: int64 ``[num_experts]``; -1 counts for none."""
    if not torch.compiler.is_compiling():
        require_ids(topk_idx)
        num_experts = whole_number("num_experts", num_experts, 1, 1 << 24)
    return torch.bincount(topk_idx[topk_idx >= 0].flatten(), minlength=num_experts)


def load_balancing_loss(routing: Routing) -> Tensor:
    """``num_experts * sum_e share_e * mean_probability_e`` (Switch Transformers, equation 4): 1 when perfectly even."""
    instance("routing", routing, Routing, "what route() returned")
    num_experts = routing.probabilities.shape[1]
    load = load_per_expert(routing.topk_idx, num_experts)
    share = load / load.sum().clamp(min=1)
    return num_experts * (share * routing.probabilities.mean(dim=0)).sum()


def limit_load(routing: Routing, capacity: int) -> Routing:
    """The same routing with at most ``capacity`` choices for each expert, those of the first tokens.

    Of a token, choices in the order of k. Those that an expert has no room for become -1 with weight 0; the other
    weights of the token sum to 1 again, or are all 0 if it has none left. Gradients go through weights and
    probabilities.
    """
    capacity = whole_number("capacity", capacity, 0, 2**31 - 1)
    chosen = routing.topk_idx.flatten()
    each = functional.one_hot(chosen.clamp(min=0), routing.probabilities.shape[1]) * (chosen >= 0).unsqueeze(1)
    number = (each.cumsum(dim=0) * each).sum(dim=1)  # 1 for the first choice of an expert, 2 for the second, ...
    stays = ((number > 0) & (number <= capacity)).view_as(routing.topk_idx)
    weights = routing.topk_weights * stays
    total = weights.sum(dim=1, keepdim=True)
    weights = torch.where(total > 0, weights / total.clamp(min=torch.finfo(weights.dtype).tiny), 0.0)
    return Routing(routing.topk_idx.masked_fill(~stays, -1), weights, routing.probabilities)


def require_ids(topk_idx: Any) -> None:
    """Raises ArgumentError unless it is a tensor of whole numbers."""
    require_tensor("topk_idx", topk_idx)
    if topk_idx.is_floating_point() or topk_idx.is_complex() or topk_idx.dtype == torch.bool:
        refuse("topk_idx", topk_idx, "a tensor of whole numbers")
