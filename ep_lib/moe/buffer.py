"""`Buffer`: dispatch tokens to the ranks that hold their experts, and combine the experts' results."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import weakref
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any

import numpy as np

from ep_lib.errors import (
    ArgumentError,
    BufferClosedError,
    EpError,
    HandleError,
    PeerTimeout,
    RankFailed,
    RankMismatchError,
)
from ep_lib.jit.device_state import HEADER_BYTES
from ep_lib.memory.arrays import Array, ArrayInfo, describe, like
from ep_lib.moe.agreement import (
    FORM_SHIFT,
    NO_ROOM,
    WITH_WEIGHTS,
    Tag,
    content_of,
    name_ranks,
    require_same_content,
)
from ep_lib.moe.checks import InputChecks, require_flags
from ep_lib.moe.config import DEFAULT_SMS, VECTOR_BYTES, BufferConfig, make_config, most_sms
from ep_lib.moe.direct import DirectMode
from ep_lib.moe.handle import (
    Arrived,
    DispatchHandle,
    Received,
    give_number,
    make_record,
    refuse_other_rows,
    require_owner,
)
from ep_lib.moe.hierarchical.mode import HierarchicalMode, find_ranks_per_node
from ep_lib.moe.low_latency.memory import has_low_latency
from ep_lib.moe.low_latency.mode import LowLatencyCombined, LowLatencyDispatched, LowLatencyHandle, LowLatencyMode
from ep_lib.moe.mode import Arrivals, DispatchOptions, Mode, NormalMode, Payload
from ep_lib.moe.pcie.mode import PcieMode
from ep_lib.moe.regroup import Meetings
from ep_lib.require import flag, index, instance, names_its_arguments, refuse, several
from ep_lib.runtime.launcher import init
from ep_lib.runtime.rank import Rank

_HEAP_SPARE_BYTES = 1 << 20  # spare bytes of a heap for one Buffer, for rounding up its parts


@names_its_arguments
class Buffer:
    """Symmetric memory for expert parallelism, and the two operations on it: :meth:`dispatch` and :meth:`combine`;
    for decode batches :meth:`low_latency_dispatch` and :meth:`low_latency_combine`.

    Expert ``e`` is on rank ``e // (num_experts // world_size)``. Making a Buffer, its operations and :meth:`close` are
    collective: all ranks call them in the same order. Input is checked before sending; after a refused call
    (ArgumentError, HandleError) the Buffer stays usable, and the rank may call again with valid input while the others
    wait for it. After any other error, such as PeerTimeout, the ranks are out of step: make a new Buffer.

    A rank's death causes an error, never a wrong result: the others give up after the time limit, the operation's
    results are NaN (counts 0, ids -1), and the Buffer's next call raises PeerTimeout. The same holds for kernels that
    are queued behind it or replayed by a CUDA graph.

    The algorithm is DeepEP's normal mode with direct writes instead of bounce buffers: ``ep_lib/moe/direct``, files
    notify_dispatch, dispatch_bulk, copy_epilogue and combine_push. Kernels run in the caller's current stream (torch's
    if x is a torch tensor, CuPy's otherwise), or beside it with ``async_finish``.
    ``allow_nvlink_for_normal_mode=False`` is DeepEP's PCIe mode: all data between ranks goes through the NIC and bounce
    buffers, even inside a node. ``hierarchical=True`` is for several nodes. :mod:`ep_lib.reference` computes the same
    in NumPy.
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
        num_sms: int | None = None,
        allow_nvlink_for_normal_mode: bool = True,
        bounce_bytes: int | None = None,
        merge_sender_receiver: bool = False,
        num_max_dispatch_tokens_per_rank: int = 0,
        num_low_latency_sms: int | None = None,
        low_latency_mask_on_timeout: bool = False,
        on_fault: Callable[[EpError], None] | None = None,
        hierarchical: bool = False,
        ranks_per_node: int | None = None,
        receive_areas: int = 1,
    ) -> None:
        """Collective. ``hidden``: elements a token; a row must be a multiple of 16 bytes. ``max_tokens``: the most that
        any rank sends at once. ``dtype``: bfloat16 or float32 (name, NumPy or torch dtype). ``num_sms``: the blocks of
        a kernel, at most the GPU's SMs, or the rank's part of them (None: 24, or all if there are fewer).

        ``allow_nvlink_for_normal_mode=False``: PCIe mode, for up to 32 ranks. ``bounce_bytes``: of one ring (to one
        peer, in one channel), at least one token's packet; None: eight messages of about 64 KiB. A channel takes two of
        the ``num_sms`` blocks, one that sends and one that receives, or one that does both with
        ``merge_sender_receiver``.

        ``hierarchical=True``: for several nodes. A token crosses to another node once and is distributed there by loads
        and stores; its rows are summed there, and the sum crosses back once, in the Buffer's dtype
        (:func:`ep_lib.reference.combine` with ``ranks_per_node``). A node is ``ranks_per_node`` consecutive ranks;
        None: those that reach each other's memory, as the ranks of a host do. On a single node it changes nothing.

        ``receive_areas``: number of areas for arriving rows of dispatches (direct writes only). With more than one,
        ``recv.x`` (and its scales) stays in its receive area, in symmetric memory, which saves a copy within the GPU: a
        quarter to a third of the time. The caller owns it until the last tensor in that area is gone, or the Buffer is
        closed; then another dispatch may use the area. So ``receive_areas=3`` is for two results at the same time;
        further ones are copied, as all are with 1. torch's ``record_stream`` does not work here: make the dispatching
        stream wait for uses in other streams before the tensor is dropped. With 0, dispatches share the area for
        returning rows of a combine, which halves the memory. Combines, and dispatches by a handle, then begin with a
        barrier between the ranks (a few microseconds), and ``copy=False`` is not available.

        ``num_max_dispatch_tokens_per_rank``: low-latency mode, for so many tokens per rank (at most 1024); 0: none.
        Its kernels run on ``num_low_latency_sms`` blocks (None: on all SMs). If a rank does not respond, the next
        ``rank.synchronize()`` raises PeerTimeout; with ``low_latency_mask_on_timeout`` that rank is excluded instead.

        ``on_fault(error)`` is called once when a kernel of this rank gives up, even if the program only waits by
        ``torch.cuda.synchronize()``, which does not see it: on GPUs soon from a thread, or by the first call of this
        rank that finds it. It may set a flag or end the process; the next call raises the error as well.

        Raises ArgumentError; RankMismatchError when ranks pass different values; OutOfSymmetricMemory when the heap is
        too small for :meth:`symmetric_bytes`.
        """
        instance("rank", rank, Rank, "the Rank that main got")
        if on_fault is not None and not callable(on_fault):
            refuse("on_fault", on_fault, "None, or a function that takes the error")
        several_nodes = flag("hierarchical", hierarchical)
        num_sms = most_sms(rank.sm_count) if num_sms is None else num_sms
        self._config = make_config(
            rank.world_size,
            num_experts=num_experts,
            top_k=top_k,
            hidden=hidden,
            max_tokens=max_tokens,
            dtype=dtype,
            num_sms=num_sms,
            allow_nvlink_for_normal_mode=allow_nvlink_for_normal_mode,
            bounce_bytes=bounce_bytes,
            merge_sender_receiver=merge_sender_receiver,
            num_max_dispatch_tokens_per_rank=num_max_dispatch_tokens_per_rank,
            num_low_latency_sms=num_low_latency_sms,
            low_latency_mask_on_timeout=low_latency_mask_on_timeout,
            hierarchical=hierarchical,
            ranks_per_node=find_ranks_per_node(rank, ranks_per_node) if several_nodes else ranks_per_node,
            receive_areas=receive_areas,
        )
        low_latency = has_low_latency(self._config)
        if allow_nvlink_for_normal_mode and rank.sm_count is not None and num_sms > rank.sm_count:
            raise ArgumentError(
                f"num_sms is {num_sms}, and this GPU has {rank.sm_count} SMs for rank {rank.rank}: blocks that "
                "wait for each other must all run at once; pass fewer"
            )
        self._rank = rank
        self._mode: NormalMode = _mode_of(self._config)(rank, self._config)
        self._checks = InputChecks(self._config, self._mode.device)
        # A weak reference: a cycle would keep the heaps' address space until garbage collection.
        usable = weakref.WeakMethod(self._require_usable)
        self._low_latency = LowLatencyMode(rank, self._config, usable) if low_latency else None
        self._owner = object()  # in every handle
        self._closes_rank = False
        self._fault_word = rank._backend.fault_word
        self._modes: list[Mode] = [self._mode, *([] if self._low_latency is None else [self._low_latency])]
        self._broken = [mode.broken for mode in self._modes]  # set by kernels that failed during an operation
        self._stop_watching = None if on_fault is None else rank._backend.watch_faults(on_fault)
        self._arrived = Arrived() if rank._backend.sees_values else None
        self._unusable = ""  # the reason why the Buffer cannot be used any more, or ""
        self._last: tuple[str, int | None] = ("", None)  # the last operation's name, and its options
        self._masked: frozenset[int] = frozenset()
        self._meetings: Meetings | None = None  # made when ranks first mask others
        rank.buffers.add(self)
        self.key = give_number(self)

    @staticmethod
    def symmetric_bytes(
        world_size: int, *, dtype: Any = "bfloat16", num_sms: int = DEFAULT_SMS, **arguments: Any
    ) -> int:
        """Bytes of symmetric heap that ``Buffer(**arguments)`` allocates on every rank. Raises ArgumentError like
        Buffer.

        With direct writes, it is little more than ``receive_areas + 1`` areas of ``world_size * max_tokens`` rows each:
        those for arriving tokens of dispatches, and one for returning rows of combines. For 2 ranks with 4096 tokens of
        7168 in bfloat16 an area is 112 MiB.

        In PCIe mode it does not depend on ``max_tokens``; arriving rows are written to other memory. With ``P =
        world_size - 1`` peers, ``C = num_sms / 2`` channels (``num_sms`` if merged) and rings of ``S`` slots of ``B``
        bytes, ``S * B <= bounce_bytes``, it is, each summand rounded up to a multiple of 128::

            2 * C * P * S * B                       bounce buffers: the sender's staging, the receiver's slots
            8 * C * P * S + 8 * C * P               a signal a slot, a count of credits a ring
            4 * world_size * M + 16 * world_size    inbox and outbox of the exchanges of counts, twice, and signals
                M = 8 + 4 * (C + 1 + num_experts / world_size), rounded up to a multiple of 16

        In hierarchical mode (pass ``ranks_per_node``) it is one such area, for dispatched tokens and for rows to
        combine, and rings as in PCIe mode to one rank of each other node.

        Low-latency mode adds, for T = num_max_dispatch_tokens_per_rank, ``4 * world_size * T`` rows of bfloat16
        (dispatch and combine, a double buffer each), flags and packets.
        """
        try:
            config = make_config(world_size, dtype=dtype, num_sms=num_sms, **arguments)
        except TypeError as error:  # a missing or unknown name
            raise ArgumentError(f"symmetric_bytes() takes the arguments of Buffer: {error}") from error
        more = LowLatencyMode.memory_map(config)[1] if has_low_latency(config) else 0
        return _mode_of(config).memory_map(config)[1] + more

    @staticmethod
    def heap_bytes(world_size: int, **arguments: Any) -> int:
        """The size of a symmetric heap for exactly one ``Buffer(**arguments)``: ``heap_bytes`` of :func:`ep_lib.init`
        and :func:`ep_lib.spawn`. Raises the errors of :meth:`symmetric_bytes`."""
        return HEADER_BYTES + Buffer.symmetric_bytes(world_size, **arguments) + _HEAP_SPARE_BYTES

    @classmethod
    def open(
        cls,
        group: Any = None,
        *,
        backend: str | None = None,
        timeout: float | None = None,
        transport: str | None = None,
        **arguments: Any,
    ) -> Buffer:
        """Collective: a Buffer with its own rank and a symmetric heap of the right size, so that no heap_bytes are
        needed. ``group``, ``backend``, ``timeout`` and ``transport`` are those of :func:`ep_lib.init`, ``arguments``
        those of Buffer. :attr:`rank` is its rank; :meth:`close` closes it too.

        Raises the errors of init and Buffer.
        """
        sizes = {name: value for name, value in arguments.items() if name != "on_fault"}
        rank = init(
            backend,
            group=group,
            heap_bytes=lambda ranks: cls.heap_bytes(ranks, **sizes),
            timeout=timeout,
            transport=transport,
        )
        try:
            buffer = cls(rank, **arguments)
        except BaseException:
            rank.close()
            raise
        buffer._closes_rank = True
        return buffer

    @property
    def rank(self) -> Rank:
        """The rank of this Buffer."""
        return self._rank

    def dispatch(
        self,
        x: Any,
        topk_idx: Array | None = None,
        topk_weights: Array | None = None,
        *,
        handle: DispatchHandle | None = None,
        num_worst_tokens: int = 0,
        async_finish: bool = False,
        expert_alignment: int = 1,
        sorted_by_expert: bool = False,
        copy: bool = True,
        column_major_scales: bool = False,
        quantize: str | None = None,
    ) -> Received:
        """Collective: send every token to the ranks of its experts; returns the rows that arrived here.

        ``x``: ``[T, hidden]`` in the Buffer's dtype, T from 0 to max_tokens, any number on each rank. NaN and infinity
        pass through. Rows of few bits are a pair or a triple, of one form on all ranks, and recv.x has the same form:

        - FP8: ``(float8_e4m3fn [T, hidden], scales float32 [T, hidden / 128])``;
        - with direct writes, FP8 with UE8M0 scales, which are powers of two: uint8 (or float8_e8m0fnu) ``[T, hidden /
          128]``, or four of them in an int32, ``[T, hidden / 512, rounded up]``, as DeepGEMM reads them;
        - MXFP8: the same with ``[T, hidden / 32]`` scales, or ``[T, hidden / 128, rounded up]`` of four;
        - NVFP4: ``(uint8 [T, hidden / 2], float8_e4m3fn [T, hidden / 16])``, two numbers in a byte (torch's
          float4_e2m1fn_x2 viewed as uint8); and with a scale for each row, float32 ``[T]``, as third. A scale for the
          whole tensor is not sent.

        :func:`ep_lib.reference.quantize` defines and computes them. ``column_major_scales``: recv.x[1] (and that of
        recv.by_expert) is ``[N, columns]`` with contiguous columns, N rounded up to whole 16 bytes: the layout for
        DeepGEMM's FP8 kernels. Not for NVFP4.

        ``quantize``: x is bfloat16 (in a Buffer that carries it, with direct writes), and the sender casts each row:
        "fp8" (float32 scales for 128 elements), "ue8m0" (uint8 ones for 128), "mxfp8" or "nvfp4" (with a scale for each
        row). recv.x equals, bit for bit, the result for an x cast by :func:`ep_lib.reference.quantize`, and ranks may
        mix the two.

        ``topk_idx``: ``[T, top_k]`` int64 or int32, global expert ids, -1: not routed. An expert that a
        token names twice counts as two choices (in tokens_per_expert, and with both weights), but as one row.
        ``topk_weights``: ``[T, top_k]`` float32, all finite, or None; given on all ranks or on none. Arrays must be
        contiguous and on this rank's device.

        ``handle`` of an earlier dispatch sends other data with the same routing, which saves the counting and all
        waiting of the host: pass ``x`` with the same number of rows, and ``topk_weights`` to send new ones; topk_idx
        may be omitted and must not differ.

        Without a handle the host waits for the number of arriving rows, while these are being sent.

        ``num_worst_tokens``: results always have this many rows: at least as many as all ranks send, at most world_size
        * max_tokens; not used with a handle, which has the number. The host does not wait, so the call can be captured
        in a CUDA graph; errors in the input are raised by the next :meth:`ep_lib.Rank.synchronize`.
        ``expert_alignment``: tokens_per_expert are rounded up to multiples of it. ``async_finish``: runs beside the
        caller's stream; recv.event completes when the results are ready. ``copy=False``: recv.x (and its scales) is a
        view of the receive area, valid for work in the stream before the Buffer's next operation; it saves a copy
        within the GPU. ``sorted_by_expert``: recv.by_expert (:class:`ep_lib.moe.mode.ExpertRows`) has the rows grouped
        by expert as well, each group padded to expert_alignment, for a grouped GEMM; combine accepts rows in this
        order. They are copied directly from the receive area, so with ``copy=False`` recv.x itself costs nothing. A
        handle must be from such a dispatch.

        Raises ArgumentError and HandleError before sending; RankMismatchError if only some ranks gave weights or FP8,
        with and without a handle; HandleError also when ranks use handles of different dispatches; PeerTimeout if a
        rank does not come. With a handle the host does not wait for the GPU, and :meth:`synchronize` raises errors
        found there; so does the Buffer's next call, but then the ranks may be out of step.
        """
        self._require_usable()
        checks = self._checks
        payload = checks.payload(x, quantize)
        form = payload.form
        num_tokens = payload.x.shape[0]
        num_worst_tokens, expert_alignment = checks.options(
            num_worst_tokens,
            expert_alignment,
            sorted_by_expert,
            async_finish,
            copy,
            column_major_scales,
            form,
        )
        # Whether the host looks at values: where it need not wait for the GPU anyway, that would make it wait.
        look = not self._mode.checks_values or (handle is not None and self._mode.waits(async_finish=False))
        experts = None if topk_idx is None else checks.topk_idx(topk_idx, num_tokens, values=look)
        weights = None if topk_weights is None else checks.topk_weights(topk_weights, num_tokens, values=look)
        if handle is not None:
            self._require_own(handle)
            if num_tokens != handle.num_tokens:
                raise HandleError(f"x has {num_tokens} rows; this handle's dispatch sent {handle.num_tokens}")
            if sorted_by_expert and handle._by_expert is None:
                raise HandleError("sorted_by_expert takes the handle of a dispatch that had it as well")
            if experts is not None and bool((checks.view(experts) != handle._routing.topk_idx).any()):
                raise HandleError("topk_idx differs from that of the handle's dispatch; dispatch without a handle")
            index = describe(handle._recv_topk_idx)
        elif experts is None:
            raise ArgumentError("dispatch needs topk_idx, or the handle of an earlier dispatch")
        else:
            index = experts
        options = DispatchOptions(
            index, num_worst_tokens, expert_alignment, async_finish, copy, sorted_by_expert, column_major_scales
        )
        content = (0 if weights is None else WITH_WEIGHTS) | (0 if form is None else form.code << FORM_SHIFT)
        with _Operation(self):
            if handle is None:
                handle, arrivals = self._dispatch_new(payload, index, weights, content, options)
            else:
                tag = Tag(handle._epoch, content).number
                by_expert = handle._by_expert if sorted_by_expert else None
                again = self._mode.dispatch_again(
                    payload, weights, handle._routing, handle.num_recv_tokens, tag, options, by_expert
                )
                self._expect_agreement("dispatch with handles of different dispatches", content, async_finish)
                assert again is not None
                arrivals = again
            return self._received(handle, arrivals, options, (x, topk_idx, topk_weights))

    def decline_dispatch(self) -> None:
        """Collective with the other ranks' :meth:`dispatch` (without handle and num_worst_tokens), for a rank whose
        tokens do not fit in max_tokens. Raises NoRoomError (a RankMismatchError) on all ranks, which may then make a
        larger Buffer together, or continue with this one."""
        self._require_usable()
        config, kind = self._config, describe(self._rank.empty(0, np.int32)).kind
        empty = functools.partial(self._rank._backend.empty, kind)
        experts, rows = empty((0, config.top_k), np.dtype(np.int64)), empty((0, config.hidden), config.dtype)
        with _Operation(self):
            self._dispatch_new(Payload(rows, None), experts, None, NO_ROOM, DispatchOptions(experts))

    def combine(
        self,
        x: Any,
        handle: DispatchHandle,
        topk_weights: Array | None = None,
        *,
        bias: Any = None,
        async_finish: bool = False,
        sorted_by_expert: bool = False,
        quantize: str | None = None,
        sum_order: str = "ranks",
    ) -> Any:
        """Collective: bring rows back and add up; returns ``[handle.num_tokens, hidden]`` in the Buffer's dtype.

        ``x``: ``[handle.num_recv_tokens, hidden]``, this rank's experts' results for the rows of that dispatch, in the
        same order; or fewer columns (whole vectors of 16 bytes, as many on all ranks), and the result is as narrow. A
        token's result is the sum of its rows over its ranks, in ascending order of ranks, in float32, rounded once;
        zeros if it went nowhere. ``topk_weights``, ``[num_tokens, top_k]`` float32, all finite, of this rank's own
        tokens: each row is first multiplied by the token's weight on that rank, which is the float32 sum of the weights
        of its experts there, in the order of k. Without them (the default) rows are added unweighted: right if the
        experts have already multiplied by ``recv.topk_weights``. ``bias``: ``[num_tokens, hidden]`` of this rank's own
        tokens, or a pair of such: the sum begins with them. Bitwise equal in every run.

        ``sorted_by_expert``: x ``[M, hidden]`` are the experts' results for recv.by_expert.x, in the same order; a
        received row's choices are summed first, in the order of k, in float32, rounded once. Multiply by
        recv.by_expert.weights yourself, for example in the GEMM's epilogue: topk_weights cannot be given here. On all
        ranks or on none.
        :meth:`combine_input` is memory from which rows need no copy.

        ``quantize="ue8m0"``: rows between ranks are sent as FP8, with a power of two as the scale of each 128 elements:
        about half the bytes. They are still summed in float32. It changes an element ``y`` of such a row by at most
        ``max(|y| / 16, a / 2**17)``, ``a`` being the largest magnitude of its 128; rows that stay on their rank do not
        change (:func:`ep_lib.reference.combine`, bit for bit). For direct writes, bfloat16 and widths that are a
        multiple of 128; on all ranks or on none; not with sorted_by_expert or combine_input.

        ``sum_order="choices"``: a token's rows are added in the order in which its ranks' last choices stand in its
        topk_idx, as DeepEP V2 adds them, and not in ascending order of ranks. Of this rank's own tokens alone, so ranks
        may differ. For direct writes, and where a token goes to 32 ranks at most.

        ``async_finish``: runs beside the caller's stream, and an :class:`ep_lib.moe.event.Event` is also returned:
        ``(out, event)``.

        Raises ArgumentError and HandleError before anything is sent; HandleError also when ranks use handles of
        different dispatches; PeerTimeout if a rank does not come. On GPUs these two are raised by :meth:`synchronize`,
        as in dispatch, and weights are not checked for being finite.
        """
        self._require_usable()
        self._require_own(handle)
        require_flags(sorted_by_expert=sorted_by_expert, async_finish=async_finish)
        info = self._checks.rows("x", x, None, narrow=not sorted_by_expert)
        width, weights = info.shape[1], None
        by_expert = self._checks.expert_rows(handle, topk_weights) if sorted_by_expert else None
        expected = handle.num_recv_tokens if by_expert is None else len(by_expert.row)
        if info.shape[0] != expected:
            raise HandleError(f"x has {info.shape[0]} rows; this handle's dispatch received {expected}")
        if self._arrived is not None and (other := self._arrived.handle_of(info, handle)) not in (None, handle):
            self._require_same_rows(handle, other)
        if topk_weights is not None:
            weights = self._checks.topk_weights(
                topk_weights, handle.num_tokens, values=self._mode.waits(async_finish=False)
            )
        biases = self._checks.bias(bias, handle.num_tokens, width)
        by_choice = self._checks.sum_order(sum_order)
        as_fp8 = quantize is not None and self._checks.as_fp8(
            quantize, info, self._mode.is_combine_input(info), sorted_by_expert
        )
        narrow = 0 if width == self._config.hidden else width * self._config.dtype.itemsize // VECTOR_BYTES
        with _Operation(self):
            out = self._mode.combine(
                info,
                weights,
                handle._routing,
                Tag(handle._epoch, row_vectors=narrow),
                bias=biases,
                async_finish=async_finish,
                by_expert=by_expert,
                as_fp8=as_fp8,
                by_choice=by_choice,
            )
            what = (
                "handles of different dispatches, rows of different widths, or combine_input, sorted_by_expert or "
                "quantize on some ranks only"
            )
            self._expect_agreement(f"combine {what}", None, async_finish)
        return (out, self._mode.finished(x, (x, topk_weights, bias, out))) if async_finish else out

    def combine_input(self, handle: DispatchHandle, like: Array) -> Array:
        """An array for experts' results that :meth:`combine` sends back: ``[handle.num_recv_tokens, hidden]`` in the
        Buffer's dtype, as an array of the kind of ``like``, in symmetric memory.

        If it is passed to combine (by all ranks or none), the tokens' ranks read rows from there, which few SMs can do
        at full speed. Rows in other memory are sent, which takes 16 SMs or more; with fewer, all SMs first copy them
        here. It may be written after the Buffer's last operation, in stream order, until that combine; its contents are
        undefined afterwards. A rank that has written there must pass it: a combine of other rows uses the same memory.
        """
        self._require_usable()
        self._require_own(handle)
        return self._mode.combine_input(like, handle.num_recv_tokens)

    # ---- Low-latency mode: decode batches, with DeepEP's names -------------------------------------------------------

    def low_latency_dispatch(
        self,
        x: Array,
        topk_idx: Array,
        use_fp8: bool = True,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        topk_weights: Array | None = None,
        column_major_scales: bool = False,
        recv_totals: Array | None = None,
    ) -> LowLatencyDispatched:
        """Collective: send a decode batch to its experts, in one kernel and without waiting of the host.

        ``x``: ``[T, hidden]`` bfloat16, T from 0 to ``num_max_dispatch_tokens_per_rank``, any number on each rank.
        ``topk_idx``: ``[T, top_k]`` int64 or int32, global expert ids, -1: not routed. On GPUs the kernels check the
        values: for an invalid id the next call or ``rank.synchronize()`` raises ArgumentError, the results are NaN, and
        a new Buffer is needed.

        ``recv_x``: for each of this rank's experts, its rows packed from the front, sorted by source rank, then token,
        equal on every run; ``recv_count``: their number; rows behind them are undefined. C, the capacity of each
        expert, is ``world_size * num_max_dispatch_tokens_per_rank``. With ``use_fp8`` the sender casts the rows, and
        recv_x is ``(float8_e4m3fn [E, C, hidden], float32 scales [E, C, hidden / 128])``
        (:func:`ep_lib.reference.quantize_fp8`). An expert that a token names twice gets it once. The caller owns the
        arrays; later operations do not change them. ``use_fp8`` must be equal on all ranks: it is not compared, and
        rows of the other form would be misread.

        ``topk_weights``, ``[T, top_k]`` float32: they are sent with the ids, and the combine then needs none (None
        there), which saves an exchange between ranks. On all ranks or on none.

        ``column_major_scales``: the scales' last two dimensions are column-major in memory, for DeepGEMM; the shape is
        the same. ``recv_totals``, int32 ``[E]``: the kernel adds recv_count to it.

        ``return_recv_hook``: launch only the sending kernel. ``hook()`` launches the one that fills the arrays; until
        then the caller's stream is free for other work, without a kernel of ours on the GPU. Up to two dispatches may
        wait for their hooks, which are called in order. ``async_finish``: run in the Buffer's own stream; the caller's
        waits by ``event.current_stream_wait()``. Not both. Hook and event are None if not requested.

        Can be captured in a CUDA graph (warm up once before: the first call compiles). Raises ArgumentError and
        HandleError before sending; the next ``rank.synchronize()`` raises errors of the device (PeerTimeout).
        """
        mode = self._low_latency_mode()
        require_flags(
            use_fp8=use_fp8,
            async_finish=async_finish,
            return_recv_hook=return_recv_hook,
            column_major_scales=column_major_scales,
        )
        return mode.dispatch(
            x, topk_idx, use_fp8, async_finish, return_recv_hook, topk_weights, column_major_scales, recv_totals
        )

    def low_latency_combine(
        self,
        x: Array,
        topk_idx: Array,
        topk_weights: Array | None,
        handle: LowLatencyHandle,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: Array | None = None,
    ) -> LowLatencyCombined:
        """Collective: send the experts' results for a dispatch's rows back, and sum them with their weights.

        ``x``: ``[experts_per_rank, C, hidden]`` bfloat16, rows at the places of recv_x; other rows are never read.
        ``topk_idx``: this rank's argument of the dispatch. A token's choices may be in another order; other choices are
        refused, also -1 for one of them: use the weight 0 instead. ``topk_weights``: ``[T, top_k]`` float32, in the
        order of this topk_idx; None: the dispatch's weights, in the order of its topk_idx. On all ranks or on none. On
        GPUs, where the host does not check values, the kernel compares the ids, and the next call or
        ``rank.synchronize()`` raises ArgumentError, as for the dispatch. ``out``: ``[T, hidden]`` bfloat16 to write to,
        or None: a new array.

        The rank of the experts adds weight times row over a token's choices there, in the dispatch's order of k, in
        float32, and sends that sum rounded to bfloat16, one row for a token and rank. The token's rank adds these in
        ascending order of ranks in float32 and rounds once more: :func:`ep_lib.reference.low_latency_combine`. Equal
        bits on every run.

        ``zero_copy``: the experts have written the rows to :meth:`get_next_low_latency_combine_buffer` of this handle,
        and x only gives the shape, as in DeepEP. (x is never copied without it either.) The rest is as in
        :meth:`low_latency_dispatch`.
        """
        mode = self._low_latency_mode()
        require_flags(zero_copy=zero_copy, async_finish=async_finish, return_recv_hook=return_recv_hook)
        return mode.combine(x, topk_idx, topk_weights, handle, zero_copy, async_finish, return_recv_hook, out)

    def get_next_low_latency_combine_buffer(self, handle: LowLatencyHandle) -> Array:
        """An array ``[experts_per_rank, C, hidden]`` bfloat16 for the experts' results on this rank: the same one for
        every call with this handle; a combine with ``zero_copy=True`` reads it. It exists for DeepEP's sake: combine
        reads x in place, so any other array of that shape is as fast."""
        return self._low_latency_mode().empty_expert_rows(handle)

    def low_latency_update_mask_buffer(self, rank: int, mask: bool = False) -> None:
        """``mask=True``: exclude another rank from later low-latency operations. No data is sent to it or expected from
        it, it counts as having no tokens, and its experts add nothing. For a dead rank. ``mask=False``, the default as
        in DeepEP: include it again; it must have called as many operations as this rank. Waits for this rank's
        kernels."""
        self._low_latency_mode().update_mask(rank, mask)

    def low_latency_query_mask_buffer(self, out: Array | None = None) -> Array:
        """The excluded ranks, by :meth:`low_latency_update_mask_buffer` or because they did not respond (with
        ``low_latency_mask_on_timeout``): NumPy int32 ``[world_size]``, 1 or 0. Waits for this rank's kernels.

        ``out``, an int32 array of that shape on this rank's device, is filled and returned instead, without waiting.
        """
        mask = self._low_latency_mode().mask
        if out is None:
            return self._rank.to_host(mask).astype(np.int32)
        info = describe(out)
        if info.dtype != np.int32 or info.shape != (self._config.world_size,):
            raise ArgumentError(f"out is {info.dtype.name} {info.shape}; it must be int32 ({self._config.world_size},)")
        out[...] = like(info.kind, mask.view(np.int32))
        return out

    def low_latency_clean_mask_buffer(self) -> None:
        """Include all ranks again, as :meth:`low_latency_update_mask_buffer` does for one."""
        for rank in np.flatnonzero(self.low_latency_query_mask_buffer()):
            self.low_latency_update_mask_buffer(int(rank))

    # ---- Both modes ------------------------------------------------------------------------------------------------

    def mask_ranks(self, ranks: Iterable[int]) -> None:
        """Continue without ``ranks``, which are dead or do other work: no data is sent to them or expected from them.

        Collective among the remaining ranks: each passes the same ranks, also after an operation failed because of them
        (PeerTimeout, RankFailed), and this Buffer works again after that. A masked rank counts as having no tokens.
        Choices of its experts are dropped, as with expert id -1, and :meth:`dropped` lists them; the weights of a
        token's other choices are unchanged. Earlier handles become invalid. The host's collectives (``rank.barrier()``,
        ``rank.all_gather()``, a new Buffer) still need every rank.

        A masked rank must not be in an operation of this Buffer: one that was only slow would still write to the
        others' memory. End such a process first.

        Raises PeerTimeout if one of the others does not come (mask it, too), or passes other ranks; ArgumentError in
        PCIe and hierarchical mode, which have no masks.
        """
        gone = self._rank_numbers("mask_ranks", ranks)
        if self._rank.rank in gone:
            raise ArgumentError(f"rank {self._rank.rank} cannot mask itself: the masks are about the other ranks")
        self._rank._backend.leave_out(gone)
        self._regroup(self._masked | gone)

    def connect_ranks(self, ranks: Iterable[int], *, masked: Iterable[int] = ()) -> None:
        """Include masked ``ranks`` again, or new processes in their place (:func:`ep_lib.rejoin`).

        Collective among all that take part afterwards: those that have masked ``ranks``, and ``ranks`` themselves,
        which name the others that stay ``masked``. All start again: earlier handles become invalid.

        Raises PeerTimeout if a rank does not come, or names others; RankMismatchError if a new process has made other
        Buffers; ArgumentError in PCIe and hierarchical mode.
        """
        back, stay = (self._rank_numbers("connect_ranks", numbers) for numbers in (ranks, masked))
        if self._rank.rank in stay or back & stay:
            raise ArgumentError(f"connect_ranks({sorted(back)}, masked={sorted(stay)}): a rank cannot be in both")
        if self._rank.rank in back:
            self._rank._backend.take_back(back)
            self._regroup(stay)
            return
        if stay or back - self._masked:
            raise ArgumentError(
                f"connect_ranks({sorted(back)}{f', masked={sorted(stay)}' if stay else ''}): rank {self._rank.rank} "
                f"has masked {name_ranks(sorted(self._masked)) if self._masked else 'no rank'}; pass ranks that it has "
                "masked (masked= is for the ranks that come back)"
            )
        self._rank._backend.take_back(back)
        self._regroup(self._masked - back)

    @property
    def masked_ranks(self) -> tuple[int, ...]:
        """The ranks that :meth:`mask_ranks` has excluded, in ascending order."""
        return tuple(sorted(self._masked))

    def dropped(self, topk_idx: Array) -> Array:
        """The choices that a dispatch does not send, because their experts are on masked ranks: bool, the shape and
        kind of array of ``topk_idx``."""
        home = topk_idx // self._config.experts_per_rank
        lost = home != home
        for rank in self._masked:
            lost = lost | (home == rank)
        return lost

    def synchronize(self) -> None:
        """Wait on the host for all operations of this Buffer, and raise their errors: PeerTimeout, RankMismatchError,
        HandleError. After the latter two the Buffer stays usable, if all ranks call this."""
        self._require_usable()
        self._rank.synchronize()
        self._require_agreement()

    @property
    def config(self) -> BufferConfig:
        """The arguments of this Buffer, checked."""
        return self._config

    def close(self) -> None:
        """Free the symmetric memory. All ranks must call it; calling it twice does no harm. After a fault it does not
        wait for other ranks; ``rank.synchronize()`` or ``rank.close()`` raises pending errors."""
        if not self._unusable.startswith("it was closed"):
            is_whole = not self._rank.is_closed and not self._rank._backend.gave_up
            orderly = not self._unusable and is_whole and not self._has_fault()
            self._unusable = "it was closed"
            if self._stop_watching is not None:
                self._stop_watching()
            for mode in reversed(self._modes):
                mode.close(orderly)
            if self._closes_rank:
                self._rank.close()

    def __enter__(self) -> Buffer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._unusable = self._unusable or f"its block ended by {type(error).__name__}"
        self.close()

    def __repr__(self) -> str:
        c = self._config
        state = f", unusable: {self._unusable}" if self._unusable else ""
        return (
            f"Buffer(rank {self._rank.rank} of {c.world_size}, num_experts={c.num_experts}, top_k={c.top_k}, "
            f"hidden={c.hidden}, max_tokens={c.max_tokens}, dtype={c.dtype.name}{state})"
        )

    # Implementation

    def _make_meetings(self) -> Meetings:
        """Raises ArgumentError in modes that have none."""
        places = [mode.meeting_place for mode in self._modes]
        heap = self._rank._backend.heap_address(self._rank.rank)
        said = repr((asdict(self._config), [place - heap for place in places])).encode()
        return Meetings(self._rank, places[0], int.from_bytes(hashlib.sha256(said).digest()[:8], "little"))

    def _regroup(self, masked: frozenset[int]) -> None:
        """Collective among the ranks that are not ``masked``: all start again after any failure."""
        assert self._meetings is not None
        with contextlib.suppress(PeerTimeout, RankFailed):  # the earlier operation's error was already reported
            self._rank.synchronize()
        self._unusable = "mask_ranks or connect_ranks did not finish; call it again"

        def begin_anew() -> None:
            for mode in self._modes:
                mode.begin_anew(masked)

        self._meetings.regroup(masked, begin_anew)
        self._masked, self._owner, self._last, self._unusable = masked, object(), ("", None), ""

    def _rank_numbers(self, what: str, ranks: Iterable[int]) -> frozenset[int]:
        """The checked rank numbers. Raises ArgumentError and BufferClosedError."""
        if self._rank.is_closed or self._unusable.startswith("it was closed"):
            self._require_usable()
        self._meetings = self._meetings or self._make_meetings()
        numbers = [index(r) for r in several(what, ranks, "a list of ranks")]
        if any(r is None or not 0 <= r < self._rank.world_size for r in numbers):
            refuse(what, list(ranks), f"ranks from 0 to {self._rank.world_size - 1}")
        return frozenset(r for r in numbers if r is not None)

    def _dispatch_new(
        self,
        payload: Payload,
        experts: ArrayInfo,
        weights: ArrayInfo | None,
        content: int,
        options: DispatchOptions,
    ) -> tuple[DispatchHandle, Arrivals]:
        """Count, exchange counts with all ranks, send; then build the handle from the counts."""
        routing, plan, arrivals = self._mode.dispatch(payload, experts, weights, content, options)
        if plan.contents is not None and (content == NO_ROOM or plan.contents.count(content) < len(plan.contents)):
            require_same_content(plan.contents, self._checks.form_names)
        assert arrivals is not None
        handle = make_record(
            DispatchHandle,
            num_tokens=payload.x.shape[0],
            num_recv_tokens=options.num_worst_tokens or sum(plan.received.tolist()),
            recv_tokens_per_rank=plan.received,
            tokens_per_expert=plan.tokens_per_expert,
            _owner=self._owner,
            _epoch=self._mode.epoch,
            _routing=routing,
            _recv_topk_idx=arrivals.topk,
            _recv_src_rank=arrivals.src_rank,
            _recv_src_token=arrivals.src_token,
            _counts_on_device=plan.contents is None,
            _by_expert=None if arrivals.by_expert is None else replace(arrivals.by_expert, x=None),
        )
        return handle, arrivals

    def _received(
        self, handle: DispatchHandle, arrivals: Arrivals, options: DispatchOptions, keep: tuple[Any, ...]
    ) -> Received:
        """The result of a dispatch for the caller."""
        tokens, alignment = handle.tokens_per_expert, options.expert_alignment
        if not handle._counts_on_device:
            tokens = tokens.copy() if alignment == 1 else -(-tokens // alignment) * alignment
        if self._arrived is not None:
            self._arrived.remember(arrivals.x, handle)
        return make_record(
            Received,
            x=arrivals.x if arrivals.scales is None else arrivals.rows,
            topk_idx=handle._recv_topk_idx,
            topk_weights=arrivals.weights,
            tokens_per_expert=tokens,
            src_rank=handle._recv_src_rank,
            src_token=handle._recv_src_token,
            handle=handle,
            by_expert=arrivals.by_expert,
            event=self._mode.finished(arrivals.x, (*keep, arrivals)) if options.async_finish else None,
        )

    def _require_usable(self) -> None:
        if not self._unusable:
            if self._rank._is_closed or os.getpid() != self._rank._process:  # Rank.is_closed, inlined
                self._unusable = f"rank {self._rank.rank} was closed"
            else:
                for word in self._broken:
                    if word[0]:
                        self._unusable = "an operation on it failed, so the ranks may be out of step"
                if self._fault_word[0]:
                    self._rank._backend.raise_fault()
        if self._unusable:
            raise BufferClosedError(f"this Buffer cannot be used: {self._unusable}; make a new one")

    def _others(self) -> int:
        """The number of further Buffers that this rank could use."""
        return sum(not other._unusable for other in self._rank.buffers if other is not self)

    def _has_fault(self) -> bool:
        return bool(self._fault_word[0]) or any(word[0] for word in self._broken)

    def _low_latency_mode(self) -> LowLatencyMode:
        self._require_usable()
        if self._low_latency is None:
            raise ArgumentError(
                "this Buffer has no low-latency mode: make it with num_max_dispatch_tokens_per_rank=128, say (the most "
                "tokens a rank sends at once, up to 1024)"
            )
        return self._low_latency

    def _require_own(self, handle: Any) -> None:
        if not isinstance(handle, DispatchHandle):
            raise HandleError(f"handle is a {type(handle).__name__}; it must be recv.handle of a dispatch")
        if handle._owner is not self._owner:
            require_owner(handle, self._owner)

    def _require_same_rows(self, handle: DispatchHandle, other: DispatchHandle) -> None:
        """Rows of another dispatch may be combined by a handle if they came from the same tokens."""
        self._rank.synchronize()
        for name in ("_recv_src_rank", "_recv_src_token"):
            if bool((getattr(handle, name) != getattr(other, name)).any()):
                refuse_other_rows("dispatch")

    def _expect_agreement(self, what: str, content: int | None, async_finish: bool) -> None:
        """Notes what the ranks must agree on, and checks it now if the call waits for the operation."""
        self._last = (what, content)
        if self._mode.waits(async_finish):
            self._require_agreement()

    def _require_agreement(self) -> None:
        """Raises RankMismatchError for different content, HandleError for other tags, as far as known."""
        what, content = self._last
        others = self._mode.mismatched_ranks()
        if not others:
            return
        if content is not None:  # combine has none
            theirs = dict(others)
            contents = [content ^ content_of(theirs.get(r, 0)) for r in range(self._rank.world_size)]
            require_same_content(contents, self._checks.form_names)
        ranks = name_ranks([r for r, _ in others])
        raise HandleError(f"rank {self._rank.rank} and {ranks} {what}; all ranks must pass the same")


def _mode_of(config: BufferConfig) -> type[DirectMode] | type[PcieMode] | type[HierarchicalMode]:
    if config.is_direct:
        return DirectMode
    return PcieMode if config.ranks_per_node is None else HierarchicalMode


class _Operation:
    """The context of one collective operation of a Buffer. (A generator would take three times as long.)"""

    __slots__ = ("_buffer",)

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer

    def __enter__(self) -> None:
        """Raises errors of an earlier operation."""
        buffer = self._buffer
        if not buffer._mode.waits(async_finish=True):
            try:
                buffer._require_agreement()
            except (HandleError, RankMismatchError):
                buffer._unusable = "the ranks passed different handles or options to an earlier operation"
                raise
        buffer._mode.epoch += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Errors that all ranks see together leave the Buffer usable, others do not."""
        if error is None or isinstance(error, (HandleError, RankMismatchError)):
            return
        if isinstance(error, ArgumentError):  # found on the GPU before it signalled other ranks
            self._buffer._mode.epoch -= 1
            return
        if isinstance(error, PeerTimeout) and (others := self._buffer._others()):
            error.add_note(
                f"Rank {error.rank} has {others} more Buffer{'s' if others > 1 else ''}, and a rank that waits in "
                "another Buffer does not come to this one: use them in the same order on all ranks."
            )
        name = type(error).__name__
        self._buffer._unusable = f"an operation on it failed ({name}), so the ranks may be out of step"
