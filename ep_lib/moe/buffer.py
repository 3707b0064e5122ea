"""`Buffer`: dispatch tokens to the ranks that hold their experts, and combine what the experts return."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from ep_lib.errors import ArgumentError, BufferClosedError, HandleError, RankMismatchError
from ep_lib.memory.arrays import describe, like
from ep_lib.moe.checks import InputChecks
from ep_lib.moe.config import make_config, make_memory_map
from ep_lib.moe.exchange import Exchange, name_ranks
from ep_lib.moe.handle import DispatchHandle, Received
from ep_lib.runtime.rank import Rank

_WITH_WEIGHTS = 1  # a bit of what the ranks compare: whether topk_weights were given


class Buffer:
    """Symmetric memory for expert parallelism, and the two operations on it: :meth:`dispatch` and :meth:`combine`.

    Expert ``e`` lives on rank ``e // (num_experts // world_size)``. Making a Buffer, its operations and :meth:`close`
    are collective: all ranks call them in the same order. Input is checked before anything is sent; after a refused
    call (ArgumentError, HandleError) the Buffer works on, and a rank may simply call again with better input while the
    others wait for it. After any other error, such as PeerTimeout, the ranks are out of step: make a new Buffer.

    The way a token takes is DeepEP's normal mode with direct writes instead of bounce buffers: ``ep_lib/device/ep``,
    files layout, notify, dispatch and combine. :mod:`ep_lib.reference` computes the same in NumPy.
    """

    def __init__(
        self,
        rank: Rank,
        *,
        num_experts: int,
        top_k: int,
        hidden: int,
        max_tokens: int,
        dtype: Any = "bfloat16",
        num_sms: int = 24,
    ) -> None:
        """Collective. ``hidden``: elements a token; a row must be a multiple of 16 bytes. ``max_tokens``: the most that
        any rank sends at once. ``dtype``: bfloat16 or float32 (name, NumPy or torch dtype). ``num_sms``: blocks that a
        kernel runs on.

        Raises ArgumentError; RankMismatchError when ranks pass different values; OutOfSymmetricMemory when the heap is
        too small for :meth:`symmetric_bytes`.
        """
        self._config = make_config(
            rank.world_size,
            num_experts=num_experts,
            top_k=top_k,
            hidden=hidden,
            max_tokens=max_tokens,
            dtype=dtype,
            num_sms=num_sms,
        )
        self._rank = rank
        self._exchange = Exchange(rank, self._config)
        self._checks = InputChecks(self._config, self._exchange.device)
        self._owner = object()  # in every handle
        self._unusable = ""  # why, if it is

    @staticmethod
    def symmetric_bytes(
        world_size: int, *, num_experts: int, top_k: int, hidden: int, max_tokens: int, dtype: Any = "bfloat16"
    ) -> int:
        """Bytes of symmetric heap that such a Buffer takes on every rank. Raises ArgumentError like the constructor."""
        config = make_config(
            world_size,
            num_experts=num_experts,
            top_k=top_k,
            hidden=hidden,
            max_tokens=max_tokens,
            dtype=dtype,
            num_sms=1,
        )
        return make_memory_map(config).nbytes

    def dispatch(
        self, x: Any, topk_idx: Any = None, topk_weights: Any = None, *, handle: DispatchHandle | None = None
    ) -> Received:
        """Collective: send every token to the ranks that hold its experts; returns what arrived here.

        ``x``: ``[T, hidden]`` in the Buffer's dtype, T from 0 to max_tokens, any number on each rank. NaN and infinity
        pass through. ``topk_idx``: ``[T, top_k]`` int64 or int32, global expert ids, -1: not routed. An expert that a
        token names twice counts as two choices (in tokens_per_expert, and with both weights), but as one row.
        ``topk_weights``: ``[T, top_k]`` float32, all finite, or None; given on all ranks or on none. Arrays must be
        contiguous and lie where this rank's kernels run.

        ``handle`` of an earlier dispatch sends other data the same way, which saves the counting: pass ``x`` with as
        many rows as then, and ``topk_weights`` if new ones shall travel; topk_idx may be left out and must not differ.

        Raises ArgumentError and HandleError before anything is sent; RankMismatchError if only some ranks gave weights;
        HandleError also when ranks use handles of different dispatches; PeerTimeout if a rank does not come.
        """
        self._require_usable()
        num_tokens = self._checks.tokens("x", x).shape[0]
        experts = None if topk_idx is None else self._checks.topk_idx(topk_idx, num_tokens)
        weights = None if topk_weights is None else self._checks.topk_weights(topk_weights, num_tokens)
        if handle is not None:
            self._require_own(handle)
            if num_tokens != handle.num_tokens:
                raise HandleError(f"x has {num_tokens} rows; this handle's dispatch sent {handle.num_tokens}")
            if experts is not None and bool((experts != handle._routing.topk_idx).any()):
                raise HandleError("topk_idx differs from that of the handle's dispatch; dispatch without a handle")
        elif experts is None:
            raise ArgumentError("dispatch needs topk_idx, or the handle of an earlier dispatch")
        with self._operation():
            if handle is None:
                handle = self._dispatch_new(x, experts, weights, topk_idx)
            else:
                self._dispatch_again(x, weights, handle)
            return self._received(x, topk_weights, handle)

    def combine(self, x: Any, handle: DispatchHandle, topk_weights: Any = None) -> Any:
        """Collective: bring rows back and add up; returns ``[handle.num_tokens, hidden]`` in the Buffer's dtype.

        ``x``: ``[handle.num_recv_tokens, hidden]``, what this rank's experts made of the rows of that dispatch, in the
        same order. A token's result is the sum of its rows over its ranks, in ascending order of ranks, in float32,
        rounded once; zeros if it went nowhere. ``topk_weights``, ``[num_tokens, top_k]`` float32, all finite, of this
        rank's own tokens: each row is first multiplied by the token's weight on that rank, which is the float32 sum of
        the weights of its experts there, in the order of k. Without them (the default) rows are added as they are:
        right when the experts have multiplied by ``recv.topk_weights`` already. Bitwise equal from run to run.

        Raises ArgumentError and HandleError before anything is sent; HandleError also when ranks use handles of
        different dispatches; PeerTimeout if a rank does not come.
        """
        self._require_usable()
        self._require_own(handle)
        info = self._checks.rows("x", x, None)
        if info.shape[0] != handle.num_recv_tokens:
            raise HandleError(f"x has {info.shape[0]} rows; this handle's dispatch received {handle.num_recv_tokens}")
        weights = None if topk_weights is None else self._checks.topk_weights(topk_weights, handle.num_tokens)
        with self._operation():
            self._exchange.settle()
            self._exchange.stage(x, note=handle._operation)
            out = self._exchange.pull(weights, handle._routing)
            self._require_agreement("combine with handles of different dispatches")
        return self._as_kind(info.kind, out)

    def close(self) -> None:
        """Give the symmetric memory back. All ranks must; calling it twice does no harm."""
        if not self._unusable.startswith("it was closed"):
            self._unusable = "it was closed"
            self._exchange.close()

    def __enter__(self) -> Buffer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        c = self._config
        state = f", unusable: {self._unusable}" if self._unusable else ""
        return (
            f"Buffer(rank {self._rank.rank} of {c.world_size}, num_experts={c.num_experts}, top_k={c.top_k}, "
            f"hidden={c.hidden}, max_tokens={c.max_tokens}, dtype={c.dtype.name}{state})"
        )

    # How it is done

    def _dispatch_new(self, x: Any, experts: Any, weights: Any, topk_idx: Any) -> DispatchHandle:
        """Count, tell everybody, send; then build the handle from what everybody told."""
        routing, counted = self._exchange.count(experts, options=_WITH_WEIGHTS if weights is not None else 0)
        self._exchange.send(x, weights, routing, send_routing=True)
        plan = self._exchange.plan(counted)
        _require_weights_everywhere(plan.options)
        info, rows = describe(topk_idx), int(plan.received.sum())
        return DispatchHandle(
            num_tokens=len(x),
            num_recv_tokens=rows,
            recv_tokens_per_rank=plan.received,
            tokens_per_expert=plan.tokens_per_expert,
            _owner=self._owner,
            _operation=self._exchange.operation,
            _routing=routing,
            _recv_topk_idx=self._exchange.received("recv_topk", rows),
            _recv_source=self._exchange.received("recv_source", rows),
            _index_dtype=info.dtype,
            _index_kind=info.kind,
        )

    def _dispatch_again(self, x: Any, weights: Any, handle: DispatchHandle) -> None:
        """Meet the others, then send as the handle says."""
        self._exchange.enter(note=2 * handle._operation + (_WITH_WEIGHTS if weights is not None else 0))
        self._exchange.send(x, weights, handle._routing, send_routing=False)
        self._require_agreement(
            "dispatch with handles of different dispatches, or only one of them passes topk_weights"
        )

    def _received(self, x: Any, topk_weights: Any, handle: DispatchHandle) -> Received:
        """Copies what lies in the receive area, before the next operation reuses it."""
        rows, index_kind, weights = handle.num_recv_tokens, handle._index_kind, None
        if topk_weights is not None:
            weights = like(describe(topk_weights).kind, self._exchange.received("recv_weights", rows))
        received = Received(
            x=self._as_kind(describe(x).kind, self._exchange.received("rows", rows)),
            topk_idx=like(index_kind, handle._recv_topk_idx.astype(handle._index_dtype)),
            topk_weights=weights,
            tokens_per_expert=handle.tokens_per_expert.copy(),
            src_rank=like(index_kind, handle._recv_source[:, 0].copy()),
            src_token=like(index_kind, handle._recv_source[:, 1].copy()),
            handle=handle,
        )
        self._exchange.settle()
        return received

    @contextlib.contextmanager
    def _operation(self) -> Iterator[None]:
        """One collective operation. Errors that all ranks see together leave the Buffer usable, others do not."""
        self._exchange.next_operation()
        try:
            yield
        except (HandleError, RankMismatchError):
            raise
        except BaseException as error:
            self._unusable = f"an operation on it failed ({type(error).__name__}), so the ranks may be out of step"
            raise

    def _require_usable(self) -> None:
        if not self._unusable and self._rank.is_closed:
            self._unusable = f"rank {self._rank.rank} was closed"
        if self._unusable:
            raise BufferClosedError(f"this Buffer cannot be used: {self._unusable}; make a new one")

    def _require_own(self, handle: Any) -> None:
        if not isinstance(handle, DispatchHandle):
            raise HandleError(f"handle is a {type(handle).__name__}; it must be recv.handle of a dispatch")
        if handle._owner is not self._owner:
            raise HandleError(
                "this handle belongs to another Buffer (or to another rank's); use the one of this Buffer's dispatch"
            )

    def _require_agreement(self, what: str) -> None:
        """Wait for the kernels. Raises HandleError if ranks passed different notes."""
        others = self._exchange.who_differs()
        if others:
            raise HandleError(
                f"rank {self._rank.rank} and {name_ranks(others)} {what}; all ranks must use those of the same one"
            )

    def _as_kind(self, kind: str, rows: Any) -> Any:
        """Rows of the exchange's storage dtype as an array of the caller's kind and the Buffer's dtype."""
        array = like(kind, rows)
        if kind == "torch" and self._exchange.storage_dtype != self._config.dtype:
            import torch

            return array.view(torch.bfloat16)
        return array


def _require_weights_everywhere(options: Any) -> None:
    having = [r for r, bits in enumerate(options) if bits & _WITH_WEIGHTS]
    lacking = [r for r, bits in enumerate(options) if not bits & _WITH_WEIGHTS]
    if having and lacking:
        raise RankMismatchError(
            f"{name_ranks(having)} passed topk_weights to dispatch, {name_ranks(lacking)} did not; "
            "pass them on all ranks or on none"
        )
