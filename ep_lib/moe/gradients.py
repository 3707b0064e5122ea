"""The arithmetic of both directions, forward and backward, on torch tensors and a Buffer; nothing is recorded here.

Dispatch copies a token's row to the ranks of its experts, and combine adds a token's rows up: each is the transpose of
the other, so the backward of dispatch is a combine of the gradients, and the backward of combine a dispatch by the same
handle. Weights of single choices travel back as columns of a combine (:func:`return_weights`).

:mod:`ep_lib.moe.autograd` records these for eager torch, :mod:`ep_lib.moe.compiled` for ``torch.compile``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ep_lib.moe.handle import Received

_ALIGNMENT_BYTES = 16  # of the rows that kernels read


def dense(x: Tensor) -> Tensor:
    """``x``, or a copy of it that kernels can read: contiguous, and aligned to 16 bytes."""
    x = x.contiguous()
    return x.clone() if x.data_ptr() % _ALIGNMENT_BYTES else x


def send(
    buffer: Any,
    x: Any,
    topk_idx: Tensor | None,
    topk_weights: Tensor | None,
    handle: Any = None,
    num_worst_tokens: int = 0,
) -> Received:
    """``buffer.dispatch`` of inputs in any layout. Rows past the received ones, if there are any, become zeros: an
    expert may run on them, and the gradient of its weights stays what it is."""
    x = (dense(x[0]), x[1].contiguous()) if isinstance(x, tuple) else dense(x)
    topk_idx = None if topk_idx is None else topk_idx.contiguous()
    topk_weights = None if topk_weights is None else topk_weights.detach().contiguous()
    options: dict[str, Any] = {}
    if handle is not None:
        options["handle"] = handle  # which knows how many rows there are to be
    elif num_worst_tokens:
        options["num_worst_tokens"] = num_worst_tokens
    received: Received = buffer.dispatch(x, topk_idx, topk_weights, **options)
    if num_worst_tokens:
        empty = (received.topk_idx < 0).all(dim=1, keepdim=True)
        for rows in received.x if isinstance(received.x, tuple) else (received.x,):
            (rows.view(torch.uint8) if rows.dtype == torch.float8_e4m3fn else rows).masked_fill_(empty, 0)
        if received.topk_weights is not None:
            received.topk_weights.masked_fill_(empty, 0)
    return received


def bring_back(buffer: Any, x: Tensor, handle: Any, topk_weights: Tensor | None = None) -> Tensor:
    """``buffer.combine`` of inputs in any layout."""
    weights = () if topk_weights is None else (topk_weights.contiguous(),)
    out: Tensor = buffer.combine(dense(x), handle, *weights)
    return out


def dispatch_backward(
    buffer: Any, handle: Any, grad_x: Tensor | None, grad_weights: Tensor | None, recv_topk_idx: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """From gradients of ``recv.x`` and ``recv.topk_weights`` to those of ``x`` and ``topk_weights``.

    Each is a collective combine; None is passed, and returned, on all ranks or on none.
    """
    x = None if grad_x is None else bring_back(buffer, grad_x, handle)
    if grad_weights is None:
        return x, None
    chosen_here = grad_weights.masked_fill(recv_topk_idx < 0, 0)
    return x, return_weights(buffer, handle, chosen_here)


def combine_backward(
    buffer: Any, handle: Any, grad: Tensor, rows: Tensor | None, weights: Tensor | None, num_worst_tokens: int = 0
) -> tuple[Tensor, Tensor | None]:
    """From the gradient of combine's result to those of its rows and, given the ``rows``, of its weights."""
    received = send(buffer, grad, None, weights, handle, num_worst_tokens)
    grad_rows: Tensor = received.x
    if weights is None:
        return grad_rows, None
    assert received.topk_weights is not None
    wide = grad_rows.float()
    factor = received.topk_weights.sum(dim=1, keepdim=True)  # what combine multiplied the row by; 0 where not local
    grad_rows = (wide * factor).to(grad_rows.dtype)
    if rows is None:
        return grad_rows, None
    # All choices of a token on one rank share its row there, so they share this product.
    products = (wide * rows.float()).sum(dim=1, keepdim=True)
    chosen_here = (products * (received.topk_idx >= 0)).contiguous()
    return grad_rows, return_weights(buffer, handle, chosen_here)


def return_weights(buffer: Any, handle: Any, values: Tensor) -> Tensor:
    """Collective: bring ``values``, float32 ``[rows, top_k]``, 0 where a choice is not local, back to their tokens.

    Returns float32 ``[num_tokens, top_k]``, exact: each choice has one rank, so that combine adds one number to zeros,
    and a bfloat16 Buffer carries a float32 as three numbers of 8 bits each. What is not finite stays not finite.
    """
    rows, top_k = values.shape
    hidden, dtype = buffer.config.hidden, getattr(torch, buffer.config.dtype.name)
    num_parts = 3 if dtype == torch.bfloat16 else 1
    vector = _ALIGNMENT_BYTES // dtype.itemsize
    columns = values.new_zeros(rows, -(-num_parts * top_k // vector) * vector, dtype=dtype)
    for first in range(0, num_parts * top_k, top_k):
        part = columns[:, first : first + top_k]
        part.copy_(values)
        values = values - part
    came = torch.cat([bring_back(buffer, piece, handle) for piece in torch.split(columns, hidden, dim=1)], dim=1)
    parts = came[:, : num_parts * top_k].view(-1, num_parts, top_k)
    return parts.sum(dim=1, dtype=torch.float32)
