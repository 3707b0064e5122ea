"""Normal mode at full speed: every row straight to where it stays, no copies and no host in between.

The kernels are <ep/route.cuh>, <ep/dispatch_bulk.cuh> and <ep/combine_push.cuh>. Nothing here waits: each method
launches kernels on the current stream and returns. Receive areas come in turns of two. What a dispatch brought stays
until the next but one dispatch begins; that one needs no meeting before it writes, because the dispatch between the two
ended only when all ranks had sent their rows for it, so all had done by then with what they had launched before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ep_lib.memory.arrays import BFLOAT16, describe
from ep_lib.moe import kernels
from ep_lib.moe.config import BufferConfig, Part
from ep_lib.moe.kernels import direct, kernel, pack
from ep_lib.runtime.rank import Rank

TURNS = 2
SCALE_BLOCK = 128  # elements of an FP8 row that share a scale
# Bytes between parts. A copy engine sends up to 256 bytes in one packet, from multiples of 256 only: with rows at odd
# multiples of 128 dispatch took 1.4 times as long.
_ALIGNMENT = 2048
_WARP = 32


@dataclass(frozen=True)
class Tuning:
    """Shapes of the launches. The defaults are those that were quickest on H200 (benchmarks/NOTES.md)."""

    dispatch_warps: int = 8
    dispatch_way: str = "Lanes"  # "Registers", "Lanes" or "Engine": DispatchWay in <ep/dispatch_bulk.cuh>
    dispatch_vectors: int = 4
    dispatch_stages: int = 2
    combine_warps: int = 16
    push_warps: int = 4  # of these
    push_stages: int = 3  # rows under way a warp
    group_rows: int = 4  # rows that are signalled together
    vectors: int = 4  # in flight a lane and row while adding up: 2 or 4
    by_lanes: bool = True
    route_threads: int = 1024
    pull_warps: int = 8
    pull_stages: int = 3  # pieces under way a warp
    piece_vectors: int = 128  # of a row, that come together


# An emulated thread costs memory and time of its own.
EMULATED = Tuning(2, "Lanes", 4, 2, 3, 1, 2, 2, 2, True, 64, 2, 2, 5)


class DirectRouting(NamedTuple):
    """Where this rank's tokens go: arrays of the rank's array module."""

    topk_idx: Any  # [num_tokens, top_k]: global expert ids, int32
    slot: Any  # int32 [num_tokens, ranks]: see <ep/layout.cuh>
    plan: Any  # int32 [3 * ranks + experts_per_rank]: see `notify` in <ep/notify.cuh>


class Area(NamedTuple):
    """Views of one receive area, all of it; the first rows are those that arrived."""

    rows: Any  # [ranks * max_tokens, row_bytes] uint8
    scales: Any  # float32 [ranks * max_tokens, row_scales]
    topk: Any  # int32 [ranks * max_tokens, top_k]
    weights: Any  # float32 [ranks * max_tokens, top_k]
    source: Any  # int32 [ranks * max_tokens, 2]


class DirectExchange:
    """Symmetric memory and launches of the tuned kernels.

    ``row_bytes`` is that of a dispatched row and a multiple of 16: hidden * 2 for BF16, hidden for FP8, which also has
    ``row_scales`` = hidden / 128. Rows of a combine have ``config.row_bytes``. All arguments are the same on all ranks.
    """

    def __init__(
        self,
        rank: Rank,
        config: BufferConfig,
        *,
        row_bytes: int | None = None,
        row_scales: int = 0,
        tuning: Tuning | None = None,
    ) -> None:
        """Collective."""
        self._rank, self._config = rank, config
        self._row_bytes = config.row_bytes if row_bytes is None else row_bytes
        self._row_scales = row_scales
        self.tuning = (EMULATED if rank.backend == "emulator" else Tuning()) if tuning is None else tuning
        self._parts, nbytes = _memory_map(config, self._row_bytes, row_scales)
        self._memory = rank.symmetric(nbytes, np.uint8, fill=None)
        self._memory[: self._parts["recv_topk"].offset] = 0
        rank.synchronize()
        rank.barrier()  # no signal may arrive before the zeros
        self._address = describe(self._memory).address
        self._differs = rank.to_device(np.zeros(config.world_size, np.int32))
        self.num_sms = config.num_sms
        self._operation = self._dispatches = self._combines = self._last_combine = 0

    @staticmethod
    def symmetric_bytes(config: BufferConfig, *, row_bytes: int | None = None, row_scales: int = 0) -> int:
        """Bytes of symmetric heap on every rank."""
        return _memory_map(config, config.row_bytes if row_bytes is None else row_bytes, row_scales)[1]

    def close(self) -> None:
        """Free the symmetric memory."""
        if not self._rank.is_closed:
            self._rank.free(self._memory)

    def route(self, topk_idx: Any, options: int = 0) -> DirectRouting:
        """Collective: count, tell everybody, learn where rows go. ``topk_idx`` ``[num_tokens, top_k]`` int32."""
        config, rank = self._config, self._rank
        ranks = config.world_size
        slot = rank.empty((len(topk_idx), ranks), np.int32)
        counts = rank.empty(ranks + config.num_experts, np.int32)
        plan = rank.empty(3 * ranks + config.experts_per_rank, np.int32)
        self._operation += 1
        notify = pack(
            kernels.NOTIFY_ARGS,
            signals=self._signals(),
            counts=self._at("counts"),
            expert_counts=self._at("expert_counts"),
            experts_per_rank=config.experts_per_rank,
            options=options,
        )
        args = pack(
            direct.ROUTE_ARGS,
            notify=notify,
            finished_blocks=self._at("finished_blocks"),
            num_tokens=len(topk_idx),
            top_k=config.top_k,
        )
        kernel("route", "<int>").launch(
            rank,
            min(ranks, self.num_sms),
            self.tuning.route_threads,
            args,
            topk_idx,
            slot,
            counts[:ranks],
            counts[ranks:],
            plan,
            shared_bytes=4 * (kernels.MAX_WARPS + config.experts_per_rank),
        )
        return DirectRouting(topk_idx, slot, plan)

    def dispatch(
        self, x: Any, weights: Any, routing: DirectRouting, *, scales: Any = None, send_routing: bool = True
    ) -> Area:
        """Collective: send ``x`` ``[num_tokens, row_bytes]`` and what belongs to it; where it arrives."""
        config, tuning = self._config, self.tuning
        self._operation += 1
        self._dispatches += 1
        turn = self._dispatches % TURNS
        common = pack(
            kernels.DISPATCH_ARGS,
            signals=self._signals(),
            rows=self._at("rows", turn),
            recv_topk=self._at("recv_topk", turn),
            recv_weights=self._at("recv_weights", turn),
            recv_source=self._at("recv_source", turn),
            finished_blocks=self._at("finished_blocks"),
            num_tokens=len(x),
            row_vectors=self._row_bytes // 16,
            top_k=config.top_k,
            experts_per_rank=config.experts_per_rank,
            send_routing=int(send_routing),
        )
        args = pack(
            direct.BULK_DISPATCH_ARGS,
            common=common,
            recv_scales=self._at("recv_scales", turn),
            row_scales=self._row_scales,
            next_token=self._at("next_token"),
        )
        template = f"<ep::kBy{tuning.dispatch_way}, {tuning.dispatch_vectors}, {tuning.dispatch_stages}>"
        kernel("dispatch_bulk", template).launch(
            self._rank,
            self.num_sms,
            tuning.dispatch_warps * _WARP,
            args,
            x,
            scales,
            routing.topk_idx,
            weights,
            routing.slot,
            routing.plan,
            shared_bytes=direct.dispatch_shared(
                tuning.dispatch_warps,
                tuning.dispatch_stages,
                self._row_bytes // 16 if tuning.dispatch_way != "Registers" else 0,
                config.world_size,
            ),
        )
        return Area(
            *(self._view(name, turn) for name in ("rows", "recv_scales", "recv_topk", "recv_weights", "recv_source"))
        )

    def combine(self, y: Any, weights: Any, routing: DirectRouting, *, out: Any, note: int = 0) -> None:
        """Collective: bring ``y`` ``[rows received, hidden]``, wherever it lies, back and add up into ``out``."""
        config, tuning = self._config, self.tuning
        self._operation += 1
        self._combines += 1
        args = pack(
            direct.PUSH_COMBINE_ARGS,
            signals=self._signals(self._combines % TURNS),
            returned=self._at("returned", self._combines % TURNS),
            arrived=self._at("arrived"),
            note=note,
            previous_operation=self._last_combine,
            finished_blocks=self._at("finished_blocks"),
            next_group=self._at("next_group"),
            num_tokens=len(routing.slot),
            max_tokens=config.max_tokens,
            max_groups=-(-config.max_tokens // tuning.group_rows),
            group_rows=tuning.group_rows,
            row_vectors=config.row_vectors,
            top_k=config.top_k,
            experts_per_rank=config.experts_per_rank,
            push_warps=tuning.push_warps,
            stages=tuning.push_stages,
            by_lanes=int(tuning.by_lanes),
        )
        self._last_combine = self._operation
        dtype = "__nv_bfloat16" if config.dtype == BFLOAT16 else "float"
        kernel("combine_push", f"<{dtype}, {tuning.vectors}>").launch(
            self._rank,
            self.num_sms,
            tuning.combine_warps * _WARP,
            args,
            out,
            y,
            routing.topk_idx,
            weights,
            routing.slot,
            routing.plan,
            self._differs,
            shared_bytes=direct.combine_shared(
                tuning.combine_warps,
                tuning.push_warps,
                tuning.push_stages,
                config.row_vectors,
                config.world_size,
            ),
        )

    def combine_input(self) -> Any:
        """Where experts write what :meth:`combine_in_place` sends next: ``[ranks * max_tokens, row_bytes]`` uint8."""
        return self._view("returned", (self._combines + 1) % TURNS)

    def combine_in_place(self, weights: Any, routing: DirectRouting, *, out: Any, note: int = 0) -> None:
        """Collective: the same as :meth:`combine`, of what lies in :meth:`combine_input`."""
        config, tuning = self._config, self.tuning
        self._operation += 1
        self._combines += 1
        most_ranks = min(config.top_k, config.world_size)
        args = pack(
            direct.PULL_COMBINE_ARGS,
            signals=self._signals(self._combines % TURNS),
            rows=self._at("returned", self._combines % TURNS),
            note=note,
            finished_blocks=self._at("finished_blocks"),
            next_token=self._at("next_token"),
            num_tokens=len(routing.slot),
            row_vectors=config.row_vectors,
            top_k=config.top_k,
            experts_per_rank=config.experts_per_rank,
            piece_vectors=tuning.piece_vectors,
            most_ranks=most_ranks,
            stages=tuning.pull_stages,
        )
        self._last_combine = self._operation
        dtype = "__nv_bfloat16" if config.dtype == BFLOAT16 else "float"
        kernel("combine_pull", f"<{dtype}>").launch(
            self._rank,
            self.num_sms,
            tuning.pull_warps * _WARP,
            args,
            out,
            routing.topk_idx,
            weights,
            routing.slot,
            routing.plan,
            self._differs,
            shared_bytes=direct.pull_shared(
                tuning.pull_warps, tuning.pull_stages, tuning.piece_vectors, most_ranks, config.world_size
            ),
        )

    def who_differs(self) -> list[int]:
        """Wait for all kernels; the ranks whose note in a combine was another one than ours, since the last call."""
        differs = np.flatnonzero(self._rank.to_host(self._differs))
        if len(differs):
            self._differs[...] = 0
        return [int(r) for r in differs]

    def _signals(self, turn: int = 0) -> Any:
        """Notes have turns: a rank that nobody sends to may begin the next combine while others read its note."""
        return pack(kernels.SIGNALS, flags=self._at("flags"), notes=self._at("notes", turn), operation=self._operation)

    def _at(self, name: str, turn: int = 0) -> int:
        """Address of a part of this rank's symmetric memory, or of the half for one of two turns."""
        part = self._parts[name]
        return self._address + part.offset + turn * (part.nbytes // TURNS)

    def _view(self, name: str, turn: int) -> Any:
        part = self._parts[name]
        return self._memory[part.offset : part.offset + part.nbytes].view(part.dtype).reshape(part.shape)[turn]


def _memory_map(config: BufferConfig, row_bytes: int, row_scales: int) -> tuple[dict[str, Part], int]:
    """The parts one after the other, those that must be zero first, and their sum in bytes."""
    ranks, rows = config.world_size, config.max_rows
    shapes: list[tuple[str, tuple[int, ...], str]] = [
        ("flags", (kernels.NUM_SIGNALS, ranks), "u8"),
        ("notes", (TURNS, kernels.NUM_SIGNALS, ranks), "u8"),
        ("finished_blocks", (1,), "u4"),
        ("next_token", (1,), "u4"),
        ("next_group", (1,), "u4"),
        ("counts", (ranks, ranks + 1), "i4"),
        ("expert_counts", (ranks, config.experts_per_rank), "i4"),
        ("arrived", (ranks, config.max_tokens), "u8"),
        ("recv_topk", (TURNS, rows, config.top_k), "i4"),
        ("recv_weights", (TURNS, rows, config.top_k), "f4"),
        ("recv_source", (TURNS, rows, 2), "i4"),
        ("recv_scales", (TURNS, rows, row_scales), "f4"),
        ("rows", (TURNS, rows, row_bytes), "u1"),
        ("returned", (TURNS, rows, config.row_bytes), "u1"),
    ]
    parts: dict[str, Part] = {}
    offset = 0
    for name, shape, dtype in shapes:
        parts[name] = Part(offset, shape, np.dtype(dtype))
        offset += -(-math.prod(shape) * parts[name].dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
    return parts, offset
