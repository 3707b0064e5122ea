"""Differentiable dispatch and combine for torch: :func:`dispatch`, :func:`combine`, and both around experts.

Dispatch copies a token's row to the ranks of its experts, and combine adds a token's rows up: each is the transpose of
the other. So the backward of dispatch is a combine of the gradients, and the backward of combine a dispatch by the same
handle. Weights of single choices return as columns of a combine (:func:`return_weights`).

A backward pass is collective as well: on every rank the same tensors must require gradients, and every rank must run
backward, even one without tokens or work for its experts.

Reading order: the functions for callers; the arithmetic of both directions, without recording; its recording in eager
code (``torch.autograd.Function``); and under ``torch.compile`` (operators, ``torch.ops.ep_lib``).
"""

# No `from __future__ import annotations`: torch reads an operator's schema from its annotations.

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.library import custom_op

from ep_lib.errors import ArgumentError, HandleError
from ep_lib.memory.arrays import describe, like
from ep_lib.moe.checks import InputChecks
from ep_lib.moe.event import Event
from ep_lib.moe.handle import DispatchHandle, Received, find, give_number
from ep_lib.moe.mode import ExpertRows
from ep_lib.require import at_least_one, flag, refuse, show, whole_number

Rows = Tensor | tuple[Tensor, Tensor]
_ALIGNMENT_BYTES = 16  # alignment of rows for kernels


class Ticket(NamedTuple):
    """The handle of one dispatch, for :func:`combine` and for :func:`dispatch` by handle."""

    handle: DispatchHandle | Tensor  # in compiled code the int64 tensor that represents the handle
    anchor: Tensor | None  # [0]: connects the backward of dispatch to that of combine, even if experts use no row
    num_tokens: int  # tokens that this rank sent
    num_worst_tokens: int  # 0: as many rows as arrived


class Dispatched(NamedTuple):
    """The result of :func:`dispatch`, N rows: the fields of :class:`ep_lib.moe.Received`."""

    x: Rows  # [N, hidden]; (float8_e4m3fn [N, hidden], float32 scales [N, hidden / 128]) if x was such a pair
    topk_idx: Tensor  # [N, top_k], local expert ids, -1 for experts elsewhere; rows past the received ones: all -1
    topk_weights: Tensor | None  # float32 [N, top_k]
    tokens_per_expert: Tensor  # int32 [experts_per_rank], in host memory; on the device with num_worst_tokens
    handle: Ticket
    by_expert: ExpertRows | None = None  # with sorted_by_expert; its x and weights have gradients as well
    event: Event | None = None  # with async_finish: completes when all results are ready


def dispatch(
    buffer: Any,
    x: Rows,
    topk_idx: Tensor | None = None,
    topk_weights: Tensor | None = None,
    *,
    handle: Ticket | None = None,
    num_worst_tokens: int = 0,
    expert_alignment: int = 1,
    sorted_by_expert: bool = False,
    async_finish: bool = False,
) -> Dispatched:
    """:meth:`ep_lib.Buffer.dispatch` with gradients for ``x`` and ``topk_weights``; collective, like its backward.

    ``x`` ``[T, hidden]`` in the Buffer's dtype, of any layout (copied only if kernels cannot read it), or an FP8 pair,
    which has no gradient. ``topk_idx`` ``[T, top_k]`` int64 or int32, ``topk_weights`` float32. ``num_worst_tokens``
    gives results of so many rows; those past the received ones are zeros. ``expert_alignment``, ``sorted_by_expert``
    and ``async_finish`` as in Buffer.dispatch: gradients flow through ``by_expert.x`` and ``by_expert.weights`` too,
    and backward itself runs in the caller's stream. With async_finish rows past the received ones are not cleared, so
    it excludes num_worst_tokens.

    Raises the errors of Buffer.dispatch; in backward also BufferClosedError after ``buffer.close()``. Differentiating
    twice raises ArgumentError.
    """
    if not torch.compiler.is_compiling():
        _require_buffer(buffer, "dispatch")
        for name, part in zip(("x", "the scales of x"), x if isinstance(x, tuple) else (x,), strict=False):
            require_tensor(name, part)
        _require_choices(topk_idx, topk_weights)
        num_worst_tokens = whole_number("num_worst_tokens", num_worst_tokens, 0, 2**31 - 1)
        expert_alignment = at_least_one("expert_alignment", expert_alignment)
        if flag("async_finish", async_finish) and num_worst_tokens:
            raise ArgumentError("async_finish and num_worst_tokens exclude each other here; pass one of them")
        if handle is not None and not isinstance(handle, Ticket):
            raise HandleError(f"handle is {show(handle)}; this dispatch takes the one that ep_lib.moe.dispatch gave")
    quantized = isinstance(x, tuple)
    if torch.is_grad_enabled() and isinstance(x, tuple) and any(part.requires_grad for part in x):
        raise ArgumentError(
            "x is FP8 and requires a gradient; gradients travel in the Buffer's dtype only: pass x itself, or detach "
            "the FP8 rows and their scales"
        )
    if torch.compiler.is_compiling():
        if quantized or handle is not None or topk_idx is None:
            raise ArgumentError("under torch.compile dispatch takes x in the Buffer's dtype and topk_idx, no handle")
        if expert_alignment != 1 or sorted_by_expert or async_finish:
            raise ArgumentError(
                "under torch.compile dispatch takes no expert_alignment, sorted_by_expert or async_finish: leave them "
                "out, or call it outside of the compiled function"
            )
        config = buffer.config
        rows, idx, weights, counts, token = dispatch_operator(
            x, topk_idx, topk_weights, buffer.key, config.experts_per_rank, num_worst_tokens
        )
        ticket = Ticket(token, None, x.shape[0], num_worst_tokens)  # type: ignore[union-attr]
        return Dispatched(rows, idx, None if topk_weights is None else weights, counts, ticket)
    eager = None if handle is None else _eager_handle(handle)
    if handle is not None:
        num_worst_tokens = handle.num_worst_tokens
    data, scales = x if isinstance(x, tuple) else (x, None)
    options: dict[str, Any] = {}
    if expert_alignment != 1:
        options["expert_alignment"] = expert_alignment
    if flag("sorted_by_expert", sorted_by_expert):
        options["sorted_by_expert"] = True
    if async_finish:
        options["async_finish"] = True
    rows, came_scales, idx, weights, counts, anchor, sorted_x, sorted_weights, received = _RECORD_DISPATCH(
        buffer, data, scales, topk_idx, topk_weights, eager, num_worst_tokens, options
    )
    by_expert = received.by_expert
    if by_expert is not None:
        grouped = by_expert.x if quantized else sorted_x
        by_expert = replace(by_expert, x=grouped, weights=None if weights is None else sorted_weights)
    return Dispatched(
        (rows, came_scales) if quantized else rows,
        idx,
        weights,
        counts,
        Ticket(received.handle, anchor, data.shape[0], num_worst_tokens),
        by_expert,
        received.event,
    )


def combine(
    buffer: Any, x: Tensor, handle: Ticket, topk_weights: Tensor | None = None, *, sorted_by_expert: bool = False
) -> Tensor:
    """:meth:`ep_lib.Buffer.combine` with gradients for ``x`` and ``topk_weights``; collective, like its backward.

    ``x`` ``[N, hidden]`` in the Buffer's dtype, the rows of the dispatch of ``handle``; returns ``[T, hidden]``.
    ``topk_weights``, float32 ``[T, top_k]``: of this rank's own tokens, as in Buffer.combine. ``sorted_by_expert``: x
    ``[M, hidden]`` is made of by_expert.x, in the same order; no topk_weights then.

    Raises the errors of Buffer.combine. Differentiating twice raises ArgumentError.
    """
    if not isinstance(handle, Ticket):
        raise HandleError(
            f"handle is a {type(handle).__name__}; this combine takes the one that ep_lib.moe.dispatch gave "
            "(Buffer.combine that of Buffer.dispatch)"
        )
    if not torch.compiler.is_compiling():
        _require_buffer(buffer, "combine")
        require_tensor("x", x)
        _require_choices(None, topk_weights)
    if torch.compiler.is_compiling():
        if sorted_by_expert:
            raise ArgumentError("under torch.compile combine takes no sorted_by_expert: call it outside")
        if not isinstance(handle.handle, Tensor):
            raise HandleError("this handle comes from outside of the compiled function: dispatch inside of it")
        out: Tensor = combine_operator(
            x, handle.handle, topk_weights, buffer.key, handle.num_tokens, handle.num_worst_tokens
        )
        return out
    eager = _eager_handle(handle)
    grouped = flag("sorted_by_expert", sorted_by_expert)
    if grouped and topk_weights is not None:
        InputChecks.expert_rows(eager, topk_weights)  # raises
    out = _RECORD_COMBINE(buffer, x, topk_weights, eager, handle.anchor, handle.num_worst_tokens, grouped)
    return out


def run_experts(
    buffer: Any,
    experts: Callable[[Tensor, Tensor, Tensor], Tensor],
    x: Tensor,
    topk_idx: Tensor,
    topk_weights: Tensor,
    *,
    num_worst_tokens: int = 0,
) -> Tensor:
    """Dispatch ``x``, run this rank's ``experts``, and combine: ``[T, hidden]`` in the Buffer's dtype.

    ``experts(x, topk_idx, topk_weights)`` gives for each received row the sum of its local experts' results times their
    weights: ``[N, hidden]``, such as :class:`ep_lib.moe.layer.Experts`.
    """
    came = dispatch(buffer, x, topk_idx, topk_weights, num_worst_tokens=num_worst_tokens)
    assert came.topk_weights is not None and isinstance(came.x, Tensor)
    partial = experts(came.x, came.topk_idx, came.topk_weights)
    # The sum over this rank's experts already includes the weights; combine adds up the ranks' results.
    return combine(buffer, partial.to(came.x.dtype), _anchored(came.handle, experts))


def require_tensor(name: str, value: Any) -> Tensor:
    """``value``, a dense tensor on a CPU or CUDA device. Raises ArgumentError."""
    if not isinstance(value, Tensor):
        refuse(name, value, "a torch tensor")
    try:
        describe(value)
    except ArgumentError as error:
        raise ArgumentError(f"{name}: {error}") from error
    return value


def _require_choices(topk_idx: Any, topk_weights: Any) -> None:
    for name, value in (("topk_idx", topk_idx), ("topk_weights", topk_weights)):
        if value is not None:
            require_tensor(name, value)


def _require_buffer(buffer: Any, operation: str) -> None:
    """Raises ArgumentError unless the object has the operation."""
    if not callable(getattr(buffer, operation, None)):
        refuse("buffer", buffer, "an ep_lib.Buffer")


def _anchored(ticket: Ticket, experts: object) -> Ticket:
    """The ticket with an anchor that requires a gradient if the experts' parameters do, so that backward reaches
    combine on every rank, even if experts had no rows and their result has no inputs."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled() or not isinstance(experts, torch.nn.Module):
        return ticket
    anchor = ticket.anchor
    if anchor is None or anchor.requires_grad or not any(p.requires_grad for p in experts.parameters()):
        return ticket
    return ticket._replace(anchor=anchor.detach().requires_grad_())


def _eager_handle(ticket: Ticket) -> DispatchHandle:
    if isinstance(ticket.handle, Tensor):  # from a compiled function, in eager code
        return handle_of(ticket.handle)
    return ticket.handle


# ---- The arithmetic of both directions, on torch tensors and a Buffer ------------------------------------------------


def dense(x: Tensor) -> Tensor:
    """``x``, or a copy of it that kernels can read: contiguous, and aligned to 16 bytes."""
    x = x.contiguous()
    return x.clone() if x.data_ptr() % _ALIGNMENT_BYTES else x


def send(
    buffer: Any,
    x: Rows,
    topk_idx: Tensor | None,
    topk_weights: Tensor | None,
    handle: DispatchHandle | None = None,
    num_worst_tokens: int = 0,
    more: dict[str, Any] | None = None,
) -> Received:
    """``buffer.dispatch`` of inputs in any layout, with ``more`` options. Rows past the received ones, if there are
    any, become zeros: an expert may run on them without changing the gradient of its weights."""
    x = (dense(x[0]), x[1].contiguous()) if isinstance(x, tuple) else dense(x)
    topk_idx = None if topk_idx is None else topk_idx.contiguous()
    topk_weights = None if topk_weights is None else topk_weights.detach().contiguous()
    options: dict[str, Any] = {} if more is None else dict(more)
    if handle is not None:
        options["handle"] = handle  # it knows how many rows there will be
    elif num_worst_tokens:
        options["num_worst_tokens"] = num_worst_tokens
    received: Received = buffer.dispatch(x, topk_idx, topk_weights, **options)
    if num_worst_tokens:
        _clear(received.x, received.topk_weights, (received.topk_idx < 0).all(dim=1))
        if (sorted_rows := received.by_expert) is not None:
            number = torch.arange(len(sorted_rows.row), device=sorted_rows.row.device)
            _clear(sorted_rows.x, sorted_rows.weights, number >= sorted_rows.offsets[-1])
    return received


def _clear(x: Rows, weights: Tensor | None, empty: Tensor) -> None:
    """Zeroes the ``empty`` rows."""
    for rows in x if isinstance(x, tuple) else (x,):
        (rows.view(torch.uint8) if rows.dtype == torch.float8_e4m3fn else rows).masked_fill_(empty.unsqueeze(1), 0)
    if weights is not None:
        weights.masked_fill_(empty if weights.dim() == 1 else empty.unsqueeze(1), 0)


def from_experts(rows: Tensor, sorted_rows: Tensor, slot: Tensor) -> Tensor:
    """``rows`` ``[N, ...]`` plus the rows of ``sorted_rows`` for each of a row's choices, in the order of k, in
    float32, rounded once. ``slot``: as in :class:`ep_lib.moe.mode.ExpertRows`."""
    behind = torch.cat([sorted_rows, sorted_rows.new_zeros(1, *sorted_rows.shape[1:])])  # the target of -1
    total = rows.float()
    for k in range(slot.shape[1]):
        total = total + behind[slot[:, k].long()].float()
    return total.to(rows.dtype)


def bring_back(
    buffer: Any, x: Tensor, handle: DispatchHandle, topk_weights: Tensor | None = None, sorted_by_expert: bool = False
) -> Tensor:
    """``buffer.combine`` of inputs in any layout."""
    weights = () if topk_weights is None else (topk_weights.contiguous(),)
    options = {"sorted_by_expert": True} if sorted_by_expert else {}
    out: Tensor = buffer.combine(dense(x), handle, *weights, **options)
    return out


def dispatch_backward(
    buffer: Any, handle: DispatchHandle, grad_x: Tensor | None, grad_weights: Tensor | None, recv_topk_idx: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """From gradients of ``recv.x`` and ``recv.topk_weights`` to those of ``x`` and ``topk_weights``.

    Each is a collective combine; a gradient is None on all ranks or on none.
    """
    x = None if grad_x is None else bring_back(buffer, grad_x, handle)
    if grad_weights is None:
        return x, None
    chosen_here = grad_weights.masked_fill(recv_topk_idx < 0, 0)
    return x, return_weights(buffer, handle, chosen_here)


def combine_backward(
    buffer: Any,
    handle: DispatchHandle,
    grad: Tensor,
    rows: Tensor | None,
    weights: Tensor | None,
    num_worst_tokens: int = 0,
) -> tuple[Tensor, Tensor | None]:
    """From the gradient of combine's result to those of its rows and, given the ``rows``, of its weights."""
    received = send(buffer, grad, None, weights, handle, num_worst_tokens)
    grad_rows: Tensor = received.x
    if weights is None:
        return grad_rows, None
    assert received.topk_weights is not None
    wide = grad_rows.float()
    factor = received.topk_weights.sum(dim=1, keepdim=True)  # the row's factor in combine; 0 if not local
    grad_rows = (wide * factor).to(grad_rows.dtype)
    if rows is None:
        return grad_rows, None
    # All choices of a token on one rank share its row there, so they share this product.
    products = (wide * rows.float()).sum(dim=1, keepdim=True)
    chosen_here = (products * (received.topk_idx >= 0)).contiguous()
    return grad_rows, return_weights(buffer, handle, chosen_here)


def return_weights(buffer: Any, handle: DispatchHandle, values: Tensor) -> Tensor:
    """Collective: bring ``values``, float32 ``[rows, top_k]``, 0 where a choice is not local, back to their tokens.

    Returns float32 ``[num_tokens, top_k]``, exact: each choice has one rank, so that combine adds one number to zeros,
    and a bfloat16 Buffer carries a float32 as three numbers of 8 bits each. Values that are not finite stay so.
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


# ---- Eager code -----------------------------------------------------------------------------------------------------
class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        buffer: Any,
        x: Tensor,
        scales: Tensor | None,
        topk_idx: Tensor | None,
        topk_weights: Tensor | None,
        handle: DispatchHandle | None,
        num_worst_tokens: int,
        options: dict[str, Any],
    ) -> tuple[Any, ...]:
        payload = x if scales is None else (x, scales)
        received = send(buffer, payload, topk_idx, topk_weights, handle, num_worst_tokens, options)
        rows, came_scales = received.x if isinstance(received.x, tuple) else (received.x, None)
        idx, weights = received.topk_idx, received.topk_weights
        counts = received.tokens_per_expert
        counts = counts if isinstance(counts, Tensor) else like("torch", counts)
        anchor = rows.new_empty(0, dtype=torch.float32)
        fixed = [idx, counts] if scales is None else [idx, counts, rows, came_scales]
        ctx.mark_non_differentiable(*fixed)
        sorted_rows = received.by_expert
        sorted_x = sorted_weights = slot = None
        if sorted_rows is not None:
            sorted_x = sorted_rows.x if scales is None else None
            sorted_weights, slot = sorted_rows.weights, sorted_rows.slot
        ctx.save_for_backward(idx, slot)
        ctx.buffer, ctx.handle = buffer, received.handle
        return rows, came_scales, idx, weights, counts, anchor, sorted_x, sorted_weights, received

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        idx, slot = ctx.saved_tensors
        _, wants_x, _, _, wants_weights, *_ = ctx.needs_input_grad
        grad_x, grad_weights = grads[0] if wants_x else None, grads[3] if wants_weights else None
        with torch.no_grad():
            if slot is not None and grad_x is not None:
                grad_x = from_experts(grad_x, grads[6], slot)
            if slot is not None and grad_weights is not None:
                of_choices = torch.cat([grads[7], grads[7].new_zeros(1)])  # the target of -1
                grad_weights = grad_weights + of_choices[slot.long()]
            x, weights = dispatch_backward(ctx.buffer, ctx.handle, grad_x, grad_weights, idx)
        x, weights = _only_once((x, weights), grads)
        return None, x, None, None, weights, None, None, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        buffer: Any,
        x: Tensor,
        topk_weights: Tensor | None,
        handle: DispatchHandle,
        anchor: Tensor | None,
        num_worst_tokens: int,
        sorted_by_expert: bool,
    ) -> Tensor:
        ctx.buffer, ctx.handle, ctx.num_worst_tokens = buffer, handle, num_worst_tokens
        ctx.sorted_by_expert = sorted_by_expert
        # A tensor is always saved, so that checkpointing, which recomputes up to the last saved tensor, gets here on
        # every rank, independent of the experts' saved tensors.
        wants_weights = topk_weights is not None and topk_weights.requires_grad
        ctx.save_for_backward(x if wants_weights else x.new_empty(0), topk_weights)
        return bring_back(buffer, x, handle, topk_weights, sorted_by_expert)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        rows, weights = ctx.saved_tensors
        _, wants_x, wants_weights, _, wants_anchor, *_ = ctx.needs_input_grad
        with torch.no_grad():
            if ctx.sorted_by_expert:
                more = {"sorted_by_expert": True}
                received = send(ctx.buffer, grad, None, None, ctx.handle, ctx.num_worst_tokens, more)
                assert received.by_expert is not None
                x, grad_weights = received.by_expert.x, None
            else:
                x, grad_weights = combine_backward(
                    ctx.buffer, ctx.handle, grad, rows if wants_weights else None, weights, ctx.num_worst_tokens
                )
        results = _only_once((x if wants_x else None, grad_weights), (grad,))
        anchor = grad.new_empty(0, dtype=torch.float32) if wants_anchor else None
        return None, *results, None, anchor, None, None


def _only_once(results: tuple[Tensor | None, ...], grads: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
    """The results of a backward; if it is itself recorded (``create_graph=True``), as results without a derivative."""
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


# torch has no type annotations for apply.
_RECORD_DISPATCH: Any = _Dispatch.apply
_RECORD_COMBINE: Any = _Combine.apply
_RECORD_ONCE: Any = _Once.apply


# ---- Under torch.compile --------------------------------------------------------------------------------------------
# Operators, which torch.compile puts into its graphs as opaque nodes. An operator takes only tensors and numbers. A
# Buffer is passed as its number (Buffer.key); a dispatch returns its handle as an int64 tensor [1] in host memory,
# which contains the handle's number and keeps it alive. The number of arriving rows is known only at run time: an
# unbacked size, or num_worst_tokens, which makes shapes static.
#
# The operators of a graph run in the order of its data flow, which is equal on all ranks if their programs are.


def token_of(handle: DispatchHandle) -> Tensor:
    """An int64 tensor ``[1]`` that represents ``handle``, and keeps it alive as long as its memory."""
    number = np.array([give_number(handle)], np.int64)
    # The tensor's memory keeps `number` alive, even if torch replaces the tensor object; the finalizer keeps the handle
    # alive.
    weakref.finalize(number, _let_go, handle).atexit = False
    return torch.from_numpy(number)


def _let_go(handle: DispatchHandle) -> None:
    """Drops the finalizer's reference, the graph's last one."""


def handle_of(token: Tensor) -> DispatchHandle:
    """The handle that ``token`` of :func:`token_of` represents."""
    if token.shape != (1,) or token.dtype != torch.int64:
        raise HandleError(f"a handle in compiled code is an int64 tensor [1]; got {token.dtype} {list(token.shape)}")
    handle: DispatchHandle = find(int(token))
    return handle


@custom_op("ep_lib::dispatch", mutates_args=())
def dispatch_operator(
    x: Tensor,
    topk_idx: Tensor,
    topk_weights: Tensor | None,
    buffer: int,
    experts_per_rank: int,
    num_worst_tokens: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """recv.x, recv.topk_idx, recv.topk_weights (``[0]`` without weights), tokens_per_expert, token of the handle."""
    received = send(find(buffer), x, topk_idx, topk_weights, num_worst_tokens=num_worst_tokens)
    counts = received.tokens_per_expert
    counts = counts if isinstance(counts, Tensor) else like("torch", counts)
    weights = x.new_empty(0, dtype=torch.float32) if received.topk_weights is None else received.topk_weights
    return received.x, received.topk_idx, weights, counts, token_of(received.handle)


@dispatch_operator.register_fake
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
def dispatch_backward_operator(
    grad_x: Tensor | None,
    grad_weights: Tensor | None,
    recv_topk_idx: Tensor,
    token: Tensor,
    buffer: int,
    num_tokens: int,
) -> tuple[Tensor, Tensor]:
    """Gradients of x and of topk_weights; ``[0]`` for one that is not needed."""
    x, weights = dispatch_backward(find(buffer), handle_of(token), grad_x, grad_weights, recv_topk_idx)
    return _or_empty(x, recv_topk_idx), _or_empty(weights, recv_topk_idx)


@dispatch_backward_operator.register_fake
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
def combine_operator(
    x: Tensor, token: Tensor, topk_weights: Tensor | None, buffer: int, num_tokens: int, num_worst_tokens: int
) -> Tensor:
    """``[num_tokens, hidden]``."""
    return bring_back(find(buffer), x, handle_of(token), topk_weights)


@combine_operator.register_fake
def _(
    x: Tensor, token: Tensor, topk_weights: Tensor | None, buffer: int, num_tokens: int, num_worst_tokens: int
) -> Tensor:
    return x.new_empty(num_tokens, x.shape[1])


@custom_op("ep_lib::combine_backward", mutates_args=())
def combine_backward_operator(
    grad: Tensor,
    token: Tensor,
    rows: Tensor | None,
    topk_weights: Tensor | None,
    buffer: int,
    num_rows: int,
    num_worst_tokens: int,
) -> tuple[Tensor, Tensor]:
    """Gradients of the rows and of topk_weights (``[0]`` without ``rows``)."""
    x, weights = combine_backward(find(buffer), handle_of(token), grad, rows, topk_weights, num_worst_tokens)
    return x, _or_empty(weights, grad)


@combine_backward_operator.register_fake
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
    """An empty tensor for None: operators return only tensors."""
    return beside.new_empty(0, dtype=torch.float32) if tensor is None else tensor


def _keep_dispatch(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, _, topk_weights, ctx.buffer, _, _ = inputs
    ctx.num_tokens = x.shape[0]
    ctx.wants = (x.requires_grad, topk_weights is not None and topk_weights.requires_grad)
    ctx.save_for_backward(output[1], output[4])


def _dispatch_gradients(ctx: Any, *grads: Any) -> tuple[Any, ...]:
    idx, token = ctx.saved_tensors
    wants_x, wants_weights = ctx.wants
    x, weights = dispatch_backward_operator(
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
    x, grad_weights = combine_backward_operator(
        grad, token, rows, weights, ctx.buffer, ctx.num_rows, ctx.num_worst_tokens
    )
    return x, None, grad_weights if ctx.wants_weights else None, None, None, None


dispatch_operator.register_autograd(_dispatch_gradients, setup_context=_keep_dispatch)
combine_operator.register_autograd(_combine_gradients, setup_context=_keep_combine)
