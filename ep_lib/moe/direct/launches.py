"""The symmetric memory of direct writes, and the launches of the kernels that work on it."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ep_lib.jit.kernel import Kernel, library_kernel
from ep_lib.jit.structs import header_constant, header_struct
from ep_lib.memory.arrays import ArrayInfo, describe, like
from ep_lib.moe.agreement import require_same_everywhere
from ep_lib.moe.checks import UINT8
from ep_lib.moe.config import FLOAT32, INT32, VECTOR_BYTES, BufferConfig
from ep_lib.moe.direct.memory import allocate, make_direct_map, row_scales, zeroed_bytes
from ep_lib.moe.direct.tuning import Tuning, choose_tuning, combine_shared, dispatch_shared, most_ranks
from ep_lib.moe.mode import Arrivals, Plan, Wishes
from ep_lib.moe.results import as_kind
from ep_lib.runtime.rank import Rank

_WARP = 32
_COMBINES = {"push": ("combine_push", ""), "pull": ("combine_pull", ", false"), "stage": ("combine_pull", ", true")}
_ROUTE_BLOCKS = 16  # a destination each; those that are left over check values


@functools.cache
def kernel(name: str, template: str = "", entry: str = "") -> Kernel:
    """The kernel ``ep_<entry>`` of ``<name>.cu``, with template arguments if it has any (``"<float>"``); ``entry`` is
    ``name`` where the file has one kernel."""
    return library_kernel(f"moe/direct/{name}.cu", f"ep_{entry or name}{template}")


class DirectRouting:
    """Where this rank's tokens go: one array of int32, ``ints``, in the memory of the caller's array library.

    Its parts: topk_idx ``[T, top_k]``, slot ``[T, ranks]`` (<moe/common/layout.cuh>), counts
    ``[ranks + num_experts]``, and the plan ``[3 * ranks + experts_per_rank + 1]`` of <moe/direct/route.cu>.
    """

    def __init__(self, config: BufferConfig, ints: Any, num_tokens: int, xp_kind: str) -> None:
        self.ints, self.num_tokens, self.config, self._xp_kind = ints, num_tokens, config, xp_kind
        self.info = describe(ints)
        self.topk = self.info.address
        self.slot = self.topk + 4 * num_tokens * config.top_k
        self.rank_counts = self.slot + 4 * num_tokens * config.world_size
        self.choice_counts = self.rank_counts + 4 * config.world_size
        self.plan = self.choice_counts + 4 * config.num_experts
        self.packed: dict[Any, bytes] = {}  # arguments of kernels that stay the same

    @staticmethod
    def size(config: BufferConfig, num_tokens: int) -> int:
        """Elements of ``ints``."""
        per_token, plan = config.top_k + config.world_size, 3 * config.world_size + config.experts_per_rank + 1
        return num_tokens * per_token + config.world_size + config.num_experts + plan

    @property
    def topk_idx(self) -> Any:
        """``[T, top_k]``, an array of the rank's module."""
        count = self.num_tokens * self.config.top_k
        return like(self._xp_kind, self.ints[:count]).reshape(self.num_tokens, self.config.top_k)

    def plan_on_device(self) -> Plan:
        """The plan as views of ``ints``."""
        ranks, experts = self.config.world_size, self.config.experts_per_rank
        plan = self.ints[(self.plan - self.topk) // 4 :]
        return Plan(plan[ranks : 2 * ranks], None, plan[3 * ranks : 3 * ranks + experts])


class DirectLaunches:
    """Starts kernels in the stream that the caller has chosen; knows nothing of operations."""

    def __init__(self, rank: Rank, config: BufferConfig, tuning: Tuning | None) -> None:
        """Collective. Raises RankMismatchError and OutOfSymmetricMemory."""
        require_same_everywhere(rank, config)
        self._rank, self._config = rank, config
        self.tuning = tuning  # None: chosen by the size of a row
        self._tunings: dict[int, Tuning] = {}
        self._tuning_of(config.row_bytes)  # raises ArgumentError if rows are too large
        self.num_sms = config.num_sms
        self._parts, nbytes = make_direct_map(config)
        self._memory = allocate(rank, config, nbytes)
        self._memory[: zeroed_bytes(self._parts)] = 0
        if rank.backend == "cuda":
            rank.xp.cuda.get_current_stream().synchronize()
        rank.barrier()  # no signal may arrive before the zeros
        info = describe(self._memory)
        self._address, self.device, self._xp_kind = info.address, info.device, info.kind
        self._workspace = header_struct("moe/common/epoch.cuh", "Workspace").pack(
            flags=self._at("flags"), tags=self._at("tags"), state=self._at("state")
        )
        # What the host reads while kernels run: the counts of a dispatch, and who passed another note.
        plan_ints = 3 * config.world_size + config.experts_per_rank
        self._report = rank.host_array(2 + plan_ints, np.int32)
        self._done = self._report[:2].view(np.uint64)
        self._differs = rank.host_array(config.world_size, np.int32)
        self._report_address, self._differs_address = (describe(a).address for a in (self._report, self._differs))
        self._tickets = 0
        self._views: dict[Any, Any] = {}

    def close(self) -> None:
        """Free the symmetric memory. Peers may still read it: rank.symmetric() waits for them before it reuses it."""
        if not self._rank.is_closed:
            self._rank.free(self._memory)

    def _launch_route(
        self, index: ArrayInfo, weights: ArrayInfo | None, routing: DirectRouting, options: int, wishes: Wishes
    ) -> None:
        config = self._config
        self._tickets += 1
        args = header_struct("moe/direct/route.cu", "RouteArgs").pack(
            workspace=self._workspace,
            counts=self._at("counts"),
            expert_counts=self._at("expert_counts"),
            report=0 if wishes.num_worst_tokens else self._report_address,
            ticket=self._tickets,
            num_tokens=routing.num_tokens,
            top_k=config.top_k,
            experts_per_rank=config.experts_per_rank,
            options=options,
            expert_alignment=wishes.expert_alignment,
        )
        kernel("route", "<int>" if index.dtype == INT32 else "<long long>").launch(
            self._rank,
            min(max(config.world_size, _ROUTE_BLOCKS), self.num_sms),
            self._tuning_of(config.row_bytes).route_threads,
            args,
            index,
            weights,
            routing.topk,
            routing.slot,
            routing.rank_counts,
            routing.choice_counts,
            routing.plan,
            shared_bytes=4 * (header_constant("moe/common/layout.cuh", "kMaxWarps") + config.experts_per_rank),
            uses=(routing.info,),
        )

    def _launch_dispatch(
        self,
        x: ArrayInfo,
        scales: Any,
        weights: ArrayInfo | None,
        routing: DirectRouting,
        *,
        note: int,
        send_routing: bool,
    ) -> None:
        config, row_bytes = self._config, x.dtype.itemsize * self._config.hidden
        tuning = self._tuning_of(row_bytes)
        key = (note, row_bytes, send_routing)
        args = routing.packed.get(key)
        if args is None:
            args = routing.packed[key] = self._dispatch_args(routing, row_bytes, scales is not None, note, send_routing)
        template = f"<ep::direct::kBy{tuning.way}, {tuning.dispatch_stages}>"
        kernel("dispatch_bulk", template).launch(
            self._rank,
            self.num_sms,
            tuning.dispatch_warps * _WARP,
            args,
            x,
            scales,
            routing.topk,
            weights,
            routing.slot,
            routing.plan,
            self._differs_address,
            shared_bytes=dispatch_shared(
                tuning.dispatch_warps, tuning.dispatch_stages, row_bytes // VECTOR_BYTES, config.world_size
            ),
            uses=(routing.info,),
        )

    def _launch_combine(
        self, how: str, key: tuple[int, ...], out: Any, y: ArrayInfo, weights: Any, routing: DirectRouting, uses: Any
    ) -> None:
        """``how``: "push", "pull" rows that are in symmetric memory, or "stage": copy them there and pull them."""
        config, tuning = self._config, self._tuning_of(self._config.row_bytes)
        name, staged = _COMBINES[how]
        push_blocks = round(tuning.push_share * self.num_sms)
        copy_blocks = self._spare_blocks if how == "stage" else 0
        args = routing.packed.get(key)
        if args is None:
            send_blocks = max(1, copy_blocks or push_blocks)
            args = routing.packed[key] = self._combine_args(routing, key, tuning, send_blocks, how == "push")
        element = "float" if config.dtype == FLOAT32 else "__nv_bfloat16"
        kernel(name, f"<{element}{staged}>").launch(
            self._rank,
            self.num_sms + copy_blocks,
            tuning.add_warps * _WARP,
            args,
            out,
            y,
            routing.topk,
            weights,
            routing.slot,
            routing.plan,
            self._differs_address,
            shared_bytes=combine_shared(tuning, config, config.row_vectors),
            uses=uses,
        )

    @property
    def _spare_blocks(self) -> int:
        """For what touches memory of this GPU alone, which is not what num_sms is for. They must run beside the others,
        which may wait for them."""
        return (self._rank.multiprocessors or self.num_sms + 2) - self.num_sms

    def _launch_unpack(self, to: Arrivals, rows: int, itemsize: int, routing: DirectRouting, copy: bool) -> None:
        config, rank = self._config, self._rank
        args = header_struct("moe/direct/copy_epilogue.cu", "UnpackArgs").pack(
            rows=self._at("rows"),
            scales=self._at("recv_scales"),
            topk=self._at("recv_topk"),
            weights=self._at("recv_weights"),
            source=self._at("recv_source"),
            capacity=rows,
            row_vectors=itemsize * config.hidden // VECTOR_BYTES,
            row_scales=row_scales(config),
            top_k=config.top_k,
        )
        everywhere = rank.multiprocessors or min(self.num_sms, 2)  # memory of this GPU alone is not what num_sms is for
        is_int = to.topk is None or describe(to.topk).dtype == INT32
        kernel("copy_epilogue", "<int>" if is_int else "<long long>", entry="unpack").launch(
            rank,
            everywhere,
            self._tuning_of(config.row_bytes).local_threads,
            args,
            routing.plan,
            to.rows if copy else None,
            to.scales if copy else None,
            to.topk,
            to.weights,
            to.src_rank,
            to.src_token,
            uses=(routing.info,),
        )

    def _dispatch_args(self, routing: DirectRouting, row_bytes: int, fp8: bool, note: int, send_routing: bool) -> bytes:
        config = self._config
        to = header_struct("moe/common/dispatch.cuh", "DispatchArgs").pack(
            rows=self._at("rows"),
            recv_topk=self._at("recv_topk"),
            recv_weights=self._at("recv_weights"),
            recv_source=self._at("recv_source"),
            num_tokens=routing.num_tokens,
            row_vectors=row_bytes // VECTOR_BYTES,
            top_k=config.top_k,
            experts_per_rank=config.experts_per_rank,
            send_routing=int(send_routing),
        )
        return header_struct("moe/direct/dispatch_bulk.cu", "BulkDispatchArgs").pack(
            workspace=self._workspace,
            to=to,
            recv_scales=self._at("recv_scales"),
            tag=note,
            row_scales=row_scales(config) if fp8 else 0,
        )

    def _tuning_of(self, row_bytes: int) -> Tuning:
        if self.tuning is not None:
            return self.tuning
        found = self._tunings.get(row_bytes)
        if found is None:
            emulated = self._rank.backend == "emulator"
            found = choose_tuning(self._config, row_bytes, self._rank.shared_bytes, emulated=emulated)
            self._tunings[row_bytes] = found
        return found

    def _combine_args(
        self, routing: DirectRouting, key: tuple[int, ...], tuning: Tuning, send_blocks: int, push: bool
    ) -> bytes:
        config, (note, row_vectors, *bias) = self._config, key
        add = header_struct("moe/direct/combine_add.cuh", "AddArgs").pack(
            bias=np.array((*bias, 0, 0)[:2], np.uint64).tobytes(),
            num_tokens=routing.num_tokens,
            row_vectors=row_vectors,
            top_k=config.top_k,
            experts_per_rank=config.experts_per_rank,
            piece_vectors=tuning.add_vectors,
            most_ranks=most_ranks(config),
            stages=tuning.add_stages,
        )
        send = header_struct("moe/direct/combine_send.cuh", "SendArgs").pack(
            returned=self._at("returned"),
            arrived=self._at("arrived"),
            max_tokens=config.max_tokens,
            max_groups=-(-config.max_tokens // tuning.group_rows),
            group_rows=tuning.group_rows,
            blocks=send_blocks,
            warps=tuning.send_warps,
            stages=tuning.send_stages,
        )
        if push:
            return header_struct("moe/direct/combine_push.cu", "PushCombineArgs").pack(
                workspace=self._workspace, tag=note, add=add, send=send
            )
        pulling = {"pull_blocks": self.num_sms}
        return header_struct("moe/direct/combine_pull.cu", "PullCombineArgs").pack(
            workspace=self._workspace, tag=note, add=add, send=send, **pulling
        )

    def _view(self, name: str, kind: str, dtype: np.dtype[Any], columns: int) -> Any:
        """A part of the receive area, all of it, as an array of the caller's kind."""
        key = (name, kind, dtype)
        if key not in self._views:
            part, count = self._parts[name], self._config.max_rows * columns
            area = self._memory[part.offset : part.offset + count * dtype.itemsize]
            stored = dtype if dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")
            view = area if stored == UINT8 else area.view(stored)
            self._views[key] = as_kind(kind, view.reshape(-1, columns), dtype)
        return self._views[key]

    def _at(self, name: str) -> int:
        """Address of a part of this rank's symmetric memory."""
        return self._address + self._parts[name].offset
