"""Shared code of the ladders of 06 and 07: a routing, the arrays around it, and the launches of each rung's kernels."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib import reference
from ep_lib.jit.kernel import Kernel, library_kernel
from ep_lib.jit.structs import header_constant, header_struct
from ep_lib.workshop.course.ladders import Memory
from ep_lib.workshop.lessons import packed

RANKS, EXPERTS_PER_RANK = 4, 2
WORK_NS = 3000  # of an expert, for a group of four rows
_LAYOUT, _NOTIFY, _DISPATCH = "moe/common/layout.cuh", "moe/common/notify.cuh", "moe/common/dispatch.cuh"
_VECTOR_BYTES = 16
_BROKEN = ("dispatch_without_atomics", "dispatch_block_0_signals", "combine_fused", "hurried_signal")


@dataclass(frozen=True)
class Shape:
    """The size of a run: tokens of each rank, elements of a token (a multiple of 4), the grid of its kernels, the
    number of ranks, and the choices of a token."""

    tokens: int = 64
    hidden: int = 1792
    blocks: int = 8
    threads: int = 128
    ranks: int = RANKS
    top_k: int = 4

    @property
    def experts(self) -> int:
        return self.ranks * EXPERTS_PER_RANK

    @property
    def row_vectors(self) -> int:
        return self.hidden * 4 // _VECTOR_BYTES


FULL = Shape()
SMALL = Shape(tokens=40, hidden=36, blocks=3, threads=32)  # for the checker, which watches every access


@dataclass(frozen=True)
class Routed:
    """Tokens and their experts; lists are over ranks."""

    num_experts: int
    xs: list[Any]
    topk_idx: list[Any]
    topk_weights: list[Any]


@functools.cache
def inputs(shape: Shape) -> Routed:
    """The same on every call: experts of different popularity, a few choices that are -1."""
    rng = np.random.default_rng(6)
    popularity = rng.random(shape.experts) + 0.3
    xs, idx, weights = [], [], []
    for _ in range(shape.ranks):
        order = np.argsort(-rng.random((shape.tokens, shape.experts)) * popularity, axis=1)
        chosen = order[:, : shape.top_k].astype(np.int32)
        chosen[rng.random(chosen.shape) < 0.05] = -1
        share = rng.random((shape.tokens, shape.top_k)).astype(np.float32)
        xs.append(rng.standard_normal((shape.tokens, shape.hidden)).astype(np.float32))
        idx.append(chosen)
        weights.append(share / share.sum(axis=1, keepdims=True))
    return Routed(shape.experts, xs, idx, weights)


@functools.cache
def arrivals(shape: Shape) -> list[reference.Received]:
    """The rows that every rank receives, by the NumPy oracle."""
    routed = inputs(shape)
    return reference.dispatch(routed.xs, routed.topk_idx, routed.topk_weights, num_experts=shape.experts)


def combined(shape: Shape) -> list[Any]:
    """The combined tokens of every rank, by the NumPy oracle."""
    routed = inputs(shape)
    ys = [each.x * _factor(rank) for rank, each in enumerate(arrivals(shape))]
    return list(reference.combine(ys, routed.topk_idx, routed.topk_weights, num_experts=shape.experts))


class Exchange:
    """The memory of one rank, and the launches of the kernels in ``file``."""

    def __init__(self, memory: Memory, file: Path, shape: Shape = FULL) -> None:
        self._memory, self._rank, self._file, self._shape = memory, memory.rank, file, shape
        self._shared = str(file.with_suffix(".cuh"))  # of 07_combine.cu
        routed, me, rows = inputs(shape), memory.rank.rank, shape.ranks * shape.tokens
        self._x = memory.own(routed.xs[me])
        self._idx, self._weights = memory.own(routed.topk_idx[me]), memory.own(routed.topk_weights[me])
        kinds = header_constant(_NOTIFY, "kNumSignals")
        self._flags, self._tags = (memory.symmetric(np.zeros((kinds, shape.ranks), np.uint64)) for _ in range(2))
        self._finished = memory.own(np.zeros(1, np.uint32))
        self._rows = memory.symmetric(np.zeros((rows, shape.hidden), np.float32))
        self._recv_idx = memory.symmetric(np.zeros((rows, shape.top_k), np.int32))
        self._recv_weights = memory.symmetric(np.zeros((rows, shape.top_k), np.float32))
        self._recv_source = memory.symmetric(np.zeros((rows, 2), np.int32))
        self._next_row = memory.symmetric(np.zeros(1, np.uint32))
        self._next_of_mine = memory.own(np.zeros(shape.ranks, np.int32))
        self._counts = memory.symmetric(np.zeros((shape.ranks, shape.ranks + 1), np.int32))
        self._expert_counts = memory.symmetric(np.zeros((shape.ranks, EXPERTS_PER_RANK), np.int32))
        self._send_index = memory.own(np.zeros((shape.tokens, shape.ranks), np.int32))
        self._rank_counts, self._choices = (memory.own(np.zeros(n, np.int32)) for n in (shape.ranks, shape.experts))
        self._plan = memory.own(np.zeros(3 * shape.ranks + EXPERTS_PER_RANK, np.int32))

    # ---- dispatch ----------------------------------------------------------------------------------------------------
    def dispatch(self, name: str) -> None:
        """Launches the kernels of the rung ``name`` of 06_dispatch.cu, or of 06_dispatch_broken.cu in place of rung
        2."""
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
        if name in _BROKEN:
            self._launch(name, *args[:4], self._send_index, self._next_of_mine, self._plan)
        elif name == "dispatch_counted":
            self._launch(name, *args, self._next_of_mine, self._plan)
        else:
            self._launch(name, *args, self._send_index, self._plan, shared_bytes=self._shared_bytes(name))

    def read_rows(self) -> None:
        """Launches a kernel that reads the dispatched rows, as an expert's would."""
        vectors = len(arrivals(self._shape)[self._rank.rank].x) * self._shape.row_vectors
        self._launch("read_rows", self._rows, vectors, self._rank.empty(self._rows.shape, np.float32))

    def received(self) -> dict[str, Any]:
        """The received rows as NumPy arrays."""
        rows = len(arrivals(self._shape)[self._rank.rank].x)
        arrays = {"x": self._rows, "topk_idx": self._recv_idx}
        arrays |= {"topk_weights": self._recv_weights, "source": self._recv_source}
        return {name: self._rank.to_host(array)[:rows] for name, array in arrays.items()}

    def enter(self, tag: int) -> Any:
        """The barrier of a dispatch whose handle knows all counts; int32 [ranks]: the ranks that have another
        ``tag``."""
        differs = self._rank.to_device(np.zeros(self._shape.ranks, np.int32))
        self._launch("enter", self._signals(1), tag, differs, grid=1)
        return differs

    def _lay_out(self) -> None:
        layout = library_kernel("moe/common/layout.cu", "ep_get_dispatch_layout")
        shape, args = self._shape, packed(_LAYOUT, "LayoutArgs", **self._sizes)
        shared = 4 * (header_constant(_LAYOUT, "kMaxWarps") + EXPERTS_PER_RANK)
        counted = (self._send_index, self._rank_counts, self._choices)
        layout.launch(self._rank, shape.ranks, shape.threads, args, self._idx, *counted, shared_bytes=shared)

    def _exchange_counts(self) -> None:
        counts = {"counts": self._counts, "expert_counts": self._expert_counts, "experts_per_rank": EXPERTS_PER_RANK}
        args = packed(_NOTIFY, "NotifyArgs", signals=self._signals(1), **counts, options=0)
        self._launch("exchange_counts", args, self._rank_counts, self._choices, self._plan, grid=1)

    # ---- combine -----------------------------------------------------------------------------------------------------
    def prepare_combine(self) -> Any:
        """Prepares the results of a dispatch, by the oracle, so that a combine runs alone. Returns the array of
        sums."""
        memory, me, shape = self._memory, self._rank.rank, self._shape
        sizes = {"num_experts": shape.experts, "world_size": shape.ranks}
        layouts = [reference.layout(idx, **sizes) for idx in inputs(shape).topk_idx]
        sent = np.array([layout.tokens_per_rank for layout in layouts], np.int32)  # [source, destination]
        here = arrivals(shape)[me]
        self._send_index = memory.own(layouts[me].slot.astype(np.int32))
        self._first_row = memory.own((np.cumsum(sent, axis=0) - sent)[me].astype(np.int32))
        self._received = memory.own(np.ascontiguousarray(sent[:, me]))
        self._arrived_x, self._row_count = memory.own(here.x), len(here.x)
        self._arrived_weights = memory.own(here.topk_weights)
        self._arrived_source = memory.own(np.stack([here.src_rank, here.src_token], axis=1).astype(np.int32))
        self._y = memory.own(np.zeros_like(here.x))
        self._sums = memory.symmetric(np.zeros((shape.tokens, shape.hidden), np.float32))
        groups = -(-shape.tokens // header_constant(self._shared, "kGroupRows"))
        self._arrived = memory.symmetric(np.zeros((shape.ranks, groups), np.uint64))
        self._differs = memory.own(np.zeros(shape.ranks, np.int32))
        return self._sums

    def experts_and_combine(self, name: str) -> None:
        """Launches the experts, and the kernels of the rung ``name`` of 07_combine.cu."""
        work = {"work_ns": WORK_NS, "factor": float(_factor(self._rank.rank))}
        sizes = {"max_tokens": self._shape.tokens, "row_vectors": self._shape.row_vectors}
        experts = packed(self._shared, "Experts", x=self._arrived_x, received=self._received, **sizes, **work)
        choices = (self._idx, self._weights)
        if name in ("experts_and_combine", "hurried_signal"):
            ways = {"returned": self._rows, "arrived": self._arrived, "epoch": 1, "expert_blocks": self._shape.blocks}
            overlap = packed(self._shared, "Overlap", **ways, **self._sizes)
            args = (experts, overlap, self._sums, *choices, self._send_index)
            self._launch(name, *args, grid=2 * self._shape.blocks)
            return
        self._launch("experts", experts, self._y)
        if name == "combine_atomics":
            arrived = (self._y, self._arrived_source, self._arrived_weights)
            counts = (self._row_count, self._shape.hidden, self._shape.top_k)
            self._launch(name, self._signals(1), self._finished, self._sums, *arrived, *counts)
            return
        self._launch("stage", self._stage_args(), self._y, self._differs)
        places = (self._send_index, self._first_row)
        full_name = f"{name}<float>" if name == "combine" else name
        shared = self._shared_bytes(name)
        args = (self._combine_args(), self._sums, *choices, *places)
        self._launch(full_name, *args, shared_bytes=shared)

    def _stage_args(self) -> bytes:
        vectors = self._row_count * self._shape.row_vectors
        more = {"tag": 0, "previous_epoch": 0, "num_vectors": vectors}
        return packed(self._file, "StageArgs", **self._published, **more)

    def _combine_args(self) -> bytes:
        vectors = self._shape.row_vectors
        return packed(self._file, "CombineArgs", **self._published, **self._sizes, row_vectors=vectors)

    @property
    def _published(self) -> dict[str, Any]:
        """The arguments of blocks that end with one signal for all of their rows."""
        return {"signals": self._signals(1), "rows": self._rows, "finished_blocks": self._finished}

    # ---- launches ----------------------------------------------------------------------------------------------------
    def _launch(self, name: str, *args: Any, grid: int | None = None, shared_bytes: int = 0) -> None:
        kernel = Kernel.from_file(_broken(self._file) if name in _BROKEN else self._file, name)
        grid, threads = grid or self._shape.blocks, self._shape.threads
        kernel.launch(self._rank, grid, threads, *args, shared_bytes=shared_bytes, uses=self._memory.arrays)

    def _signals(self, epoch: int) -> bytes:
        return packed(_NOTIFY, "Signals", flags=self._flags, tags=self._tags, epoch=epoch, masked=0)

    def _dispatch_args(self) -> bytes:
        came = {"recv_topk": self._recv_idx, "recv_weights": self._recv_weights, "recv_source": self._recv_source}
        sizes = {**self._sizes, "row_vectors": self._shape.row_vectors}
        return packed(_DISPATCH, "DispatchArgs", rows=self._rows, **came, **sizes, send_routing=1)

    @property
    def _sizes(self) -> dict[str, int]:
        shape = self._shape
        return {"num_tokens": shape.tokens, "top_k": shape.top_k, "experts_per_rank": EXPERTS_PER_RANK}

    def _shared_bytes(self, name: str) -> int:
        """Dynamic shared memory of a block: row pointers, and the rows that TMA is copying."""
        warps = self._shape.threads // 32
        pointers = warps * self._shape.ranks * header_struct(_LAYOUT, "RowPtr").size
        if name in ("dispatch_exact", "combine_thread", "combine_fused"):
            return 0
        if name == "dispatch_tma":
            stages = header_constant(str(self._file), "kTmaStages")
            return pointers + warps * stages * (self._shape.hidden * 4 + 8)
        return pointers


def _factor(rank: int) -> np.float32:
    """The factor that a rank's experts multiply by."""
    return np.float32(1 + rank / 3)


def _broken(file: Path) -> Path:
    return file.with_name(f"{file.stem}_broken.cu")
