"""The common part of DeepEP's two Buffers, V1's and V2's: a group, engines, streams, and checks of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

import ep_lib.moe.buffer as moe
from ep_lib.compat.deep_ep.engines import Engine, Shape, members_of
from ep_lib.compat.deep_ep.events import EventHandle, EventOverlap, event_of
from ep_lib.compat.deep_ep.scales import require_groups, spread_scales
from ep_lib.errors import ArgumentError, BufferClosedError, NotSupportedError, PeerTimeout, RankFailed
from ep_lib.moe.autograd import dense, require_tensor, return_weights
from ep_lib.moe.handle import DispatchHandle
from ep_lib.require import at_least_one, flag, refuse

Rows = Tensor | tuple[Tensor, Tensor]
Before = EventOverlap | EventHandle | None
Hook = Callable[[], None]
T = TypeVar("T")


class Face:
    """A group's ranks, and the engines that its Buffer has made."""

    def __init__(self, group: Any, explicitly_destroy: bool) -> None:
        """Collective."""
        self.group = group
        self.explicitly_destroy = flag("explicitly_destroy", explicitly_destroy)
        self._members = members_of(group)
        self._engines: dict[Shape, Engine] = {}
        self._own_stream: Any = None
        self._is_destroyed = False

    def destroy(self) -> None:
        """Collective: free the memory. Memory that handles still need stays until they are gone and the group meets
        again. Raises ArgumentError unless the Buffer was made with ``explicitly_destroy=True``."""
        if not self.explicitly_destroy:
            raise ArgumentError("destroy() is for a Buffer that was made with explicitly_destroy=True")
        self._require_usable()
        self._is_destroyed = True
        self._engines.clear()
        self._members.close_unused()

    def get_comm_stream(self) -> Any:
        """The stream in which operations with async_finish run. Local. Raises NotSupportedError without GPUs."""
        if not torch.cuda.is_available():
            raise NotSupportedError("get_comm_stream: there is no GPU here, and the emulator has no streams")
        if self._own_stream is None:
            self._own_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        return self._own_stream

    # ---- Implementation ----------------------------------------------------------------------------------------------

    def _make(self, shape: Shape, tokens: int, like: Tensor) -> Engine:
        if like.is_cuda and torch.cuda.is_current_stream_capturing():
            raise NotSupportedError(
                "the first call of a shape makes memory together with the other ranks, which a CUDA graph cannot "
                "capture: make the same call once before the capture (or reserve())"
            )
        return self._members.make(shape, tokens)

    def _use(self, engine: Engine, like: Tensor) -> moe.Buffer:
        """The Buffer of an engine for a call with such a tensor. A captured engine must live on."""
        if like.is_cuda and torch.cuda.is_current_stream_capturing():
            self._members.keep(engine)
        return engine.buffer

    def _run(
        self,
        step: Callable[[], T],
        like: Tensor,
        previous_event: Before,
        async_finish: bool,
        given: tuple[Any, ...],
        read: tuple[Any, ...] = (),
        shape: Shape | None = None,
    ) -> tuple[T, EventOverlap]:
        """Runs ``step`` in the caller's stream, or with ``async_finish`` in the Buffer's own, after ``previous_event``
        or else after the caller's stream; returns its result and an event. ``given``: the caller's tensors and handles
        that it uses; ``read``: tensors made from them. ``shape``: that of the operation's engine."""
        before = event_of("previous_event", previous_event)
        flag("async_finish", async_finish)
        try:
            return self._in_stream(step, like, before, async_finish, given, read)
        except (PeerTimeout, RankFailed) as error:
            if shape is not None:
                self._members.report(shape, error)
            raise

    def _in_stream(
        self,
        step: Callable[[], T],
        like: Tensor,
        before: EventHandle | None,
        async_finish: bool,
        given: tuple[Any, ...],
        read: tuple[Any, ...],
    ) -> tuple[T, EventOverlap]:
        if not like.is_cuda:
            return step(), EventOverlap(EventHandle() if async_finish else None)
        if not async_finish:
            if before is not None:
                before.current_stream_wait()
            return step(), EventOverlap(None)
        caller, mine = torch.cuda.current_stream(), self.get_comm_stream()
        known = {tensor.untyped_storage().data_ptr() for tensor in _tensors(given)}
        fresh = [tensor for tensor in _tensors(read) if tensor.untyped_storage().data_ptr() not in known]
        if before is None or fresh:  # no event covers a copy just queued in the caller's stream
            mine.wait_stream(caller)
        with torch.cuda.stream(mine):
            if before is not None:
                before.current_stream_wait()
            result = step()
            event = EventHandle()
        # Memory allocated in one stream and used in the other must not be reused meanwhile. The event holds the
        # tensors; torch's allocator is informed if possible: during a capture it keeps them anyway.
        results = list(_tensors(result))
        if not torch.cuda.is_current_stream_capturing():
            for tensor in _tensors((given, fresh)):
                tensor.record_stream(mine)
            for tensor in results:
                tensor.record_stream(caller)
        return result, EventOverlap(event, (given, fresh, results))

    def _sum_weights(self, buffer: moe.Buffer, inner: DispatchHandle, weights: Tensor) -> Tensor:
        """float32 ``[received, k]`` to ``[T, k]``, over ranks in ascending order: each rank has separate columns, so
        that no sum is rounded."""
        columns = weights.new_zeros(weights.shape[0], self._members.size, weights.shape[1], dtype=torch.float32)
        columns[:, self._members.rank] = weights
        came = return_weights(buffer, inner, columns.flatten(1))
        return came.view(-1, self._members.size, weights.shape[1]).sum(1)

    def _require_experts(self, num_experts: int) -> int:
        number = at_least_one("num_experts", num_experts)
        if number % self._members.size:
            refuse("num_experts", num_experts, f"a multiple of the {self._members.size} ranks")
        return number

    def _require_usable(self) -> None:
        if self._is_destroyed:
            raise BufferClosedError("this Buffer was destroyed; make a new one")


def absent(sentence: str) -> Any:
    """A method of theirs that is not here: calling it raises NotSupportedError."""

    def refuse_call(*_: Any, **__: Any) -> NoReturn:
        raise NotSupportedError(sentence)

    return staticmethod(refuse_call)


def require_rows(name: str, value: Any, dimensions: int) -> Tensor:
    """The tensor without its gradient, checked to have so many dimensions."""
    tensor = require_tensor(name, value)
    if tensor.dim() != dimensions:
        refuse(name, value, f"a tensor with {dimensions} dimensions")
    return tensor.detach() if tensor.requires_grad else tensor


def require_ids(topk_idx: Any) -> Tensor:
    if require_rows("topk_idx", topk_idx, 2).dtype not in (torch.int32, torch.int64):
        refuse("topk_idx", topk_idx, "int64 or int32 [tokens, top_k]")
    ids: Tensor = topk_idx
    return ids


def read_payload(x: Any, *, packed: bool = False) -> tuple[Tensor, Rows, Callable[[Tensor], Tensor] | None]:
    """The rows of ``x``, the data for an engine, and the conversion of scales back to the caller's form. ``packed``:
    int32 scales are sent unchanged. Raises ArgumentError, and NotSupportedError for scales of other forms."""
    if isinstance(x, tuple) and len(x) != 2:
        refuse("x", x, "a tensor, or a pair: FP8 rows and their scales")
    rows, scales = x if isinstance(x, tuple) else (x, None)
    rows = require_rows("x", rows, 2)
    if scales is None:
        return rows, dense(rows), None
    if require_tensor("the scales of x", scales).dtype == torch.int32 and packed:
        return rows, (dense(rows), scales.contiguous()), lambda came: came
    require_groups(rows.shape[1], False)
    scales, back = spread_scales(scales, rows.shape[1])
    return rows, (dense(rows), scales), back


def read_bias(bias: Any) -> tuple[Tensor, ...] | None:
    """None, one tensor or a pair of them, converted for an engine."""
    given = () if bias is None else bias if isinstance(bias, tuple) else (bias,)
    return tuple(dense(require_rows("bias", one, 2)) for one in given) or None


def _tensors(tree: Any) -> Any:
    """All CUDA tensors in a nested result."""
    if isinstance(tree, Tensor):
        if tree.is_cuda:
            yield tree
    elif isinstance(tree, tuple | list):
        for part in tree:
            yield from _tensors(part)
    elif hasattr(tree, "topk_weights"):  # Received
        yield from _tensors((tree.x, tree.topk_idx, tree.topk_weights, tree.src_token))
        if tree.by_expert is not None:
            yield from _tensors((tree.by_expert.x, tree.by_expert.weights))
