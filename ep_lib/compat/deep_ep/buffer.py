"""``Buffer``: DeepEP V1's class, its arguments, results and order of calls, over :class:`ep_lib.Buffer`."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

import ep_lib.moe.buffer as moe
from ep_lib.compat.deep_ep.config import Config
from ep_lib.compat.deep_ep.engines import Engine, Shape
from ep_lib.compat.deep_ep.events import EventHandle, EventOverlap
from ep_lib.compat.deep_ep.face import Face, Hook, Rows, T, read_bias, read_payload, require_ids, require_rows
from ep_lib.compat.deep_ep.handles import Handle, LowLatencyFields, require_handle
from ep_lib.compat.deep_ep.layout import Layout, choices_sent, layout_by_torch, ranks_of, refuse_needless
from ep_lib.compat.deep_ep.scales import by_columns, cast_with_powers_of_two, pack_ue8m0, require_groups
from ep_lib.errors import ArgumentError, NotSupportedError
from ep_lib.moe.agreement import NoRoomError
from ep_lib.moe.autograd import dense, require_tensor
from ep_lib.moe.checks import refuse_choices, require_flags
from ep_lib.moe.config import parse_dtype
from ep_lib.moe.formats import FP8_GROUP
from ep_lib.require import at_least_one, flag, index, instance, refuse, several, whole_number

Dispatched = tuple[Rows, Tensor | None, Tensor | None, list[int] | None, Handle | None, EventOverlap]
Combined = tuple[Tensor, Tensor | None, EventOverlap]

_HINTED_TOP_K = 8  # for size hints before the top-k is known
_LOW_LATENCY_TOKENS = 1024
_LOW_LATENCY_SMS = 2  # blocks of the normal mode that a low-latency engine has as well and never uses


class Buffer(Face):
    """Expert-parallel communication with DeepEP V1's calls. Every call is collective, unless marked as local.

    It allocates no memory at its construction. The first call that needs memory makes an :class:`ep_lib.Buffer` for its
    shapes, on all ranks together; a larger one follows when tokens no longer fit: :mod:`ep_lib.compat.deep_ep.engines`.
    Tensors on a CPU run on the emulator. Errors are those of ep_lib (:mod:`ep_lib.errors`).
    """

    num_sms: int = 20

    def __init__(
        self,
        group: Any,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        use_fabric: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
    ) -> None:
        """``group``: any process group of torch.distributed, gloo or nccl, of all processes or of some; or an
        ep_lib.Rank. ``comm``: a communicator of mpi4py instead of a group.

        ``num_nvl_bytes``, ``num_rdma_bytes``: kept for programs that read them; they allocate nothing.
        ``num_qps_per_rank``, ``allow_mnnvl``, ``use_fabric``: without effect. ``enable_shrink``: a rank that does not
        respond to a low-latency call is left out from then on.
        """
        if (group is None) == (comm is None):
            raise ArgumentError("pass a process group of torch.distributed, or comm=, a communicator of mpi4py")
        self.num_nvl_bytes = whole_number("num_nvl_bytes", num_nvl_bytes, 0, 1 << 62)
        self.num_rdma_bytes = whole_number("num_rdma_bytes", num_rdma_bytes, 0, 1 << 62)
        self.low_latency_mode = flag("low_latency_mode", low_latency_mode)
        self.enable_shrink = flag("enable_shrink", enable_shrink)
        if not flag("allow_nvlink_for_low_latency_mode", allow_nvlink_for_low_latency_mode):
            raise NotSupportedError(
                "allow_nvlink_for_low_latency_mode=False: low-latency mode writes over NVLink where there is one; "
                "ep_lib.Buffer(allow_nvlink_for_normal_mode=False) sends normal mode through the NIC"
            )
        at_least_one("num_qps_per_rank", num_qps_per_rank)
        super().__init__(comm if group is None else group, explicitly_destroy)
        self.rank, self.group_size = self._members.rank, self._members.size
        self._masked: set[int] = set()
        self._shapes: dict[tuple[bool, int, int, int, int], Shape] = {}  # of low-latency calls
        self._raw: dict[bool, Tensor] = {}
        # masks of get_dispatch_layout: versions of mask and ids, and the ids
        self._masks: Any = WeakTensorKeyDictionary()

    def destroy(self) -> None:
        """Collective: give the memory back. Raises ArgumentError unless made with ``explicitly_destroy=True``."""
        super().destroy()
        self._raw.clear()

    @staticmethod
    def is_sm90_compiled() -> bool:
        """Whether FP8 works: always."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Sets the number of blocks of normal mode's kernels, for shapes new to a Buffer. Local."""
        if at_least_one("new_num_sms", new_num_sms) % 2:
            refuse("new_num_sms", new_num_sms, "an even number")
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        """An event in torch's current stream. Local."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """Bytes that low-latency mode allocates here for these sizes (and a top-k of 8). Local."""
        num_experts, hidden = at_least_one("num_experts", num_experts), at_least_one("hidden", hidden)
        most = whole_number(
            "num_max_dispatch_tokens_per_rank", num_max_dispatch_tokens_per_rank, 1, _LOW_LATENCY_TOKENS
        )
        top_k = min(_HINTED_TOP_K, num_experts)
        shape = Shape("", num_experts, top_k, hidden, "bfloat16", _LOW_LATENCY_SMS, most)
        return moe.Buffer.symmetric_bytes(num_ranks, **shape.arguments(1, None))

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """A Config with :attr:`num_sms`, for any number of ranks. Local."""
        at_least_one("num_ranks", num_ranks)
        return Config(Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """As :meth:`get_dispatch_config`."""
        return Buffer.get_dispatch_config(num_ranks)

    def get_local_buffer_tensor(
        self, dtype: torch.dtype, size: torch.Size | None = None, offset: int = 0, use_rdma_buffer: bool = False
    ) -> Tensor:
        """A view of ``num_nvl_bytes`` (``num_rdma_bytes``) of memory of this rank, from element ``offset``, for the
        caller's use: operations do not use it. Local."""
        self._require_usable()
        instance("dtype", dtype, torch.dtype, "a dtype of torch")
        offset = whole_number("offset", offset, 0, 1 << 62)
        sizes = [] if size is None else [whole_number("size", n, 0, 1 << 62) for n in several("size", size, "a size")]
        tensor = self._raw.get(flag("use_rdma_buffer", use_rdma_buffer))
        if tensor is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
            nbytes = self.num_rdma_bytes if use_rdma_buffer else self.num_nvl_bytes
            tensor = self._raw[use_rdma_buffer] = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        view = tensor[: tensor.numel() // dtype.itemsize * dtype.itemsize].view(dtype)[offset:]
        if size is None:
            return view
        count = math.prod(sizes)
        if count > view.numel():
            raise ArgumentError(f"size is {tuple(sizes)}, and there are {view.numel()} elements from offset {offset}")
        return view[:count].view(sizes)

    # ---- Normal mode -------------------------------------------------------------------------------------------------

    def get_dispatch_layout(
        self,
        topk_idx: Tensor,
        num_experts: int,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor, EventOverlap]:
        """``(num_tokens_per_rank, num_tokens_per_rdma_rank, num_tokens_per_expert, is_token_in_rank, event)``. Local:
        dispatch computes the layout itself, and uses only the number of experts and the mask from here.

        Raises ArgumentError for an id that is neither an expert's nor -1; on a GPU the host does not wait to check
        this: such an id is not counted, and dispatch refuses it."""
        self._require_usable()
        require_ids(topk_idx)
        num_experts = self._require_experts(num_experts)
        if not topk_idx.is_cuda:
            refuse_choices(topk_idx.numpy(), num_experts)

        backend = "cuda" if topk_idx.is_cuda else "emulator"
        count_choices = next((e.count_choices for e in self._engines.values() if e.shape.backend == backend), None)

        def count() -> tuple[Layout, Tensor | None]:
            if count_choices is None:
                counted = layout_by_torch(topk_idx, num_experts, self.group_size)
            else:
                counted = count_choices(topk_idx, num_experts)
            return counted, self._per_node(counted.is_token_in_rank)

        (found, per_node), event = self._run(count, topk_idx, previous_event, async_finish, (topk_idx,))
        self._masks[found.is_token_in_rank] = _versions(found.is_token_in_rank, topk_idx), weakref.ref(topk_idx)
        return found.num_tokens_per_rank, per_node, found.num_tokens_per_expert, found.is_token_in_rank, event

    def dispatch(
        self,
        x: Rows,
        handle: Handle | None = None,
        num_tokens_per_rank: Tensor | None = None,
        num_tokens_per_rdma_rank: Tensor | None = None,
        is_token_in_rank: Tensor | None = None,
        num_tokens_per_expert: Tensor | None = None,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> Dispatched:
        """``(recv_x, recv_topk_idx, recv_topk_weights, num_recv_tokens_per_expert_list, handle, event)``; with a handle
        only the first and the last are not None.

        ``x``: ``[T, hidden]`` bfloat16 or float32, hidden a multiple of 16 bytes, T from 0, any number on each rank; or
        ``(FP8, scales)``, scales in the forms of :func:`ep_lib.compat.deep_ep.scales.spread_scales`.
        ``num_tokens_per_expert``: its length is the number of experts; counts are of arriving tokens. A token goes to
        the ranks of ``is_token_in_rank``, without a mask to the ranks of its experts; choices on other ranks are
        dropped. A mask of True for a rank without an expert in ``topk_idx`` is an ArgumentError (not checked on a GPU
        with ``num_worst_tokens``). With ``num_worst_tokens`` the host does not wait and the list is empty; a rank may
        send that number divided by the number of ranks, unless an earlier call had more. The caller owns the results.

        Raises the errors of :meth:`ep_lib.Buffer.dispatch`, and NotSupportedError for scales of other forms.
        """
        self._require_usable()
        rows, payload, back = read_payload(x)
        worst = whole_number("num_worst_tokens", num_worst_tokens, 0, 2**31 - 1)
        given = (x, topk_idx, topk_weights, is_token_in_rank, handle)
        options: dict[str, Any] = {"num_worst_tokens": worst, "expert_alignment": expert_alignment}
        if handle is not None:
            require_handle(handle, Handle, "dispatch")
            if topk_idx is not None or topk_weights is not None:
                raise ArgumentError(
                    "a dispatch by handle takes neither topk_idx nor topk_weights: they are the handle's"
                )
            buffer = self._use(handle.engine, rows)
            step = lambda: _rows(buffer.dispatch(payload, handle=handle.inner).x, back)  # noqa: E731
            came, event = self._run(step, rows, previous_event, async_finish, given, (payload,), handle.engine.shape)
            return came, None, None, None, None, event
        if num_tokens_per_expert is None:
            raise ArgumentError("dispatch needs num_tokens_per_expert, as get_dispatch_layout returns it, or a handle")
        num_experts = require_tensor("num_tokens_per_expert", num_tokens_per_expert).numel()
        self._require_experts(num_experts)
        sent, ids = is_token_in_rank, topk_idx
        if sent is not None:
            wanted = (len(rows), self.group_size)
            if require_tensor("is_token_in_rank", sent).dtype != torch.bool or sent.shape != wanted:
                refuse("is_token_in_rank", sent, f"a tensor of bool {list(wanted)}")
            if sent.device != rows.device:
                raise ArgumentError(f"is_token_in_rank is on {sent.device} and x on {rows.device}: pass both on one")
        if ids is not None:
            require_ids(ids)
            if sent is not None and ids.shape[0] == len(rows) and ids.device == rows.device:
                ids = self._only_sent(ids, sent, num_experts, wait=not worst)
        else:
            if sent is None:
                raise ArgumentError("dispatch needs topk_idx, or is_token_in_rank, or a handle")
            first = torch.arange(self.group_size, device=sent.device) * (num_experts // self.group_size)
            ids = torch.where(sent, first, -1)
        ids = ids.contiguous()
        weights = None if topk_weights is None else require_tensor("topk_weights", topk_weights).detach().contiguous()
        num_sms = Buffer.num_sms if config is None else instance("config", config, Config, "a Config, or None").num_sms
        shape = Shape(
            "cuda" if rows.is_cuda else "emulator",
            num_experts,
            ids.shape[1],
            rows.shape[1],
            "bfloat16" if back is not None else parse_dtype(rows.dtype).name,
            max(1, num_sms),
        )

        def send() -> tuple[Any, Rows, Engine]:
            assert ids is not None
            received, engine = self._dispatch_with_room(shape, payload, ids, weights, options)
            return received, _rows(received.x, back), engine

        read = (payload, ids, weights)
        (received, came, engine), event = self._run(send, rows, previous_event, async_finish, given, read, shape)
        counts: list[int] = [] if worst else received.tokens_per_expert.tolist()
        if topk_idx is None and not worst:
            counts = self._count_choices(num_tokens_per_expert, expert_alignment)
        if sent is None:
            sent = ranks_of(ids, num_experts, self.group_size)
        return (
            came,
            None if topk_idx is None else received.topk_idx,
            received.topk_weights,
            counts,
            Handle(engine, received.handle, sent),
            event,
        )

    def combine(
        self,
        x: Tensor,
        handle: Handle,
        topk_weights: Tensor | None = None,
        bias: Tensor | tuple[Tensor, Tensor] | None = None,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> Combined:
        """``(combined_x, combined_topk_weights, event)``. ``x``: ``[received, hidden]``, rows of that dispatch, or
        narrower ones (of whole 16 bytes, the same on all ranks): combined_x is as wide. The rows are summed unweighted,
        over ranks in ascending order, in float32. So are ``topk_weights``, float32 ``[received, k]``. ``bias``: one or
        two ``[T, hidden]`` that the sums begin with. Every run gives equal bits.

        Raises the errors of :meth:`ep_lib.Buffer.combine`.
        """
        self._require_usable()
        require_handle(handle, Handle, "dispatch")
        rows = dense(require_rows("x", x, 2))
        buffer = self._use(handle.engine, rows)
        biases = read_bias(bias)
        if topk_weights is not None:
            require_rows("topk_weights", topk_weights, 2)
            if topk_weights.dtype != torch.float32 or len(topk_weights) != len(rows):
                refuse("topk_weights", topk_weights, f"float32 [{len(rows)}, k], as dispatch returned them")

        def bring() -> tuple[Tensor, Tensor | None]:
            out: Tensor = buffer.combine(rows, handle.inner, bias=biases)
            return out, None if topk_weights is None else self._sum_weights(buffer, handle.inner, topk_weights.detach())

        given, read = (x, topk_weights, bias, handle), (rows, biases)
        (out, weights), event = self._run(bring, rows, previous_event, async_finish, given, read, handle.engine.shape)
        return out, weights, event

    # DeepEP's dispatch and combine call these for several nodes; ours handle nodes themselves.
    internode_dispatch = dispatch
    internode_combine = combine

    # ---- Low-latency mode --------------------------------------------------------------------------------------------

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Nothing to do: normal mode has memory of its own. Local."""
        self._require_usable()

    def low_latency_dispatch(
        self,
        x: Tensor,
        topk_idx: Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: Tensor | None = None,
        dispatch_wait_recv_cost_stats: Tensor | None = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
    ) -> tuple[Rows, Tensor, LowLatencyFields, EventOverlap, Hook | None]:
        """``(recv_x, recv_count, handle, event, hook)``; shapes and layouts are DeepEP's, scales by columns.

        Rows of an expert are sorted by source rank, then token. The caller owns the results, and may hold any number of
        them. ``cumulative_local_expert_recv_stats``: int32 ``[experts of this rank]``, to which recv_count is added.
        With ``round_scale`` rows are sent in bfloat16 and cast by the receiver.

        Raises the errors of :meth:`ep_lib.Buffer.low_latency_dispatch`; NotSupportedError for
        ``dispatch_wait_recv_cost_stats``.
        """
        self._require_usable()
        _refuse_cost_stats("dispatch_wait_recv_cost_stats", dispatch_wait_recv_cost_stats)
        require_flags(
            use_fp8=use_fp8,
            round_scale=round_scale,
            use_ue8m0=use_ue8m0,
            async_finish=async_finish,
            return_recv_hook=return_recv_hook,
        )
        if use_ue8m0 and not round_scale:
            raise ArgumentError("use_ue8m0 has room for exponents only: pass round_scale=True with it")
        rows, ids = dense(require_rows("x", x, 2)), require_ids(topk_idx).contiguous()
        if use_fp8:
            require_groups(rows.shape[1], use_ue8m0)
        stats = cumulative_local_expert_recv_stats
        engine = self._low_latency_engine(rows, ids, num_max_dispatch_tokens_per_rank, num_experts)
        buffer = self._use(engine, rows)
        rounded = use_fp8 and round_scale

        def send() -> tuple[Any, Rows, Hook]:
            try:
                sent = buffer.low_latency_dispatch(
                    rows, ids, use_fp8 and not rounded, False, return_recv_hook, None, True, stats
                )
            except ArgumentError as error:
                error.args = (str(error).replace("recv_totals", "cumulative_local_expert_recv_stats"), *error.args[1:])
                raise
            out, finish = _cast_later(sent.recv_x, use_ue8m0) if rounded else (sent.recv_x, None)

            def arrive() -> None:
                if sent.hook is not None:
                    sent.hook()
                engine.sync_emulated()
                if finish is not None:
                    finish()

            if not return_recv_hook:
                arrive()
            return sent, out, arrive

        keep = (x, topk_idx, stats, rows, ids)
        (sent, out, arrive), event = self._run_decoding(send, engine.shape, rows, async_finish, return_recv_hook, keep)
        handle = LowLatencyFields(engine, sent.handle)
        return out, sent.recv_count, handle, event, arrive if return_recv_hook else None

    def low_latency_combine(
        self,
        x: Tensor,
        topk_idx: Tensor,
        topk_weights: Tensor,
        handle: LowLatencyFields,
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: Tensor | None = None,
        combine_wait_recv_cost_stats: Tensor | None = None,
    ) -> tuple[Tensor, EventOverlap, Hook | None]:
        """``(combined_x, event, hook)``: rows weighted and summed, as by :meth:`ep_lib.Buffer.low_latency_combine`.

        Raises its errors; NotSupportedError for ``use_logfmt`` and ``combine_wait_recv_cost_stats``.
        """
        self._require_usable()
        require_flags(async_finish=async_finish, return_recv_hook=return_recv_hook)
        _refuse_cost_stats("combine_wait_recv_cost_stats", combine_wait_recv_cost_stats)
        if use_logfmt:
            raise NotSupportedError("use_logfmt: rows come back in bfloat16 here; leave use_logfmt out")
        require_handle(handle, LowLatencyFields, "low_latency_dispatch")
        engine, rows = handle.engine, dense(require_rows("x", x, 3))
        buffer, ids = self._use(engine, rows), require_ids(topk_idx).contiguous()
        weights = require_rows("topk_weights", topk_weights, 2).contiguous()

        def bring() -> tuple[Tensor, Hook]:
            came = buffer.low_latency_combine(
                rows, ids, weights, handle.inner, zero_copy, False, return_recv_hook=return_recv_hook, out=out
            )

            def arrive() -> None:
                if came.hook is not None:
                    came.hook()
                engine.sync_emulated()

            if not return_recv_hook:
                arrive()
            return came.out, arrive

        keep = (x, topk_idx, topk_weights, out, rows, ids, weights, handle)
        (result, arrive), event = self._run_decoding(bring, engine.shape, rows, async_finish, return_recv_hook, keep)
        return result, event, arrive if return_recv_hook else None

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Exclude a rank from this rank's low-latency operations, or include it again. Local."""
        self._require_usable()
        number = index(rank_to_mask)
        if number is None or not 0 <= number < self.group_size or number == self.rank:
            refuse("rank_to_mask", rank_to_mask, f"another rank than {self.rank}, 0 to {self.group_size - 1}")
        flag("mask", mask)
        (self._masked.add if mask else self._masked.discard)(number)
        for engine in self._low_latency_engines():
            engine.buffer.low_latency_update_mask_buffer(number, bool(mask))

    def low_latency_query_mask_buffer(self, mask_status: Tensor) -> None:
        """Fill ``mask_status``, int32 ``[ranks]``: 1 for an excluded rank. In stream order, without waiting for the
        GPU. Local."""
        self._require_usable()
        require_tensor("mask_status", mask_status)
        if mask_status.dtype != torch.int32 or mask_status.shape != (self.group_size,):
            refuse("mask_status", mask_status, f"a tensor of int32 [{self.group_size}]")
        found = [torch.empty_like(mask_status) for _ in self._low_latency_engines()]
        for status, engine in zip(found, self._low_latency_engines(), strict=True):
            engine.buffer.low_latency_query_mask_buffer(out=status)
        if found:
            torch.amax(torch.stack(found), dim=0, out=mask_status)
        else:
            mask_status.copy_(torch.tensor([int(r in self._masked) for r in range(self.group_size)], dtype=torch.int32))

    def low_latency_clean_mask_buffer(self) -> None:
        """Include all ranks again. Local."""
        self._require_usable()
        self._masked.clear()
        for engine in self._low_latency_engines():
            engine.buffer.low_latency_clean_mask_buffer()

    def get_next_low_latency_combine_buffer(self, handle: LowLatencyFields) -> Tensor:
        """The array for experts' results that ``low_latency_combine(zero_copy=True)`` with this handle sends back:
        ``[experts, capacity, hidden]`` bfloat16. Local."""
        self._require_usable()
        require_handle(handle, LowLatencyFields, "low_latency_dispatch")
        rows: Tensor = handle.engine.buffer.get_next_low_latency_combine_buffer(handle.inner)
        return rows

    # ---- Not in DeepEP -----------------------------------------------------------------------------------------------

    def reserve(self, max_tokens: int, hidden: int, num_experts: int, top_k: int, like: Tensor) -> None:
        """Collective: allocates memory now for dispatches of up to ``max_tokens`` a rank, of tensors like ``like``,
        instead of in the first call: for calls that cannot synchronise ranks, in a CUDA graph or with a small
        ``num_worst_tokens``."""
        self._require_usable()
        require_tensor("like", like)
        num_experts, top_k = self._require_experts(num_experts), at_least_one("top_k", top_k)
        hidden, max_tokens = at_least_one("hidden", hidden), at_least_one("max_tokens", max_tokens)
        dtype = "bfloat16" if like.dtype == torch.float8_e4m3fn else parse_dtype(like.dtype).name
        backend = "cuda" if like.is_cuda else "emulator"
        shape = Shape(backend, num_experts, top_k, hidden, dtype, Buffer.num_sms)
        self._engines[shape] = self._make(shape, max_tokens, like)

    # ---- Implementation ----------------------------------------------------------------------------------------------

    def _dispatch_with_room(
        self, shape: Shape, payload: Rows, ids: Tensor, weights: Tensor | None, options: dict[str, Any]
    ) -> tuple[Any, Engine]:
        """Dispatches; if a rank has no room for its tokens, all ranks first make a larger Buffer."""
        rows = payload[0] if isinstance(payload, tuple) else payload
        tokens, worst = rows.shape[0], options["num_worst_tokens"]
        wanted = -(-worst // self.group_size) if worst else tokens
        engine = self._engines.get(shape)
        if engine is None or (worst and wanted > engine.max_tokens):
            engine = self._engines[shape] = self._make(shape, max(wanted, tokens), rows)
        buffer = self._use(engine, rows)
        if tokens > engine.max_tokens and worst:
            raise ArgumentError(
                f"x has {tokens} tokens, and num_worst_tokens={worst} of {self.group_size} ranks made room for "
                f"{engine.max_tokens} on each; no rank waits in such a call, so it cannot make more: call "
                f"reserve(max_tokens={tokens}, ...) on all ranks, or dispatch once without num_worst_tokens"
            )
        try:
            if tokens > engine.max_tokens:
                buffer.decline_dispatch()
            else:
                return buffer.dispatch(payload, ids, weights, **options), engine
        except NoRoomError:
            engine = self._engines[shape] = self._make(shape, tokens, rows)
        return self._use(engine, rows).dispatch(payload, ids, weights, **options), engine

    def _low_latency_engine(self, rows: Tensor, ids: Tensor, most: int, num_experts: int) -> Engine:
        most = whole_number("num_max_dispatch_tokens_per_rank", most, 1, _LOW_LATENCY_TOKENS)
        num_experts = at_least_one("num_experts", num_experts)
        key = rows.is_cuda, num_experts, ids.shape[1], rows.shape[1], most
        shape = self._shapes.get(key)
        if shape is None:
            on_gpu, _, top_k, hidden, _ = key
            backend, num_experts = "cuda" if on_gpu else "emulator", self._require_experts(num_experts)
            shape = Shape(backend, num_experts, top_k, hidden, "bfloat16", _LOW_LATENCY_SMS, most, self.enable_shrink)
            self._shapes[key] = shape
        engine = self._engines.get(shape)
        if engine is None:
            engine = self._engines[shape] = self._make(shape, 1, rows)
            for rank in self._masked:
                engine.buffer.low_latency_update_mask_buffer(rank, True)
        return engine

    def _low_latency_engines(self) -> list[Engine]:
        return [engine for shape, engine in self._engines.items() if shape.low_latency_tokens]

    def _run_decoding(
        self, step: Callable[[], T], shape: Shape, like: Tensor, async_finish: bool, hooked: bool, keep: tuple[Any, ...]
    ) -> tuple[T, EventOverlap]:
        """The same for low-latency mode, whose hooks launch in their caller's stream."""
        if async_finish and hooked:
            raise ArgumentError("async_finish and return_recv_hook exclude each other: pass one of them")
        return self._run(step, like, None, async_finish, keep, shape=shape)

    def _per_node(self, sent: Tensor) -> Tensor | None:
        each = self._members.ranks_per_node
        if each is None:
            return None
        return sent.view(-1, self.group_size // each, each).any(2).sum(0, dtype=torch.int32)

    def _only_sent(self, ids: Tensor, sent: Tensor, num_experts: int, wait: bool) -> Tensor:
        """``ids`` without the choices that ``sent`` excludes. Raises ArgumentError for tokens sent to ranks without one
        of their experts, if waiting for the GPU is allowed. The mask that get_dispatch_layout made of these ids needs
        no work."""
        versions, of = self._masks.get(sent, (None, None))
        is_known = versions is not None and of() is ids and versions == _versions(sent, ids)
        if is_known:
            return ids
        if not sent.is_cuda or (wait and not torch.cuda.is_current_stream_capturing()):
            refuse_needless(ids, sent, num_experts)
        return choices_sent(ids, sent, num_experts)

    def _count_choices(self, num_tokens_per_expert: Tensor, alignment: int) -> list[int]:
        """Counts the choices of tokens sent by is_token_in_rank: kernels do not know them, so the hosts add them up."""
        said = self._members.all_gather(num_tokens_per_expert.tolist(), "a dispatch by is_token_in_rank")
        each = len(said[0]) // self.group_size
        mine = [sum(theirs) for theirs in zip(*said, strict=True)][self.rank * each : (self.rank + 1) * each]
        return [-(-count // alignment) * alignment for count in mine]


def _versions(mask: Tensor, ids: Tensor) -> tuple[int, int] | None:
    """Version numbers of tensors, which change with their content; None if torch does not count (inference_mode)."""
    return None if mask.is_inference() or ids.is_inference() else (mask._version, ids._version)


def _rows(x: Any, back: Callable[[Tensor], Tensor] | None) -> Rows:
    """recv.x with scales in the form of the caller's."""
    return x if back is None else (x[0], back(x[1]))


def _cast_later(came: Tensor, ue8m0: bool) -> tuple[Rows, Hook]:
    """The caller's arrays for low-latency rows that are cast with powers of two, and a function that fills them after
    the rows' arrival."""
    experts, capacity, hidden = came.shape
    groups = hidden // FP8_GROUP
    cast = torch.empty(came.shape, dtype=torch.float8_e4m3fn, device=came.device)
    shape = (experts, capacity, groups // 4 if ue8m0 else groups)
    scales = by_columns(shape, came, torch.int32 if ue8m0 else torch.float32)

    def cast_all() -> None:
        rows, powers = cast_with_powers_of_two(came)
        cast.copy_(rows)
        scales.copy_(pack_ue8m0(powers) if ue8m0 else powers)

    return (cast, scales), cast_all


def _refuse_cost_stats(name: str, value: Any) -> None:
    if value is not None:
        raise NotSupportedError(
            f"{name}: kernels do not keep such times here; leave it out, and take them from a profiler, or from "
            "`ep-lib bench`"
        )
