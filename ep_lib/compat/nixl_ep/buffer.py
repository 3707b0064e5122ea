"""``Buffer``: NIXL EP's class for low latency, its arguments, results and order of calls, over DeepEP's interface."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store

from ep_lib.bootstrap.group import StoreGroup
from ep_lib.compat import deep_ep
from ep_lib.compat.deep_ep.events import EventHandle, EventOverlap
from ep_lib.compat.deep_ep.face import Hook, Rows, absent, require_ids, require_rows
from ep_lib.compat.deep_ep.handles import LowLatencyFields, require_handle
from ep_lib.compat.deep_ep.scales import by_columns
from ep_lib.errors import ArgumentError, BufferClosedError, NotSupportedError
from ep_lib.moe.autograd import require_tensor
from ep_lib.require import at_least_one, flag, instance, refuse, several, whole_number

_MOST = 2**31 - 1
_NORMAL_MODE = "is for NIXL's high throughput: ep_lib.Buffer and ep_lib.compat.deep_ep.Buffer have a normal mode"


class World:
    """Ranks that share memory, from the first operation after their connection until one is disconnected or another is
    needed."""

    def __init__(self, ranks: tuple[int, ...], face: deep_ep.Buffer) -> None:
        self.ranks, self.face = ranks, face
        self.gone: set[int] = set()  # disconnected since: if they return, other ranks have their places
        self._experts: dict[tuple[torch.device, int, int], Tensor] = {}

    def place(self, rank: int) -> int | None:
        """The place of ``rank`` in the face; None if it has none (any more)."""
        return self.ranks.index(rank) if rank in self.ranks and rank not in self.gone else None

    def experts(self, ids: Tensor, per_rank: int, most_ranks: int) -> Tensor:
        """``ids`` in the face's numbers of experts: those of its ranks, without gaps; -1 for others'. Invalid ids stay,
        and are refused there."""
        key = ids.device, per_rank, most_ranks
        if key not in self._experts:
            table = torch.full((most_ranks, per_rank), -1, dtype=ids.dtype)
            table[list(self.ranks)] = torch.arange(len(self.ranks) * per_rank, dtype=ids.dtype).view(-1, per_rank)
            self._experts[key] = table.flatten().to(ids.device)
        table = self._experts[key]
        known = (ids >= 0) & (ids < len(table))
        return torch.where(known, table[torch.where(known, ids, 0)], ids)


class Handle(LowLatencyFields):
    """Of a dispatch: ``(packed_recv_src_info, packed_recv_layout_range, num_max_dispatch_tokens_per_rank, hidden)``, as
    in DeepEP, for ``bound`` ranks: -1 and 0 for missing ones."""

    num_fields = 4

    def __init__(self, inner: LowLatencyFields, world: World, bound: int) -> None:
        super().__init__(inner.engine, inner.inner)
        self.world, self.bound = world, bound

    @property
    def capacity(self) -> int:
        """Rows of an expert."""
        return self.bound * self.engine.shape.low_latency_tokens

    @cached_property
    def fields(self) -> tuple[Any, ...]:
        source, ranges, most, hidden, _ = super().fields
        info = source.new_full((len(source), self.capacity), -1)
        _move(source, info)
        layout = ranges.new_zeros(len(ranges), max(self.bound, self.world.ranks[-1] + 1))
        layout[:, list(self.world.ranks)] = ranges
        return info, layout[:, : self.bound], most, hidden


class Buffer:
    """Expert-parallel communication with NIXL EP's calls, of ``examples/device/ep`` at 8770b65; low latency only.

    Expert ``e`` is on rank ``e // num_experts_per_rank``. Connecting and masking are local, as in NIXL EP. The first
    operation with a new set of ranks allocates their memory: all connected and unmasked ranks call it with the same
    set; it is collective, and waits for them in ``tcp_store_group`` (or the store of ``group``). Disconnected ranks
    leave in the same way, in the next operation. In between, ranks are masked and unmasked without a meeting; one that
    does not respond within ``timeout_ms`` is masked. Tensors on a CPU run on the emulator. Errors are those of ep_lib
    (:mod:`ep_lib.errors`).
    """

    def __init__(
        self,
        disable_ll_nvlink: bool = False,
        explicitly_destroy: bool = False,
        rank: int = 0,
        low_latency_mode: bool = True,
        group: Any = None,
        comm: Any = None,
        tcp_store_group: Any = None,
        timeout_ms: int = 30_000,
    ) -> None:
        """``tcp_store_group``: a store of torch.distributed that all ranks share; ``group``: a process group that has
        such a store.

        Raises NotSupportedError for ``disable_ll_nvlink``, ``low_latency_mode=False`` and ``comm``."""
        if flag("disable_ll_nvlink", disable_ll_nvlink):
            raise NotSupportedError("disable_ll_nvlink: low-latency mode writes over NVLink where there is one")
        if not flag("low_latency_mode", low_latency_mode):
            raise NotSupportedError(f"low_latency_mode=False {_NORMAL_MODE}")
        if comm is not None:
            raise NotSupportedError("comm: ranks come and go, and a communicator's cannot: pass tcp_store_group")
        self.rank = whole_number("rank", rank, 0, _MOST)
        self.explicitly_destroy = flag("explicitly_destroy", explicitly_destroy)
        self.timeout_ms = at_least_one("timeout_ms", timeout_ms)
        self.low_latency_mode, self.group, self.comm, self.tcp_store_group = True, group, None, tcp_store_group
        self.group_size = self.num_rdma_bytes = self.num_nvl_bytes = self._experts_per_rank = 0
        self._connected, self._active = {self.rank}, {self.rank}
        self._world: World | None = None
        self._is_destroyed = False

    def destroy(self) -> None:
        """Free the memory. It waits, at most ``timeout_ms``, for the connected and unmasked ranks, which destroy theirs
        or disconnect this one. Raises ArgumentError unless made with ``explicitly_destroy``."""
        if not self.explicitly_destroy:
            raise ArgumentError("destroy() is for a Buffer that was made with explicitly_destroy=True")
        self._require_usable()
        self._is_destroyed = True
        self._leave_world()

    is_sm90_compiled = staticmethod(deep_ep.Buffer.is_sm90_compiled)
    capture = staticmethod(deep_ep.Buffer.capture)

    @staticmethod
    def get_low_latency_buffer_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """Bytes that low-latency mode allocates here for these sizes (and a top-k of 8). Local."""
        return deep_ep.Buffer.get_low_latency_rdma_size_hint(
            num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts
        )

    get_rdma_size_hint = get_low_latency_buffer_size_hint

    def get_comm_stream(self) -> Any:
        """The stream in which operations with async_finish run. Local. Raises ArgumentError before the first operation,
        NotSupportedError without GPUs."""
        if self._world is None:
            raise ArgumentError("get_comm_stream: there is no stream before the first dispatch")
        return self._world.face.get_comm_stream()

    # ---- Who takes part ----------------------------------------------------------------------------------------------

    def update_memory_buffers(
        self, num_ranks: int, num_experts_per_rank: int, num_rdma_bytes: int, num_nvl_bytes: int = 0
    ) -> None:
        """Set the largest number of ranks, and the experts of each. The bytes are kept for programs that read them;
        they allocate nothing. Local. Raises ArgumentError, and NotSupportedError for a second call (as in NIXL)."""
        self._require_usable()
        if self.group_size:
            raise NotSupportedError("update_memory_buffers: the Buffer has its sizes already; make another one")
        most, experts = at_least_one("num_ranks", num_ranks), at_least_one("num_experts_per_rank", num_experts_per_rank)
        if self.rank >= most:
            raise ArgumentError(f"num_ranks is {most}, and this is rank {self.rank}: pass at least {self.rank + 1}")
        self.num_rdma_bytes = whole_number("num_rdma_bytes", num_rdma_bytes, 0, 1 << 62)
        self.num_nvl_bytes = whole_number("num_nvl_bytes", num_nvl_bytes, 0, 1 << 62)
        self.group_size, self._experts_per_rank = most, experts

    def set_tcp_store_group(self, tcp_store_group: Any) -> None:
        """Set the store in which ranks meet; None: none. Local."""
        self.tcp_store_group = tcp_store_group

    def connect_ranks(self, remote_ranks: Iterable[int], activate: bool = True) -> None:
        """Include these ranks in the next operation; with ``activate=False`` when they are unmasked. This rank, and
        included ones, may be named. Local. Raises ArgumentError."""
        ranks = self._rank_numbers(remote_ranks)
        self._connected |= ranks
        if flag("activate", activate):
            for rank in sorted(ranks - {self.rank}):
                self.update_mask_buffer(rank, False)

    def disconnect_ranks(self, remote_ranks: Iterable[int]) -> None:
        """Continue without these ranks, which leave or are dead: they are masked, and the next operation allocates
        memory without them. Waits for this rank's kernels. Local. Raises ArgumentError for ranks that are not
        connected."""
        ranks = self._rank_numbers(remote_ranks)
        if self.rank in ranks or not ranks <= self._connected:
            others = sorted(self._connected - {self.rank})
            raise ArgumentError(f"disconnect_ranks({sorted(ranks)}): rank {self.rank} is connected to {others}")
        for rank in sorted(ranks):
            self.update_mask_buffer(rank, True)
        self._connected -= ranks
        if self._world is not None:
            self._world.gone |= ranks & set(self._world.ranks)

    def update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Exclude a rank from this rank's operations, or include it again: one that shares memory with this rank must
        have called as many operations. Waits for this rank's kernels. Local. Raises ArgumentError for this rank, and
        for unmasking one that is not connected."""
        (rank,) = self._rank_numbers([rank_to_mask])
        if rank == self.rank:
            if flag("mask", mask):
                raise ArgumentError(f"rank {rank} cannot mask itself: the masks are about the other ranks")
            return
        if not flag("mask", mask) and rank not in self._connected:
            raise ArgumentError(f"rank {rank} is not connected: connect_ranks([{rank}]) before it is unmasked")
        (self._active.discard if mask else self._active.add)(rank)
        if self._world is not None and (place := self._world.place(rank)) is not None:
            self._world.face.low_latency_update_mask_buffer(place, mask)

    def query_mask_buffer(self, mask_status: Tensor) -> None:
        """Fill ``mask_status``, int32 ``[num_ranks]``: 1 for a rank that is excluded or not connected. In stream order.
        Local."""
        self._require_sizes()
        require_tensor("mask_status", mask_status)
        if mask_status.dtype != torch.int32 or mask_status.shape != (self.group_size,):
            refuse("mask_status", mask_status, f"a tensor of int32 [{self.group_size}]")
        inactive = [int(rank not in self._active) for rank in range(self.group_size)]
        mask_status.copy_(torch.tensor(inactive, dtype=torch.int32))
        if self._world is not None:
            found = mask_status.new_empty(len(self._world.ranks))
            self._world.face.low_latency_query_mask_buffer(found)
            for place, rank in enumerate(self._world.ranks):
                if rank not in self._world.gone:
                    mask_status[rank].clamp_(min=found[place])

    def clean_mask_buffer(self) -> None:
        """Unmask all connected ranks. Local."""
        self._require_sizes()
        for rank in sorted(self._connected - {self.rank}):
            self.update_mask_buffer(rank, False)

    # ---- Operations --------------------------------------------------------------------------------------------------

    def low_latency_dispatch(
        self,
        x: Tensor,
        topk_idx: Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int | None = None,
        cumulative_local_expert_recv_stats: Tensor | None = None,
        dispatch_wait_recv_cost_stats: Tensor | None = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
    ) -> tuple[Rows, Tensor, Handle, EventOverlap, Hook | None]:
        """``(recv_x, recv_count, handle, event, hook)`` as
        :meth:`ep_lib.compat.deep_ep.Buffer.low_latency_dispatch` returns them, with room for the ranks of
        ``num_experts`` experts: ``[experts of this rank, ranks * most tokens, hidden]``.

        ``num_experts``: a multiple of num_experts_per_rank, from the experts of the ranks up to the highest active one
        (None: those) to the largest possible number. If it differs from the number for the participating ranks, arrived
        rows are copied. Choices of experts on other ranks are dropped.

        Raises ArgumentError, and the errors of that method.
        """
        self._require_sizes()
        world, per_rank = self._use_world(), self._experts_per_rank
        lowest = max(self._active) + 1
        if num_experts is None:
            bound = lowest
        else:
            bound, rest = divmod(at_least_one("num_experts", num_experts), per_rank)
            if rest or not lowest <= bound <= self.group_size:
                low, high = lowest * per_rank, self.group_size * per_rank
                refuse("num_experts", num_experts, f"a multiple of {per_rank} from {low} to {high}")
        came, counts, inner, event, hook = world.face.low_latency_dispatch(
            x,
            self._experts_of(world, topk_idx, bound),
            num_max_dispatch_tokens_per_rank,
            len(world.ranks) * per_rank,
            cumulative_local_expert_recv_stats,
            dispatch_wait_recv_cost_stats,
            use_fp8,
            round_scale,
            use_ue8m0,
            async_finish,
            return_recv_hook,
        )
        handle = Handle(inner, world, bound)
        if bound == len(world.ranks):
            return came, counts, handle, event, hook
        rows, scales = came if isinstance(came, tuple) else (came, None)
        room = rows.new_empty(len(rows), handle.capacity, rows.shape[2])
        turned = None if scales is None else by_columns((*room.shape[:2], scales.shape[2]), scales, scales.dtype)

        def arrive() -> None:
            if hook is not None:
                hook()
            _move(rows, room)
            if scales is not None and turned is not None:
                _move(scales, turned)

        if not return_recv_hook:
            if async_finish:
                event.current_stream_wait()
            arrive()
            event = EventOverlap(EventHandle() if async_finish else None)
        return room if turned is None else (room, turned), counts, handle, event, arrive if return_recv_hook else None

    def low_latency_combine(
        self,
        x: Tensor,
        topk_idx: Tensor,
        topk_weights: Tensor,
        handle: Handle,
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: Tensor | None = None,
        combine_wait_recv_cost_stats: Tensor | None = None,
    ) -> tuple[Tensor, EventOverlap, Hook | None]:
        """``(combined_x, event, hook)``, as of :meth:`ep_lib.compat.deep_ep.Buffer.low_latency_combine`: ``x`` has the
        shape of the dispatch's recv_x, ``topk_idx`` is the dispatch's.

        Raises HandleError, BufferClosedError for a handle from before a change of ranks, and the errors of that method.
        """
        self._require_sizes()
        require_handle(handle, Handle, "dispatch")
        world = handle.world
        if world is not self._world:
            raise BufferClosedError("handle is of a dispatch before ranks came or went: dispatch again")
        rows, ranks = require_rows("x", x, 3), len(world.ranks)
        if rows.shape[1] != handle.capacity:
            refuse("x", x, f"[{self._experts_per_rank}, {handle.capacity}, hidden], as dispatch returned it")
        is_whole = handle.bound == ranks
        if not is_whole:
            fitting = rows.new_empty(len(rows), handle.capacity // handle.bound * ranks, rows.shape[2])
            _move(rows, fitting)
            rows = fitting
        return world.face.low_latency_combine(
            rows,
            self._experts_of(world, topk_idx, handle.bound),
            topk_weights,
            handle,
            use_logfmt,
            flag("zero_copy", zero_copy) and is_whole,
            async_finish,
            return_recv_hook,
            out,
            combine_wait_recv_cost_stats,
        )

    dispatch = low_latency_dispatch
    """:meth:`low_latency_dispatch`."""
    combine = low_latency_combine
    """:meth:`low_latency_combine`."""

    def get_next_combine_buffer(self, handle: Handle) -> Tensor:
        """The array for experts' results that ``combine(zero_copy=True)`` with this handle sends back: bfloat16, of
        recv_x's shape. Local."""
        self._require_sizes()
        require_handle(handle, Handle, "dispatch")
        if handle.bound == len(handle.world.ranks):
            return handle.world.face.get_next_low_latency_combine_buffer(handle)
        shape = self._experts_per_rank, handle.capacity, handle.engine.shape.hidden
        device = "cuda" if handle.engine.shape.backend == "cuda" else "cpu"
        return torch.empty(shape, dtype=torch.bfloat16, device=device)

    # ---- Not supported -----------------------------------------------------------------------------------------------

    ht_dispatch = absent(f"ht_dispatch {_NORMAL_MODE}")
    ht_combine = absent(f"ht_combine {_NORMAL_MODE}")
    get_dispatch_layout = absent(f"get_dispatch_layout {_NORMAL_MODE}")
    get_dispatch_config = absent(f"get_dispatch_config {_NORMAL_MODE}")
    get_combine_config = absent(f"get_combine_config {_NORMAL_MODE}")
    set_num_sms = absent(f"set_num_sms {_NORMAL_MODE}")
    get_local_buffer_tensor = absent("get_local_buffer_tensor: the memory is ep_lib's own; torch.empty gives some")
    barrier = absent("barrier: dispatch and combine wait for what they need; torch.distributed.barrier has another")

    # ---- Implementation ----------------------------------------------------------------------------------------------

    def _use_world(self) -> World:
        """The current World. Collective if ranks have changed since the last operation."""
        world = self._world
        if world is not None and not world.gone and self._active <= set(world.ranks):
            return world
        self._leave_world()
        ranks = tuple(sorted(self._active))
        store = self.tcp_store_group
        if store is None and self.group is not None:
            store = getattr(self.group, "get_group_store", lambda: None)()
        if store is None:
            raise ArgumentError(
                "ranks meet in a store: pass tcp_store_group=, or a group= that has one, or call set_tcp_store_group()"
            )
        instance("tcp_store_group", store, Store, "a store of torch.distributed")
        prefix = PrefixStore(f"ep_lib/nixl_ep/{'-'.join(map(str, ranks))}", store)
        group = StoreGroup(prefix, ranks.index(self.rank), len(ranks), self.timeout_ms / 1000)
        face = deep_ep.Buffer(group, low_latency_mode=True, explicitly_destroy=True, enable_shrink=True)
        self._world = World(ranks, face)
        return self._world

    def _leave_world(self) -> None:
        """Frees its memory, and waits for its remaining ranks. Ranks masked by its kernels stay masked."""
        world, self._world = self._world, None
        if world is None:
            return
        engines = list(world.face._engines.values())
        for engine in engines:
            masked = np.flatnonzero(engine.buffer.low_latency_query_mask_buffer())
            self._active -= {world.ranks[place] for place in masked} - world.gone
        staying = self._active - world.gone
        left = [place for place, rank in enumerate(world.ranks) if rank not in staying]
        for engine in engines:
            if left:
                engine.buffer.rank._backend.leave_out(left)
            engine.buffer.close()

    def _experts_of(self, world: World, topk_idx: Tensor, bound: int) -> Tensor:
        ids = require_ids(topk_idx)
        if world.ranks == tuple(range(bound)):
            return ids
        return world.experts(ids, self._experts_per_rank, self.group_size)

    def _rank_numbers(self, ranks: Any) -> set[int]:
        self._require_sizes()
        found = several("remote_ranks", ranks, "a list of ranks")
        if not found:
            refuse("remote_ranks", ranks, "at least one rank")
        return {whole_number("a rank", rank, 0, self.group_size - 1) for rank in found}

    def _require_sizes(self) -> None:
        self._require_usable()
        if not self.group_size:
            raise ArgumentError("the Buffer has no sizes yet: call update_memory_buffers() first")

    def _require_usable(self) -> None:
        if self._is_destroyed:
            raise BufferClosedError("destroy() was called on this Buffer: make another one")


def _move(rows: Tensor, room: Tensor) -> None:
    """Copies the first rows of each expert, as many as fit into both."""
    count = min(rows.shape[1], room.shape[1])
    room[:, :count].copy_(rows[:, :count])
