"""Notebooks 06 and 07: one rung of a ladder at a time, with few and short tokens, on any backend and seed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ep_lib
from ep_lib.emulator.fabric import Fabric
from ep_lib.emulator.hardware import find_hardware
from ep_lib.emulator.timeline import Span, Timeline
from ep_lib.jit.kernel import Kernel
from ep_lib.runtime.rank import Rank
from ep_lib.workshop.course.ladders import Memory, load
from ep_lib.workshop.course.ladders.exchange import FULL, RANKS, SMALL, Exchange, Shape, combined
from ep_lib.workshop.lessons import packed
from ep_lib.workshop.notebook import find

PROFILED = Shape(ranks=2, top_k=2, tokens=128)  # of benchmarks/gpu_profile.py
_HARDWARE = "h100-cx7"
_LAYOUT = "moe/common/layout.cu"

__all__ = [
    "FULL",
    "PROFILED",
    "RANKS",
    "SMALL",
    "combine",
    "combine_runs",
    "combined",
    "count_rows",
    "dispatch",
    "dispatch_orders",
]


def dispatch(rank: Rank, name: str, shape: Shape = SMALL) -> dict[str, Any]:
    """The kernel ``name`` of 06_dispatch.cu or 06_dispatch_broken.cu, and a reader behind it: the rows that arrive
    here."""
    exchange = Exchange(Memory(rank), load("06").path, shape)
    rank.barrier()
    exchange.dispatch(name)
    exchange.read_rows()
    rank.barrier()
    return exchange.received()


def count_rows(
    rank: Rank, topk_idx: Sequence[NDArray[Any]], num_experts: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The layout kernel on this rank's tokens, ``topk_idx[rank]``: their send indices, [tokens, ranks], and how many
    rows go to each rank."""
    idx, per_rank = topk_idx[rank.rank].astype(np.int32), num_experts // rank.world_size
    send_index = rank.empty((len(idx), rank.world_size), np.int32)
    rank_counts, expert_counts = rank.empty(rank.world_size, np.int32), rank.empty(num_experts, np.int32)
    args = packed(_LAYOUT, "LayoutArgs", num_tokens=len(idx), top_k=idx.shape[1], experts_per_rank=per_rank)
    Kernel.from_file(find(f"ep_lib/{_LAYOUT}"), "ep_get_dispatch_layout").launch(
        rank,
        rank.world_size,
        64,
        args,
        rank.to_device(idx),
        send_index,
        rank_counts,
        expert_counts,
        shared_bytes=4 * (32 + per_rank),  # an int for each warp that a block may have, and for each expert of a rank
    )
    return rank.to_host(send_index), rank.to_host(rank_counts)


def combine(rank: Rank, name: str, shape: Shape = SMALL) -> Any:
    """The experts and the kernel ``name`` of 07_combine.cu or 07_combine_broken.cu: the sums of this rank's tokens."""
    exchange = Exchange(Memory(rank), load("07").path, shape)
    out = exchange.prepare_combine()
    rank.barrier()
    exchange.experts_and_combine(name)
    rank.barrier()
    return rank.to_host(out)


def dispatch_orders(name: str, backend: str, seeds: int) -> list[list[tuple[int, int]]]:
    """For each seed (on GPUs: each run), the tokens in rank 0's rows, as (source rank, token)."""
    runs = (_spawn(dispatch, name, backend, seed) for seed in range(seeds))
    return [[(int(rank), int(token)) for rank, token in results[0]["source"]] for results in runs]


def combine_runs(name: str, backend: str, seeds: int) -> list[list[Any]]:
    """For each seed (on GPUs: each run), the sums of all ranks."""
    return [_spawn(combine, name, backend, seed) for seed in range(seeds)]


# ---- a GPU's times beside the virtual clock --------------------------------------------------------------------------
def clocked_dispatch() -> Timeline:
    """The kernel that benchmarks/gpu_profile.py records, on the virtual clock: from its first instruction on."""
    timeline = ep_lib.simulate(_profiled, PROFILED.ranks, hardware=_HARDWARE)
    kernels = [span for span in timeline.spans if span.kind == "kernel" and span.name == "dispatch"]
    begin = min(span.begin_ns for span in kernels)
    spans = tuple(
        replace(span, begin_ns=max(span.begin_ns - begin, 0), end_ns=span.end_ns - begin)
        for span in timeline.spans
        if span.end_ns > begin
    )
    return replace(timeline, spans=spans, samples=(), end_ns=timeline.end_ns - begin)


def _profiled(rank: Rank) -> None:
    Exchange(Memory(rank), load("06").path, PROFILED).dispatch("dispatch")


def recorded_dispatch(file: Path, rank: int | None = None) -> Timeline:
    """A file of benchmarks/gpu_profile.py as a timeline, whose nanoseconds are those of the GPUs. ``rank``: the only
    one of it; None: all."""
    marks = [mark for mark in json.loads(file.read_text(encoding="utf-8"))["marks"] if rank in (None, mark[0])]
    by_warp = sorted(marks, key=lambda mark: mark[:3])  # and in the order of time
    spans = [span for _, of_warp in groupby(by_warp, key=lambda mark: mark[:3]) for span in _spans(list(of_warp))]
    for (of_rank, block), of_block in groupby(by_warp, key=lambda mark: mark[:2]):
        times = [mark[4] for mark in of_block]
        spans.append(Span(of_rank, block, None, "kernel", "dispatch", min(times), max(times)))
    hardware = find_hardware(_HARDWARE)  # of the model beside it
    end = max(span.end_ns for span in spans)
    return Timeline([], hardware, Fabric(), PROFILED.ranks, tuple(spans), (), (), end)


def _spans(marks: Sequence[tuple[int, int, int, str, int]]) -> Iterator[Span]:
    """The spans of one warp between its marks."""
    for (rank, block, warp, what, begin), (*_, then, end) in pairwise(marks):
        if what == "token":
            yield Span(rank, block, warp, "copy", "", begin, end)
        elif then == "waited":
            yield Span(rank, block, warp, "wait", "", begin, end)


def _spawn(main: Any, name: str, backend: str, seed: int) -> list[Any]:
    results: list[Any] = ep_lib.spawn(main, RANKS, backend, seed=seed if backend == "emulator" else None, args=(name,))
    return results
