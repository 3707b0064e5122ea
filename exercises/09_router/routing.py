# Exercise 09_router, version 1. Leave this line: ep_lib reads it.
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
    # TASK 1 (3 points): choose experts, and weights for them
    # logits.topk(top_k, dim=-1) gives the largest logits of each token and which experts they belong to. The
    # weights are a softmax over these alone, so that they sum to 1; the probabilities a softmax over all
    # experts. Everything in float32, whatever the logits' type: logits.float().
    raise NotImplementedError("Task 1 is still to do: choose experts, and weights for them")
    # end of TASK 1


def load_per_expert(topk_idx: Tensor, num_experts: int) -> Tensor:
    """How many (token, choice) pairs went to each expert: int64 ``[num_experts]``; -1 counts for none."""
    if not torch.compiler.is_compiling():
        require_ids(topk_idx)
        num_experts = whole_number("num_experts", num_experts, 1, 1 << 24)
    # TASK 2 (2 points): the load of each expert
    # torch.bincount counts how often each whole number stands in a flat tensor, but -1 is none of its numbers,
    # and without minlength the last experts are missing if no token chose them.
    raise NotImplementedError("Task 2 is still to do: the load of each expert")
    # end of TASK 2


def load_balancing_loss(routing: Routing) -> Tensor:
    """``num_experts * sum_e share_e * mean_probability_e`` (Switch Transformers, equation 4): 1 when perfectly even."""
    instance("routing", routing, Routing, "what route() returned")
    # TASK 3 (4 points): a loss that evens the load out
    # Two vectors over the experts: the share of all choices that each got (which has no gradient: counts jump),
    # and the mean over tokens of its probability (which has one). Their product, summed and times the number of
    # experts, is 1 if both are even. Where no token chose anything there are no shares: they are 0, and not 0 /
    # 0.
    raise NotImplementedError("Task 3 is still to do: a loss that evens the load out")
    # end of TASK 3


def limit_load(routing: Routing, capacity: int) -> Routing:
    """The same routing with at most ``capacity`` choices for each expert, those of the first tokens.

    Of a token, choices in the order of k. Those that an expert has no room for become -1 with weight 0; the other
    weights of the token sum to 1 again, or are all 0 if it has none left. Gradients go through weights and
    probabilities.
    """
    capacity = whole_number("capacity", capacity, 0, 2**31 - 1)
    # TASK 4 (4 points): experts that are full
    # Go through the choices in order: token 0's first, second, ... choice, then token 1's. The first `capacity`
    # choices of each expert stay. A loop will do; without one: the cumulative sum of a one-hot matrix over the
    # flat choices numbers each expert's choices. Those that go become -1 with weight 0, and the weights that a
    # token keeps are divided by their sum, unless it keeps none: its weights are all 0.
    raise NotImplementedError("Task 4 is still to do: experts that are full")
    # end of TASK 4


def require_ids(topk_idx: Any) -> None:
    """Raises ArgumentError unless it is a tensor of whole numbers."""
    require_tensor("topk_idx", topk_idx)
    if topk_idx.is_floating_point() or topk_idx.is_complex() or topk_idx.dtype == torch.bool:
        refuse("topk_idx", topk_idx, "a tensor of whole numbers")
