"""Differentiable dispatch and combine for torch: :func:`dispatch`, :func:`combine`, and both around experts.

The backward of dispatch is a combine, and the backward of combine a dispatch by the same handle, so a backward pass is
collective as well: on every rank the same tensors must want gradients, and every rank must run backward, also one
whose tokens or experts had nothing to do. Eager code records a ``torch.autograd.Function``, code under
``torch.compile`` an operator (:mod:`ep_lib.moe.compiled`); the arithmetic is the same (:mod:`ep_lib.moe.gradients`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from ep_lib.errors import ArgumentError, HandleError
from ep_lib.memory.arrays import like
from ep_lib.moe import compiled, gradients

Rows = Tensor | tuple[Tensor, Tensor]


class Ticket(NamedTuple):
    """The way back of one dispatch, for :func:`combine` and for :func:`dispatch` by handle."""

    handle: Any  # a DispatchHandle; in compiled code the int64 tensor that stands for it
    anchor: Tensor | None  # [0]: ties backward of dispatch to that of combine, also where experts use no row
    num_tokens: int  # that this rank sent
    num_worst_tokens: int  # 0: as many rows as arrived


class Dispatched(NamedTuple):
    """What :func:`dispatch` hands over, N rows: see :class:`ep_lib.moe.Received`, whose fields these are."""

    x: Rows  # [N, hidden]; (float8_e4m3fn [N, hidden], float32 scales [N, hidden / 128]) if x was such a pair
    topk_idx: Tensor  # [N, top_k], local expert ids, -1 for experts elsewhere; rows past the received ones: all -1
    topk_weights: Tensor | None  # float32 [N, top_k]
    tokens_per_expert: Tensor  # int32 [experts_per_rank], in host memory; on the device with num_worst_tokens
    handle: Ticket


def dispatch(
    buffer: Any,
    x: Rows,
    topk_idx: Tensor | None = None,
    topk_weights: Tensor | None = None,
    *,
    handle: Ticket | None = None,
    num_worst_tokens: int = 0,
) -> Dispatched:
    """:meth:`ep_lib.Buffer.dispatch` with gradients for ``x`` and ``topk_weights``; collective, like its backward.

    ``x`` ``[T, hidden]`` in the Buffer's dtype, of any layout (a copy is made only where kernels cannot read it), or an
    FP8 pair, which can have no gradient. ``topk_idx`` ``[T, top_k]`` int64 or int32, ``topk_weights`` float32.
    ``num_worst_tokens`` gives results of so many rows; those past the received ones are zeros.

    Raises what Buffer.dispatch raises; in backward also BufferClosedError after ``buffer.close()``. Differentiating
    twice raises ArgumentError.
    """
    quantized = isinstance(x, tuple)
    if torch.is_grad_enabled() and isinstance(x, tuple) and any(part.requires_grad for part in x):
        raise ArgumentError(
            "x is FP8 and requires a gradient; gradients travel in the Buffer's dtype only: pass x itself, or detach "
            "the FP8 rows and their scales"
        )
    if torch.compiler.is_compiling():
        if quantized or handle is not None or topk_idx is None:
            raise ArgumentError("under torch.compile dispatch takes x in the Buffer's dtype and topk_idx, no handle")
        config = buffer.config
        rows, idx, weights, counts, token = compiled.dispatch(
            x, topk_idx, topk_weights, buffer.key, config.experts_per_rank, num_worst_tokens
        )
        ticket = Ticket(token, None, x.shape[0], num_worst_tokens)  # type: ignore[union-attr]
        return Dispatched(rows, idx, None if topk_weights is None else weights, counts, ticket)
    told = None if handle is None else _eager_handle(handle)
    if handle is not None:
        num_worst_tokens = handle.num_worst_tokens
    data, scales = x if isinstance(x, tuple) else (x, None)
    rows, came_scales, idx, weights, counts, anchor, told = _RECORD_DISPATCH(
        buffer, data, scales, topk_idx, topk_weights, told, num_worst_tokens
    )
    return Dispatched(
        (rows, came_scales) if quantized else rows,
        idx,
        weights,
        counts,
        Ticket(told, anchor, data.shape[0], num_worst_tokens),
    )


def combine(buffer: Any, x: Tensor, handle: Ticket, topk_weights: Tensor | None = None) -> Tensor:
    """:meth:`ep_lib.Buffer.combine` with gradients for ``x`` and ``topk_weights``; collective, like its backward.

    ``x`` ``[N, hidden]`` in the Buffer's dtype, the rows of the dispatch that gave ``handle``; returns
    ``[T, hidden]``. ``topk_weights``, float32 ``[T, top_k]``: of this rank's own tokens, as in Buffer.combine.

    Raises what Buffer.combine raises. Differentiating twice raises ArgumentError.
    """
    if not isinstance(handle, Ticket):
        raise HandleError(
            f"handle is a {type(handle).__name__}; this combine takes the one that ep_lib.moe.dispatch gave "
            "(Buffer.combine that of Buffer.dispatch)"
        )
    if torch.compiler.is_compiling():
        if not isinstance(handle.handle, Tensor):
            raise HandleError("this handle comes from outside of the compiled function: dispatch inside of it")
        out: Tensor = compiled.combine(
            x, handle.handle, topk_weights, buffer.key, handle.num_tokens, handle.num_worst_tokens
        )
        return out
    told = _eager_handle(handle)
    out = _RECORD_COMBINE(buffer, x, topk_weights, told, handle.anchor, handle.num_worst_tokens)
    return out


def run_experts(
    buffer: Any,
    experts: Callable[[Any, Tensor, Tensor], Tensor],
    x: Tensor,
    topk_idx: Tensor,
    topk_weights: Tensor,
    *,
    num_worst_tokens: int = 0,
) -> Tensor:
    """Dispatch ``x``, let this rank's ``experts`` work, and combine: ``[T, hidden]`` in the Buffer's dtype.

    ``experts(x, topk_idx, topk_weights)`` gives for each received row the sum of what its local experts make of it,
    times their weights: ``[N, hidden]``, such as :class:`ep_lib.moe.layer.Experts`.
    """
    came = dispatch(buffer, x, topk_idx, topk_weights, num_worst_tokens=num_worst_tokens)
    assert came.topk_weights is not None and isinstance(came.x, Tensor)
    partial = experts(came.x, came.topk_idx, came.topk_weights)
    # The weights are already in the sum over this rank's experts; combine adds up what the ranks send back.
    return combine(buffer, partial.to(came.x.dtype), _anchored(came.handle, experts))


def _anchored(ticket: Ticket, experts: Any) -> Ticket:
    """With an anchor that wants gradients if the experts' parameters do, so that backward comes to combine on every
    rank, also where experts had no rows and made their result of nothing."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled() or not isinstance(experts, torch.nn.Module):
        return ticket
    anchor = ticket.anchor
    if anchor is None or anchor.requires_grad or not any(p.requires_grad for p in experts.parameters()):
        return ticket
    return ticket._replace(anchor=anchor.detach().requires_grad_())


def _eager_handle(ticket: Ticket) -> Any:
    if isinstance(ticket.handle, Tensor):  # a compiled function gave it to eager code
        return compiled.handle_of(ticket.handle)
    return ticket.handle


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        buffer: Any,
        x: Tensor,
        scales: Tensor | None,
        topk_idx: Tensor | None,
        topk_weights: Tensor | None,
        handle: Any,
        num_worst_tokens: int,
    ) -> tuple[Any, ...]:
        payload = x if scales is None else (x, scales)
        received = gradients.send(buffer, payload, topk_idx, topk_weights, handle, num_worst_tokens)
        rows, came_scales = received.x if isinstance(received.x, tuple) else (received.x, None)
        idx, weights = received.topk_idx, received.topk_weights
        counts = received.tokens_per_expert
        counts = counts if isinstance(counts, Tensor) else like("torch", counts)
        anchor = rows.new_empty(0, dtype=torch.float32)
        fixed = [idx, counts] if scales is None else [idx, counts, rows, came_scales]
        ctx.mark_non_differentiable(*fixed)
        ctx.save_for_backward(idx)
        ctx.buffer, ctx.handle = buffer, received.handle
        return rows, came_scales, idx, weights, counts, anchor, received.handle

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        (idx,) = ctx.saved_tensors
        _, wants_x, _, _, wants_weights, _, _ = ctx.needs_input_grad
        with torch.no_grad():
            x, weights = gradients.dispatch_backward(
                ctx.buffer, ctx.handle, grads[0] if wants_x else None, grads[3] if wants_weights else None, idx
            )
        x, weights = _only_once((x, weights), grads)
        return None, x, None, None, weights, None, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        buffer: Any,
        x: Tensor,
        topk_weights: Tensor | None,
        handle: Any,
        anchor: Tensor | None,
        num_worst_tokens: int,
    ) -> Tensor:
        ctx.buffer, ctx.handle, ctx.num_worst_tokens = buffer, handle, num_worst_tokens
        # Something is always saved, so that checkpointing, which recomputes up to the last saved tensor, comes here on
        # every rank, whatever that rank's experts saved.
        wants_weights = topk_weights is not None and topk_weights.requires_grad
        ctx.save_for_backward(x if wants_weights else x.new_empty(0), topk_weights)
        return gradients.bring_back(buffer, x, handle, topk_weights)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        rows, weights = ctx.saved_tensors
        _, wants_x, wants_weights, _, wants_anchor, _ = ctx.needs_input_grad
        with torch.no_grad():
            x, grad_weights = gradients.combine_backward(
                ctx.buffer, ctx.handle, grad, rows if wants_weights else None, weights, ctx.num_worst_tokens
            )
        results = _only_once((x if wants_x else None, grad_weights), (grad,))
        anchor = grad.new_empty(0, dtype=torch.float32) if wants_anchor else None
        return None, *results, None, anchor, None


def _only_once(results: tuple[Tensor | None, ...], grads: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
    """The results of a backward; where it is recorded itself (``create_graph=True``) as ones that have none."""
    if not torch.is_grad_enabled() or not any(isinstance(g, Tensor) and g.requires_grad for g in grads):
        return results
    return tuple(None if r is None else _RECORD_ONCE(r, *grads) for r in results)


class _Once(torch.autograd.Function):
    """A result that cannot be differentiated."""

    @staticmethod
    def forward(ctx: FunctionCtx, result: Tensor, *grads: Any) -> Tensor:
        return result.view_as(result)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Any) -> Any:
        raise ArgumentError(
            "dispatch and combine were differentiated twice; they have a first derivative only: leave out "
            "create_graph=True, or keep second derivatives away from them by detach()"
        )


# torch has no types for it.
_RECORD_DISPATCH: Any = _Dispatch.apply
_RECORD_COMBINE: Any = _Combine.apply
_RECORD_ONCE: Any = _Once.apply
