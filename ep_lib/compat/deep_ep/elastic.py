"""``ElasticBuffer``: DeepEP V2's class, its arguments, results and order of calls, over :class:`ep_lib.Buffer`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import ep_lib.moe.buffer as moe
from ep_lib.compat.deep_ep.engines import Shape, members_of
from ep_lib.compat.deep_ep.events import EventHandle, EventOverlap, event_of
from ep_lib.compat.deep_ep.face import Before, Face, Rows, absent, read_bias, read_payload, require_ids, require_rows
from ep_lib.compat.deep_ep.handles import EPHandle, require_handle
from ep_lib.errors import ArgumentError, NotSupportedError
from ep_lib.moe.autograd import dense, require_tensor
from ep_lib.moe.config import most_sms, parse_dtype
from ep_lib.require import at_least_one, flag, refuse, whole_number

Dispatched = tuple[Rows, Tensor | None, Tensor | None, EPHandle, EventOverlap]
Combined = tuple[Tensor, Tensor | None, EventOverlap]

_ALIGNMENT_BYTES = 2 << 20  # of DeepEP's sizes
_HINTED_TOP_K = 8  # if none is known
_EMULATED_SMS = 4  # DeepEP's fewest
_ONLY = "ep_lib's ElasticBuffer has dispatch and combine only"
_QUEUE_PAIRS = {True: 129, False: 17}  # that DeepEP allocates, by allow_hybrid_mode


class ElasticBuffer(Face):
    """Expert-parallel communication with DeepEP V2's calls. Every call is collective, unless marked as local.

    As in :class:`ep_lib.compat.deep_ep.Buffer`, the first call that needs memory allocates it: for the experts, top-k,
    hidden, dtype and num_sms of that call, and for ``num_max_tokens_per_rank`` tokens of every rank. Tensors on a CPU
    run on the emulator. Errors are those of ep_lib (:mod:`ep_lib.errors`).
    """

    def __init__(
        self,
        group: Any,
        num_bytes: int | None = None,
        num_cpu_bytes: int = 0,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int = 3,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: int = 300,
        num_gpu_timeout_secs: int = 100,
        explicitly_destroy: bool = False,
    ) -> None:
        """``group``: any process group of torch.distributed, gloo or nccl, of all processes or of some, also one that
        torch's world does not know; or an ep_lib.Rank. ``num_max_tokens_per_rank``: the default of calls.

        ``num_bytes``: kept for programs that read it; the default is :meth:`get_buffer_size_hint`'s value; it allocates
        nothing.

        DeepEP's other options have no effect here: results are always equal on every run (``deterministic``); kernels
        are no faster on more SMs (``prefer_overlap_with_compute``); :class:`ep_lib.Buffer` chooses the path to other
        nodes (``allow_hybrid_mode``, ``sl_idx``, ``num_allocated_qps``); EP_LIB_TIMEOUT_S limits waits
        (``num_cpu_timeout_secs``, ``num_gpu_timeout_secs``).
        ``allow_multiple_reduction=False`` changes nothing: a rank sums its experts' results for a token in float32 and
        rounds, and the ranks' sums are summed in float32 and rounded (DeepEP then rounds once, in a combine of
        ``do_expand`` rows).

        Raises ArgumentError; NotSupportedError for ``num_cpu_bytes``.
        """
        if whole_number("num_cpu_bytes", num_cpu_bytes, 0, 1 << 62):
            raise NotSupportedError("num_cpu_bytes: memory of hosts is Engram's, which is absent here; leave it out")
        flag("use_fp8_dispatch", use_fp8_dispatch)
        self.deterministic = flag("deterministic", deterministic)
        self.allow_hybrid_mode = flag("allow_hybrid_mode", allow_hybrid_mode)
        self.allow_multiple_reduction = flag("allow_multiple_reduction", allow_multiple_reduction)
        self.prefer_overlap_with_compute = flag("prefer_overlap_with_compute", prefer_overlap_with_compute)
        for name, value in {
            "sl_idx": sl_idx,
            "num_cpu_timeout_secs": num_cpu_timeout_secs,
            "num_gpu_timeout_secs": num_gpu_timeout_secs,
        }.items():
            whole_number(name, value, 0, 2**31 - 1)
        allocated = whole_number("num_allocated_qps", num_allocated_qps, 0, 2**31 - 1)
        self.num_allocated_qps = allocated or _QUEUE_PAIRS[self.allow_hybrid_mode]
        self.num_max_tokens_per_rank = whole_number("num_max_tokens_per_rank", num_max_tokens_per_rank, 0, 2**31 - 1)
        if num_bytes is None:
            num_bytes = self.get_buffer_size_hint(group, num_max_tokens_per_rank, hidden, num_topk)
        self.num_bytes = whole_number("num_bytes", num_bytes, 1, 1 << 62)
        super().__init__(group, explicitly_destroy)
        self.rank_idx, self.num_ranks = self._members.rank, self._members.size
        self.num_scaleout_ranks, self.num_scaleup_ranks = self.get_logical_domain_size()
        self.scaleout_rank_idx, self.scaleup_rank_idx = divmod(self.rank_idx, self.num_scaleup_ranks)
        self.num_rdma_ranks, self.num_nvlink_ranks = self.get_physical_domain_size()

    def destroy(self) -> None:
        """Collective: as :meth:`ep_lib.compat.deep_ep.Buffer.destroy`; a second call does nothing."""
        if not self._is_destroyed:
            super().destroy()

    @staticmethod
    def get_buffer_size_hint(
        group: Any,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
    ) -> int:
        """Bytes that such dispatches allocate here, a multiple of 2 MiB, for ``num_topk`` (0: 8) experts of a token;
        FP8 rows count as bfloat16. Collective if ``group`` has no Buffer yet. Raises ArgumentError."""
        tokens = at_least_one("num_max_tokens_per_rank", num_max_tokens_per_rank)
        hidden, ranks = at_least_one("hidden", hidden), members_of(group).size
        top_k = whole_number("num_topk", num_topk, 0, 2**31 - 1) or _HINTED_TOP_K
        shape = Shape("", ranks * top_k, top_k, hidden, "bfloat16", most_sms(None))
        nbytes = moe.Buffer.symmetric_bytes(ranks, **shape.arguments(tokens, None))
        return -(-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES

    @staticmethod
    def capture() -> EventHandle:
        """An event in torch's current stream. Local."""
        return EventHandle()

    def barrier(self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True) -> None:
        """Return when all ranks are here and this rank's earlier GPU work is done: stronger than DeepEP's, which the
        host does not wait for."""
        self._require_usable()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._members.all_gather(None, "barrier()")

    def get_physical_domain_size(self) -> tuple[int, int]:
        """``(nodes, ranks of each)``. Local."""
        return get_physical_domain_size(self.group)

    def get_logical_domain_size(self) -> tuple[int, int]:
        """The same; with ``allow_hybrid_mode=False`` all ranks count as one node. Local."""
        return get_logical_domain_size(self.group, self.allow_hybrid_mode)

    def get_theoretical_num_sms(
        self,
        num_experts: int,
        num_topk: int,
        num_scaleout_topk: int = 0,
        rdma_gbs: float = 0,
        nvlink_gbs: float = 0,
        sm_read_gbs: float = 200,
        sm_write_gbs: float = 50,
    ) -> int:
        """The best number of blocks by measurement, independent of the arguments: even, at least 4. Local."""
        self._require_experts(num_experts)
        if not torch.cuda.is_available():
            return _EMULATED_SMS
        return most_sms(torch.cuda.get_device_properties("cuda").multi_processor_count)

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        """DeepEP's number, for programs that pass it on. Local."""
        wanted = at_least_one("num_sms", num_sms) * 16 + 1 if self.allow_hybrid_mode else min(num_sms, 9)
        return min(wanted, self.num_allocated_qps)

    # ---- Dispatch and combine ----------------------------------------------------------------------------------------

    def dispatch(
        self,
        x: Rows,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        cumulative_local_expert_recv_stats: Tensor | None = None,
        num_experts: int | None = None,
        num_max_tokens_per_rank: int | None = None,
        expert_alignment: int | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: Before = None,
        previous_event_before_epilogue: Before = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: EPHandle | None = None,
        do_handle_copy: bool = True,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
    ) -> Dispatched:
        """``(recv_x, recv_topk_idx, recv_topk_weights, handle, event)``.

        ``x``: ``[T, hidden]`` bfloat16 or float32, hidden a multiple of 16 bytes, T from 0 to
        ``num_max_tokens_per_rank`` (as many on all ranks); or ``(FP8, scales)``: float32 in the forms of
        :func:`ep_lib.compat.deep_ep.scales.spread_scales`, or int32 ``[T, hidden / 512]`` of packed UE8M0, or ``[T,
        hidden / 128]`` of MXFP8. ``topk_idx``: int64 or int32 ``[T, k]``, -1 for none; ``topk_weights``: float32.

        N rows arrive, sorted by source rank, then token. Without ``do_expand`` recv_topk_idx is ``[N, k]``: this rank's
        local expert numbers, -1 for experts elsewhere, and recv_topk_weights float32 ``[N, k]``. With it there is a row
        for each choice, M of them: grouped by expert, each group padded to ``expert_alignment`` by rows of zeros (also
        without ``do_zero_padding``); recv_topk_idx is None and recv_topk_weights ``[M]``. Without weights it is None.

        ``do_cpu_sync=False``: the host does not wait, N is ``num_max_tokens_per_rank`` times the number of ranks, M the
        largest possible number, and the handle has the actual counts on the device. ``handle`` of an earlier dispatch:
        send in the same way, without topk_idx and do_cpu_sync; num_experts, num_max_tokens_per_rank and
        expert_alignment must equal the handle's if given. The result's handle is then the same object, and
        ``cumulative_local_expert_recv_stats``, int32 ``[experts of this rank]``, to which counts are added otherwise,
        is unchanged. ``num_sms``: 0 means :meth:`get_theoretical_num_sms`; not used with a handle.

        Raises the errors of :meth:`ep_lib.Buffer.dispatch`, and NotSupportedError for scales of other forms. Nodes
        connected by NICs support neither ``do_expand`` nor ``do_cpu_sync=False``.
        """
        self._require_usable()
        rows, payload, back = read_payload(x, packed=True)
        stats = cumulative_local_expert_recv_stats
        expand, copies = flag("do_expand", do_expand), flag("do_handle_copy", do_handle_copy)
        by_columns = flag("use_tma_aligned_col_major_sf", use_tma_aligned_col_major_sf)
        if flag("do_zero_padding", do_zero_padding) and not expand:
            raise ArgumentError("do_zero_padding is for the rows between experts, of do_expand=True: pass both")
        whole_number("num_qps", num_qps, 0, 2**31 - 1)
        weights = None if topk_weights is None else require_tensor("topk_weights", topk_weights).detach().contiguous()
        options: dict[str, Any] = {
            "sorted_by_expert": expand,
            "column_major_scales": by_columns and back is not None,
            "copy": not expand,  # grouped rows are copied from the arrival area
        }
        ids = None
        if handle is None:
            if topk_idx is None:
                raise ArgumentError("dispatch needs topk_idx, or the handle of an earlier dispatch")
            ids = require_ids(topk_idx).contiguous()
            if num_experts is None:
                raise ArgumentError("dispatch needs num_experts, or the handle of an earlier dispatch")
            self._require_experts(num_experts)
            most = self._most_tokens(num_max_tokens_per_rank, len(rows))
            alignment = 1 if expert_alignment is None else at_least_one("expert_alignment", expert_alignment)
            waits = True if do_cpu_sync is None else flag("do_cpu_sync", do_cpu_sync)
            options |= {"expert_alignment": alignment, "num_worst_tokens": 0 if waits else most * self.num_ranks}
            sms = whole_number("num_sms", num_sms, 0, 1024) or self.get_theoretical_num_sms(num_experts, ids.shape[1])
            backend = "cuda" if rows.is_cuda else "emulator"
            dtype = "bfloat16" if back is not None else parse_dtype(rows.dtype).name
            shape = Shape(backend, num_experts, ids.shape[1], rows.shape[1], dtype, sms)
            engine = self._engines.get(shape)
            if engine is None or engine.max_tokens < most:
                engine = self._engines[shape] = self._make(shape, max(most, self.num_max_tokens_per_rank), rows)
        else:
            require_handle(handle, EPHandle, "dispatch")
            if topk_idx is not None:
                raise ArgumentError("a dispatch by handle takes no topk_idx: it is the handle's")
            if do_cpu_sync:
                raise ArgumentError("do_cpu_sync: a dispatch by handle has nothing to wait for; leave it out")
            handle.require_same(num_experts, num_max_tokens_per_rank, expert_alignment)
            options |= {"handle": handle.inner, "expert_alignment": handle.expert_alignment}
            engine = handle.engine
        if stats is not None:
            here = (engine.shape.num_experts // self.num_ranks,)
            require_tensor("cumulative_local_expert_recv_stats", stats)
            if stats.dtype != torch.int32 or stats.shape != here or stats.device != rows.device:
                refuse("cumulative_local_expert_recv_stats", stats, f"int32 {list(here)} on {rows.device}")
        buffer = self._use(engine, rows)
        epilogue = event_of("previous_event_before_epilogue", previous_event_before_epilogue)

        def send() -> tuple[Any, Rows, EPHandle, tuple[Any, ...]]:
            if epilogue is not None:
                epilogue.current_stream_wait()
            came = buffer.dispatch(payload, ids, weights, **options)
            known = handle
            if known is None:
                assert ids is not None
                known = EPHandle(
                    engine,
                    came.handle,
                    do_expand=expand,
                    expert_alignment=alignment,
                    num_max_tokens_per_rank=most,
                    topk_idx=ids.clone() if copies else ids,
                    num_recv_tokens_per_expert_list=came.tokens_per_expert.tolist() if waits else [],
                    nodes=self.num_scaleout_ranks,
                )
                if stats is not None:
                    stats.add_(known.counts)
            found = came.x if came.by_expert is None else came.by_expert.x
            recv = found if back is None else (found[0], self._scales(found[1], back, by_columns))
            return came, recv, known, known.on_device

        given, read = (x, topk_idx, topk_weights, stats, handle), (payload, ids, weights)
        sent, event = self._run(send, rows, previous_event, async_with_compute_stream, given, read, engine.shape)
        came, recv, known, _ = sent
        if expand:
            return recv, None, came.by_expert.weights, known, event
        return recv, came.topk_idx, came.topk_weights, known, event

    def combine(
        self,
        x: Tensor,
        handle: EPHandle,
        topk_weights: Tensor | None = None,
        bias: Tensor | tuple[Tensor, Tensor] | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: Before = None,
        previous_event_before_epilogue: Before = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> Combined:
        """``(combined_x, combined_topk_weights, event)``. ``x``: rows in the order of that dispatch, ``[N, hidden]``,
        with do_expand ``[M, hidden]``. A rank sums its rows of a token in float32, in the order of k, and rounds; the
        ranks' sums are added up in float32, in the order of the token's choices (between nodes: of ranks), and rounded.
        ``topk_weights``: float32 ``[N, k]``, ``[M]`` with do_expand; each returns to its token and choice, ``[T, k]``,
        without weighting the rows. ``bias``: one or two ``[T, hidden]`` that the sums begin with. ``num_sms`` is the
        dispatch's. Every run gives equal bits.

        Raises the errors of :meth:`ep_lib.Buffer.combine`.
        """
        self._require_usable()
        require_handle(handle, EPHandle, "dispatch")
        rows = dense(require_rows("x", x, 2))
        buffer, biases = self._use(handle.engine, rows), read_bias(bias)
        for name, value in {"num_sms": num_sms, "num_qps": num_qps}.items():
            whole_number(name, value, 0, 2**31 - 1)
        if topk_weights is not None:
            weights = require_rows("topk_weights", topk_weights, 1 if handle.do_expand else 2)
            if weights.dtype != torch.float32 or len(weights) != len(rows):
                wanted = [len(rows)] if handle.do_expand else [len(rows), handle.topk_idx.shape[1]]
                refuse("topk_weights", topk_weights, f"float32 {wanted}, as dispatch returned them")
        epilogue = event_of("previous_event_before_epilogue", previous_event_before_epilogue)

        def bring() -> tuple[Tensor, Tensor | None]:
            if epilogue is not None:
                epilogue.current_stream_wait()
            order = "choices" if buffer.config.is_direct else "ranks"  # as DeepEP adds up, where it can be
            out: Tensor = buffer.combine(
                rows, handle.inner, bias=biases, sorted_by_expert=handle.do_expand, sum_order=order
            )
            if topk_weights is None:
                return out, None
            return out, self._sum_weights(buffer, handle.inner, handle.by_row(weights))

        given, read, shape = (x, topk_weights, bias, handle), (rows, biases), handle.engine.shape
        (out, came), event = self._run(bring, rows, previous_event, async_with_compute_stream, given, read, shape)
        return out, came, event

    # ---- Not supported -----------------------------------------------------------------------------------------------

    get_engram_storage_size_hint = engram_write = engram_fetch = absent(
        f"Engram: {_ONLY}; a kernel of your own can read other ranks' memory (examples/own_kernel.py)"
    )
    get_pp_buffer_size_hint = pp_set_config = pp_send = pp_recv = absent(
        f"pipeline-parallel send and receive: {_ONLY}; torch.distributed has send and recv"
    )
    get_agrs_num_max_session_bytes = get_agrs_buffer_size_hint = create_agrs_session = destroy_agrs_session = absent(
        f"all-gather sessions: {_ONLY}; torch.distributed has all_gather_into_tensor"
    )
    agrs_new_session = agrs_set_config = agrs_get_inplace_tensor = all_gather = create_agrs_session

    # ---- Implementation ----------------------------------------------------------------------------------------------

    def _most_tokens(self, given: int | None, tokens: int) -> int:
        """num_max_tokens_per_rank for a dispatch of so many tokens."""
        most = self.num_max_tokens_per_rank if given is None else at_least_one("num_max_tokens_per_rank", given)
        if most == 0:
            raise ArgumentError(
                "dispatch needs num_max_tokens_per_rank, the same on all ranks: pass it here, or to ElasticBuffer"
            )
        if tokens > most:
            raise ArgumentError(
                f"x has {tokens} tokens, and num_max_tokens_per_rank is {most}: pass a larger one, on all ranks"
            )
        return most

    @staticmethod
    def _scales(came: Tensor, back: Callable[[Tensor], Tensor], by_columns: bool) -> Tensor:
        """Received scales in the caller's form, which may be narrower than the transferred one."""
        scales = back(came)
        if not by_columns or scales is came:
            return scales
        rows, columns = scales.shape
        step = 16 // scales.element_size()
        room = torch.empty(columns, -(-rows // step) * step, dtype=scales.dtype, device=scales.device)
        found = room[:, :rows].t()
        return found.copy_(scales)


def get_physical_domain_size(group: Any) -> tuple[int, int]:
    """Collective if ``group`` has no Buffer yet: ``(nodes, ranks of each)``."""
    members = members_of(group)
    each = members.ranks_per_node or members.size
    return members.size // each, each


def get_logical_domain_size(group: Any, allow_hybrid_mode: bool = True) -> tuple[int, int]:
    """As :meth:`ElasticBuffer.get_logical_domain_size`."""
    physical = get_physical_domain_size(group)
    return physical if flag("allow_hybrid_mode", allow_hybrid_mode) else (1, physical[0] * physical[1])
