"""What the ladders of 06 and 07 share: a routing, the arrays around it, and the launches of each rung's kernels."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib import reference
from ep_lib.jit.kernel import Kernel, library_kernel
from ep_lib.jit.structs import header_constant, header_struct
from ep_lib.memory.arrays import describe
from ep_lib.workshop.ladders import Memory

RANKS, EXPERTS, TOP_K, HIDDEN, TOKENS = 4, 8, 2, 1792, 64
EXPERTS_PER_RANK = EXPERTS // RANKS
BLOCKS, THREADS = 8, 128
WORK_NS = 3000  # of an expert, for a group of four rows
_FACTORS = tuple(np.float32(1 + rank / 3) for rank in range(RANKS))  # what each rank's experts multiply by
_LAYOUT, _NOTIFY, _DISPATCH = "moe/common/layout.cuh", "moe/common/notify.cuh", "moe/common/dispatch.cuh"
_VECTOR_BYTES = 16


@dataclass(frozen=True)
class Routed:
    """Tokens and their experts; lists are over ranks."""

    num_experts: int
    xs: list[Any]
    topk_idx: list[Any]
    topk_weights: list[Any]


@functools.cache
def inputs() -> Routed:
    """The same on every call: experts of different popularity, a few choices that are -1."""
    rng = np.random.default_rng(6)
    popularity = rng.random(EXPERTS) + 0.3
    xs, idx, weights = [], [], []
    for _ in range(RANKS):
        chosen = np.argsort(-rng.random((TOKENS, EXPERTS)) * popularity, axis=1)[:, :TOP_K].astype(np.int32)
        chosen[rng.random(chosen.shape) < 0.05] = -1
        share = rng.random((TOKENS, TOP_K)).astype(np.float32)
        xs.append(rng.standard_normal((TOKENS, HIDDEN)).astype(np.float32))
        idx.append(chosen)
        weights.append(share / share.sum(axis=1, keepdims=True))
    return Routed(EXPERTS, xs, idx, weights)


@functools.cache
def arrivals() -> list[reference.Received]:
    """What every rank receives, by the NumPy oracle."""
    routed = inputs()
    return reference.dispatch(routed.xs, routed.topk_idx, routed.topk_weights, num_experts=EXPERTS)


def combined() -> list[Any]:
    """What every rank's tokens become, by the NumPy oracle."""
    routed = inputs()
    ys = [each.x * factor for each, factor in zip(arrivals(), _FACTORS, strict=True)]
    return list(reference.combine(ys, routed.topk_idx, routed.topk_weights, num_experts=EXPERTS))


class Exchange:
    """The memory of one rank, and the launches of the kernels in ``file``."""

    def __init__(self, memory: Memory, file: Path) -> None:
        self._memory, self._rank, self._file = memory, memory.rank, file
        self._shared = str(file.with_suffix(".cuh"))  # of 07_combine.cu
        routed, me, rows = inputs(), memory.rank.rank, RANKS * TOKENS
        self._x = memory.own(routed.xs[me])
        self._idx, self._weights = memory.own(routed.topk_idx[me]), memory.own(routed.topk_weights[me])
        kinds = header_constant(_NOTIFY, "kNumSignals")
        self._flags, self._tags = (memory.symmetric(np.zeros((kinds, RANKS), np.uint64)) for _ in range(2))
        self._finished = memory.own(np.zeros(1, np.uint32))
        self._rows = memory.symmetric(np.zeros((rows, HIDDEN), np.float32))
        self._recv_idx = memory.symmetric(np.zeros((rows, TOP_K), np.int32))
        self._recv_weights = memory.symmetric(np.zeros((rows, TOP_K), np.float32))
        self._recv_source = memory.symmetric(np.zeros((rows, 2), np.int32))
        self._next_row = memory.symmetric(np.zeros(1, np.uint32))
        self._next_of_mine = memory.own(np.zeros(RANKS, np.int32))
        self._counts = memory.symmetric(np.zeros((RANKS, RANKS + 1), np.int32))
        self._expert_counts = memory.symmetric(np.zeros((RANKS, EXPERTS_PER_RANK), np.int32))
        self._send_index = memory.own(np.zeros((TOKENS, RANKS), np.int32))
        self._rank_counts, self._choices = (memory.own(np.zeros(n, np.int32)) for n in (RANKS, EXPERTS))
        self._plan = memory.own(np.zeros(3 * RANKS + EXPERTS_PER_RANK, np.int32))

    # ---- dispatch ----------------------------------------------------------------------------------------------------
    def dispatch(self, name: str) -> None:
        """The kernels of the rung ``name`` of 06_dispatch.cu."""
        tokens = (self._x, self._idx, self._weights)
        args = (self._dispatch_args(), self._signals(1), self._finished, *tokens)
        if name == "dispatch_atomics":
            self._launch(name, *args, self._next_row)
            return
        if name == "dispatch_counted":
            self._launch("count_choices", args[0], self._idx, self._rank_counts, self._choices)
        else:
            self._lay_out()
        self._exchange_counts()
        if name == "dispatch_counted":
            self._launch(name, *args, self._next_of_mine, self._plan)
        else:
            self._launch(name, *args, self._send_index, self._plan, shared_bytes=self._shared_bytes(name))

    def dispatch_wrongly(self, name: str) -> None:
        """The same with a kernel of 06_dispatch_broken.cu in the place of rung 2."""
        self._lay_out()
        self._exchange_counts()
        args = (self._dispatch_args(), self._signals(1), self._finished, self._x, self._send_index)
        self._launch(name, *args, self._next_of_mine, self._plan, file=_broken(self._file))

    def received(self) -> dict[str, Any]:
        """What has come, row by row, as NumPy arrays."""
        rows = len(arrivals()[self._rank.rank].x)
        arrays = {"x": self._rows, "topk_idx": self._recv_idx}
        arrays |= {"topk_weights": self._recv_weights, "source": self._recv_source}
        return {name: self._rank.to_host(array)[:rows] for name, array in arrays.items()}

    def _lay_out(self) -> None:
        layout = library_kernel("moe/common/layout.cu", "ep_get_dispatch_layout")
        args = _pack(_LAYOUT, "LayoutArgs", num_tokens=TOKENS, top_k=TOP_K, experts_per_rank=EXPERTS_PER_RANK)
        shared = 4 * (header_constant(_LAYOUT, "kMaxWarps") + EXPERTS_PER_RANK)
        counted = (self._send_index, self._rank_counts, self._choices)
        layout.launch(self._rank, RANKS, THREADS, args, self._idx, *counted, shared_bytes=shared)

    def _exchange_counts(self) -> None:
        args = _pack(
            _NOTIFY,
            "NotifyArgs",
            signals=self._signals(1),
            counts=_at(self._counts),
            expert_counts=_at(self._expert_counts),
            experts_per_rank=EXPERTS_PER_RANK,
            options=0,
        )
        self._launch("exchange_counts", args, self._rank_counts, self._choices, self._plan, grid=1)

    # ---- combine -----------------------------------------------------------------------------------------------------
    def prepare_combine(self) -> Any:
        """What a dispatch leaves behind, by the oracle, so that a combine runs alone. Returns the array of sums."""
        memory, me, routed = self._memory, self._rank.rank, inputs()
        layouts = [reference.layout(idx, num_experts=EXPERTS, world_size=RANKS) for idx in routed.topk_idx]
        sent = np.array([layout.tokens_per_rank for layout in layouts], np.int32)  # [source, destination]
        here = arrivals()[me]
        self._send_index = memory.own(layouts[me].slot.astype(np.int32))
        self._first_row = memory.own((np.cumsum(sent, axis=0) - sent)[me].astype(np.int32))
        self._received = memory.own(np.ascontiguousarray(sent[:, me]))
        self._arrived_x, self._row_count = memory.own(here.x), len(here.x)
        self._arrived_weights = memory.own(here.topk_weights)
        self._arrived_source = memory.own(np.stack([here.src_rank, here.src_token], axis=1).astype(np.int32))
        self._y = memory.own(np.zeros_like(here.x))
        self._sums = memory.symmetric(np.zeros((TOKENS, HIDDEN), np.float32))
        groups = -(-TOKENS // header_constant(self._shared, "kGroupRows"))
        self._arrived = memory.symmetric(np.zeros((RANKS, groups), np.uint64))
        self._differs = memory.own(np.zeros(RANKS, np.int32))
        return self._sums

    def experts_and_combine(self, name: str) -> None:
        """The experts, and the kernels of the rung ``name`` of 07_combine.cu."""
        experts = _pack(
            self._shared,
            "Experts",
            x=_at(self._arrived_x),
            received=_at(self._received),
            max_tokens=TOKENS,
            row_vectors=HIDDEN * 4 // _VECTOR_BYTES,
            work_ns=WORK_NS,
            factor=float(_FACTORS[self._rank.rank]),
        )
        choices = (self._idx, self._weights)
        if name in ("experts_and_combine", "signal_before_rows"):
            overlap = _pack(
                self._shared,
                "Overlap",
                returned=_at(self._rows),
                arrived=_at(self._arrived),
                epoch=1,
                expert_blocks=BLOCKS,
                num_tokens=TOKENS,
                top_k=TOP_K,
                experts_per_rank=EXPERTS_PER_RANK,
            )
            args = (experts, overlap, self._sums, *choices, self._send_index)
            self._launch(name, *args, grid=2 * BLOCKS, file=self._file_of(name))
            return
        self._launch("experts", experts, self._y)
        if name == "combine_atomics":
            arrived = (self._y, self._arrived_source, self._arrived_weights, self._row_count, HIDDEN, TOP_K)
            self._launch(name, self._signals(1), self._finished, self._sums, *arrived)
            return
        self._launch("stage", self._stage_args(), self._y, self._differs)
        places = (self._send_index, self._first_row)
        full_name = f"{name}<float>" if name == "combine" else name
        shared = self._shared_bytes(name)
        args = (self._combine_args(), self._sums, *choices, *places)
        self._launch(full_name, *args, shared_bytes=shared, file=self._file_of(name))

    def _stage_args(self) -> bytes:
        return _pack(
            str(self._file),
            "StageArgs",
            signals=self._signals(1),
            rows=_at(self._rows),
            finished_blocks=_at(self._finished),
            tag=0,
            previous_epoch=0,
            num_vectors=self._row_count * HIDDEN * 4 // _VECTOR_BYTES,
        )

    def _combine_args(self) -> bytes:
        return _pack(
            str(self._file),
            "CombineArgs",
            signals=self._signals(1),
            rows=_at(self._rows),
            finished_blocks=_at(self._finished),
            num_tokens=TOKENS,
            row_vectors=HIDDEN * 4 // _VECTOR_BYTES,
            top_k=TOP_K,
            experts_per_rank=EXPERTS_PER_RANK,
        )

    # ---- launches ----------------------------------------------------------------------------------------------------
    def _launch(
        self, name: str, *args: Any, grid: int | None = None, shared_bytes: int = 0, file: Path | None = None
    ) -> None:
        kernel = Kernel.from_file(file or self._file, name)
        kernel.launch(self._rank, grid or BLOCKS, THREADS, *args, shared_bytes=shared_bytes, uses=self._memory.arrays)

    def _file_of(self, name: str) -> Path:
        """Of a kernel of 07: the mistakes are in a file of their own."""
        return _broken(self._file) if name in ("combine_fused", "signal_before_rows") else self._file

    def _signals(self, epoch: int) -> bytes:
        return _pack(_NOTIFY, "Signals", flags=_at(self._flags), tags=_at(self._tags), epoch=epoch, masked=0)

    def _dispatch_args(self) -> bytes:
        return _pack(
            _DISPATCH,
            "DispatchArgs",
            rows=_at(self._rows),
            recv_topk=_at(self._recv_idx),
            recv_weights=_at(self._recv_weights),
            recv_source=_at(self._recv_source),
            num_tokens=TOKENS,
            row_vectors=HIDDEN * 4 // _VECTOR_BYTES,
            top_k=TOP_K,
            experts_per_rank=EXPERTS_PER_RANK,
            send_routing=1,
        )

    def _shared_bytes(self, name: str) -> int:
        """Dynamic shared memory of a block: row pointers, and the rows that TMA has under way."""
        warps = THREADS // 32
        pointers = warps * RANKS * header_struct(_LAYOUT, "RowPtr").size
        if name in ("dispatch_exact", "combine_thread", "combine_fused"):
            return 0
        if name == "dispatch_tma":
            stages = header_constant(str(self._file), "kTmaStages")
            return pointers + warps * stages * (HIDDEN * 4 + 8)
        return pointers


def _pack(header: str, name: str, **fields: Any) -> bytes:
    return header_struct(header, name).pack(**fields)


def _broken(file: Path) -> Path:
    return file.with_name(f"{file.stem}_broken.cu")


def _at(array: Any) -> int:
    return describe(array).address
