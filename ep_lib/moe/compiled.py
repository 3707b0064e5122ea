"""Dispatch and combine as operators (``torch.ops.ep_lib``), which ``torch.compile`` puts into its graphs unread.

An operator sees tensors and numbers only. A Buffer goes in as its number (``Buffer.key``); the handle of a dispatch
comes out as an int64 tensor ``[1]`` in host memory, which holds the handle's number and keeps it alive. The number of
rows that arrive is known at run time only: an unbacked size, or ``num_worst_tokens``, which makes shapes static.

The operators of a graph run in the order of its data flow, which is the same on all ranks if their programs are.
"""

# No `from __future__ import annotations`: torch reads an operator's schema from its annotations.

import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.library import custom_op

from ep_lib.errors import HandleError
from ep_lib.memory.arrays import like
from ep_lib.moe import gradients, registry
from ep_lib.moe.handle import DispatchHandle


def token_of(handle: DispatchHandle) -> Tensor:
    """An int64 tensor ``[1]`` that stands for ``handle``, and keeps it for as long as its memory lives."""
    number = np.array([registry.add(handle)], np.int64)
    # The tensor holds `number`, whatever torch makes of the tensor object; the finalizer holds the handle.
    weakref.finalize(number, _let_go, handle).atexit = False
    return torch.from_numpy(number)


def _let_go(handle: DispatchHandle) -> None:
    """The finalizer's reference was the last one that a graph had."""


def handle_of(token: Tensor) -> Any:
    """The handle that :func:`token_of` made ``token`` of."""
    if token.shape != (1,) or token.dtype != torch.int64:
        raise HandleError(f"a handle in compiled code is an int64 tensor [1]; got {token.dtype} {list(token.shape)}")
    return registry.find(int(token))


@custom_op("ep_lib::dispatch", mutates_args=())
def dispatch(
    x: Tensor,
    topk_idx: Tensor,
    topk_weights: Tensor | None,
    buffer: int,
    experts_per_rank: int,
    num_worst_tokens: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """recv.x, recv.topk_idx, recv.topk_weights (``[0]`` without weights), tokens_per_expert, token of the handle."""
    received = gradients.send(registry.find(buffer), x, topk_idx, topk_weights, num_worst_tokens=num_worst_tokens)
    counts = received.tokens_per_expert
    counts = counts if isinstance(counts, Tensor) else like("torch", counts)
    weights = x.new_empty(0, dtype=torch.float32) if received.topk_weights is None else received.topk_weights
    return received.x, received.topk_idx, weights, counts, token_of(received.handle)


@dispatch.register_fake
def _(
    x: Tensor,
    topk_idx: Tensor,
    topk_weights: Tensor | None,
    buffer: int,
    experts_per_rank: int,
    num_worst_tokens: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows: Any = num_worst_tokens if num_worst_tokens else torch.library.get_ctx().new_dynamic_size()
    return (
        x.new_empty(rows, x.shape[1]),
        topk_idx.new_empty(rows, topk_idx.shape[1]),
        x.new_empty(0, dtype=torch.float32)
        if topk_weights is None
        else topk_weights.new_empty(rows, topk_idx.shape[1]),
        torch.empty(experts_per_rank, dtype=torch.int32, device=x.device if num_worst_tokens else "cpu"),
        torch.empty(1, dtype=torch.int64, device="cpu"),
    )


@custom_op("ep_lib::dispatch_backward", mutates_args=())
def dispatch_backward(
    grad_x: Tensor | None,
    grad_weights: Tensor | None,
    recv_topk_idx: Tensor,
    token: Tensor,
    buffer: int,
    num_tokens: int,
) -> tuple[Tensor, Tensor]:
    """Gradients of x and of topk_weights; ``[0]`` for one that is not wanted."""
    x, weights = gradients.dispatch_backward(
        registry.find(buffer), handle_of(token), grad_x, grad_weights, recv_topk_idx
    )
    return _or_empty(x, recv_topk_idx), _or_empty(weights, recv_topk_idx)


@dispatch_backward.register_fake
def _(
    grad_x: Tensor | None,
    grad_weights: Tensor | None,
    recv_topk_idx: Tensor,
    token: Tensor,
    buffer: int,
    num_tokens: int,
) -> tuple[Tensor, Tensor]:
    x = None if grad_x is None else grad_x.new_empty(num_tokens, grad_x.shape[1])
    weights = None if grad_weights is None else grad_weights.new_empty(num_tokens, grad_weights.shape[1])
    return _or_empty(x, recv_topk_idx), _or_empty(weights, recv_topk_idx)


@custom_op("ep_lib::combine", mutates_args=())
def combine(
    x: Tensor, token: Tensor, topk_weights: Tensor | None, buffer: int, num_tokens: int, num_worst_tokens: int
) -> Tensor:
    """``[num_tokens, hidden]``."""
    return gradients.bring_back(registry.find(buffer), x, handle_of(token), topk_weights)


@combine.register_fake
def _(
    x: Tensor, token: Tensor, topk_weights: Tensor | None, buffer: int, num_tokens: int, num_worst_tokens: int
) -> Tensor:
    return x.new_empty(num_tokens, x.shape[1])


@custom_op("ep_lib::combine_backward", mutates_args=())
def combine_backward(
    grad: Tensor,
    token: Tensor,
    rows: Tensor | None,
    topk_weights: Tensor | None,
    buffer: int,
    num_rows: int,
    num_worst_tokens: int,
) -> tuple[Tensor, Tensor]:
    """Gradients of the rows and of topk_weights (``[0]`` without ``rows``)."""
    x, weights = gradients.combine_backward(
        registry.find(buffer), handle_of(token), grad, rows, topk_weights, num_worst_tokens
    )
    return x, _or_empty(weights, grad)


@combine_backward.register_fake
def _(
    grad: Tensor,
    token: Tensor,
    rows: Tensor | None,
    topk_weights: Tensor | None,
    buffer: int,
    num_rows: int,
    num_worst_tokens: int,
) -> tuple[Tensor, Tensor]:
    weights = None if rows is None or topk_weights is None else torch.empty_like(topk_weights)
    return grad.new_empty(num_rows, grad.shape[1]), _or_empty(weights, grad)


def _or_empty(tensor: Tensor | None, beside: Tensor) -> Tensor:
    """Operators return tensors only."""
    return beside.new_empty(0, dtype=torch.float32) if tensor is None else tensor


def _keep_dispatch(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, _, topk_weights, ctx.buffer, _, _ = inputs
    ctx.num_tokens = x.shape[0]
    ctx.wants = (x.requires_grad, topk_weights is not None and topk_weights.requires_grad)
    ctx.save_for_backward(output[1], output[4])


def _dispatch_gradients(ctx: Any, *grads: Any) -> tuple[Any, ...]:
    idx, token = ctx.saved_tensors
    wants_x, wants_weights = ctx.wants
    x, weights = dispatch_backward(
        grads[0] if wants_x else None, grads[2] if wants_weights else None, idx, token, ctx.buffer, ctx.num_tokens
    )
    return x if wants_x else None, None, weights if wants_weights else None, None, None, None


def _keep_combine(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, token, topk_weights, ctx.buffer, _, ctx.num_worst_tokens = inputs
    ctx.num_rows = x.shape[0]
    ctx.wants_weights = topk_weights is not None and topk_weights.requires_grad
    ctx.save_for_backward(x if ctx.wants_weights else None, token, topk_weights)


def _combine_gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    rows, token, weights = ctx.saved_tensors
    x, grad_weights = combine_backward(grad, token, rows, weights, ctx.buffer, ctx.num_rows, ctx.num_worst_tokens)
    return x, None, grad_weights if ctx.wants_weights else None, None, None, None


dispatch.register_autograd(_dispatch_gradients, setup_context=_keep_dispatch)
combine.register_autograd(_combine_gradients, setup_context=_keep_combine)
