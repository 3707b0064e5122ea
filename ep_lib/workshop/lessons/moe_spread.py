"""The trained language model on many ranks, every token through dispatch and combine."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ep_lib.moe.buffer import Buffer
from ep_lib.moe.layer import ExpertBuffer
from ep_lib.moe.routing import load_per_expert
from ep_lib.runtime.rank import Rank
from ep_lib.runtime.spawn import spawn
from ep_lib.workshop.lessons.moe_model import ByteMoE, Bytes, cross_entropy
from ep_lib.workshop.lessons.moe_runs import LOSS_TOLERANCE, SpreadRun, Traffic

_CHOICE_BYTES = 8  # an int32 expert number and a float32 weight, top_k of each, travel with a row,
_SOURCE_BYTES = 8  # and so does where the row came from: rank and token, int32 each

# Modes: direct writes; PCIe mode, everything through NICs and rings; low-latency mode, rows as bfloat16
WAYS = ("direct", "pcie", "low latency")

OnPart = Callable[[int, int], None]  # the number of finished parts of a run, 0 first, and of all parts
Counts = npt.NDArray[np.int64]


@dataclass
class Counters:
    """One rank's counts, one entry per MoE layer: ``came`` counts arrivals, ``chosen`` the router's choices."""

    chosen: list[list[int]] = field(default_factory=list)  # choices of each expert (all ranks') by this rank's tokens
    came: list[list[int]] = field(default_factory=list)  # choices that reached each of this rank's experts
    rows_chosen: list[list[int]] = field(default_factory=list)  # rows that this rank's tokens need, by destination
    rows_came: list[list[int]] = field(default_factory=list)  # rows that arrived here, by source
    seconds: float = 0.0


@dataclass(frozen=True)
class RankResult:
    """One rank's report; ``loss_sum`` is over its own ``tokens``, in nats."""

    loss_sum: float
    tokens: int
    counters: Counters


class MeasuredBuffer:
    """A Buffer that also counts, measures time, and sends activations in ``dtype``."""

    def __init__(
        self, buffer: ExpertBuffer, rank: Rank, num_experts: int, dtype: torch.dtype, on_part: Callable[[], None]
    ) -> None:
        """``on_part`` is called after each dispatch and each combine."""
        self.counters = Counters()
        self._on_part = on_part
        self._buffer = buffer
        self._rank = rank
        self._num_experts = num_experts
        self._dtype = dtype
        self._started = 0.0

    def dispatch(self, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor) -> Any:
        self._started = time.perf_counter()
        recv = self._buffer.dispatch(x.to(self._dtype), topk_idx, topk_weights)
        ranks = self._rank.world_size
        visits = torch.zeros(len(x), ranks, dtype=torch.bool, device=x.device)
        visits.scatter_(1, topk_idx // (self._num_experts // ranks), True)
        counters = self.counters
        counters.chosen.append(_whole(load_per_expert(topk_idx, self._num_experts)))
        counters.rows_chosen.append(_whole(visits.sum(dim=0)))
        counters.came.append(_whole(load_per_expert(recv.topk_idx, self._num_experts // ranks)))
        counters.rows_came.append(_whole(recv.handle.recv_tokens_per_rank))
        self._on_part()
        return recv

    def combine(self, x: torch.Tensor, handle: Any) -> Any:
        out = self._buffer.combine(x.to(self._dtype), handle)
        self._rank.synchronize()
        self.counters.seconds += time.perf_counter() - self._started
        self._on_part()
        return out


class Came(NamedTuple):
    """The N rows of a low-latency dispatch, in the form of :meth:`ep_lib.Buffer.dispatch`."""

    x: torch.Tensor  # [N, hidden]
    topk_idx: torch.Tensor  # int64 [N, 1]
    topk_weights: torch.Tensor  # float32 [N, 1]: ones, since combine multiplies
    tokens_per_expert: torch.Tensor
    handle: LowLatencyWay
    by_expert: None = None  # rows are not grouped
    event: None = None  # nothing is asynchronous


@dataclass
class LowLatencyWay:
    """The handle of a low-latency dispatch: the places of its rows, and its tokens' choices."""

    handle: Any
    room: tuple[int, ...]  # shape of the experts' results: [experts_per_rank, capacity, hidden]
    places: torch.Tensor  # [N]: of the rows, in the whole array
    topk_idx: torch.Tensor
    topk_weights: torch.Tensor
    recv_tokens_per_rank: torch.Tensor


class LowLatencyBuffer:
    """Low-latency dispatch and combine behind the two calls that :class:`ep_lib.moe.layer.MoELayer` makes."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer

    def dispatch(self, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor) -> Came:
        rows, counts, handle, *_ = self._buffer.low_latency_dispatch(x, topk_idx, use_fp8=False)
        self._buffer._rank.synchronize()
        experts, capacity, hidden = rows.shape
        here = torch.arange(capacity, device=x.device) < counts.to(x.device).unsqueeze(1)  # [experts, capacity]
        places = here.flatten().nonzero().flatten()
        arrivals = handle._arrivals
        sources = torch.as_tensor(arrivals.recv_index), torch.as_tensor(arrivals.token_counts)
        sent = torch.arange(sources[0].shape[1], device=sources[0].device) < sources[1].unsqueeze(1)
        came = ((sources[0] >= 0).any(dim=2) & sent).sum(dim=1)
        way = LowLatencyWay(handle, (experts, capacity, hidden), places, topk_idx, topk_weights, came)
        expert = (places // capacity).unsqueeze(1)
        weights = torch.ones(len(places), 1, device=x.device)
        return Came(rows.reshape(-1, hidden)[places], expert, weights, counts, way)

    def combine(self, x: torch.Tensor, handle: LowLatencyWay) -> torch.Tensor:
        rows = x.new_zeros(handle.room[0] * handle.room[1], handle.room[2])
        rows[handle.places] = x
        out: torch.Tensor = self._buffer.low_latency_combine(
            rows.view(handle.room), handle.topk_idx, handle.topk_weights, handle.handle
        ).out
        return out


def run_rank(
    rank: Rank, model: ByteMoE, data: Bytes, dtype_name: str, way: str = "direct", on_part: OnPart | None = None
) -> RankResult:
    """The main function of every rank. ``data`` uint8 ``[sequences, context + 1]`` is the text for all ranks; each
    takes its part. ``way``: one of WAYS. Rank 0 calls ``on_part``.

    The rank keeps only a copy of its own experts, and drops the full model.
    """
    config = model.config
    device = torch.device("cuda", torch.cuda.current_device()) if rank.backend == "cuda" else torch.device("cpu")
    local = model.shard(rank.rank, rank.world_size).to(device)
    del model
    shares = np.array_split(data, rank.world_size)
    most = max(len(share) for share in shares) * config.context
    text = torch.from_numpy(shares[rank.rank].astype(np.int64)).to(device)
    buffer = Buffer(
        rank,
        num_experts=config.num_experts,
        top_k=config.top_k,
        hidden=config.hidden,
        max_tokens=most,
        dtype=dtype_name,
        allow_nvlink_for_normal_mode=way != "pcie",
        num_max_dispatch_tokens_per_rank=most if way == "low latency" else 0,
    )
    path = LowLatencyBuffer(buffer) if way == "low latency" else buffer
    parts = itertools.count(1)

    def tell() -> None:
        if on_part is not None and rank.rank == 0:
            on_part(next(parts), 2 * config.layers)

    measured = MeasuredBuffer(path, rank, config.num_experts, getattr(torch, dtype_name), tell)
    with torch.no_grad():
        logits, _ = local(text[:, :-1], measured)
        loss_sum = float(cross_entropy(logits, text[:, 1:], "sum").double())
    return RankResult(loss_sum, text[:, 1:].numel(), measured.counters)


def run_spread(
    model: ByteMoE,
    data: Bytes,
    *,
    ranks: int,
    backend: str,
    seed: int,
    loss_local: float,
    dtype_name: str = "float32",
    tolerance: float = LOSS_TOLERANCE,
    way: str = "direct",
    on_part: OnPart | None = None,
) -> SpreadRun:
    """Run ``data`` with the experts on ``ranks`` ranks and compare with ``loss_local``, the loss with all experts in
    this process.

    ``on_part`` gets the progress, on the emulator only: on GPUs, ranks are other processes, and quick.
    """
    on_part = on_part if backend == "emulator" else None
    if on_part is not None:
        on_part(0, 2 * model.config.layers)
    started = time.perf_counter()
    fabric = "srd" if way == "pcie" and backend == "emulator" else None  # the harder of the two networks
    results: list[RankResult] = spawn(
        run_rank, ranks=ranks, backend=backend, seed=seed, args=(model, data, dtype_name, way, on_part), fabric=fabric
    )
    seconds = time.perf_counter() - started
    config = model.config
    counters = [result.counters for result in results]
    tokens = sum(result.tokens for result in results)
    load = np.concatenate([_array(of.came) for of in counters], axis=1)  # [layer, expert]
    wanted = sum(_array(of.chosen) for of in counters)
    rows_came = np.stack([_array(of.rows_came) for of in counters], axis=2)  # [layer, source, destination]
    rows_chosen = np.stack([_array(of.rows_chosen) for of in counters], axis=1)
    row_bytes = config.hidden * getattr(torch, dtype_name).itemsize
    routing_bytes = config.top_k * _CHOICE_BYTES + _SOURCE_BYTES
    rows = rows_came.sum(axis=0)
    return SpreadRun(
        ranks=ranks,
        backend=backend,
        dtype=dtype_name,
        tokens=tokens,
        loss_local=loss_local,
        loss=sum(result.loss_sum for result in results) / tokens,
        load=_tuples(load),
        misplaced=int(np.abs(load - wanted).sum() + np.abs(rows_came - rows_chosen).sum()),
        dispatch=Traffic(_tuples(rows * (row_bytes + routing_bytes))),
        combine=Traffic(_tuples(rows.T * row_bytes)),
        moe_seconds=max(of.seconds for of in counters),
        seconds=seconds,
        way=way,
        tolerance=tolerance,
    )


def _array(counts: list[list[int]]) -> Counts:
    return np.array(counts, dtype=np.int64)


def _whole(counts: Any) -> list[int]:
    return [int(count) for count in counts.tolist()]


def _tuples(matrix: Counts) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(value) for value in row) for row in matrix)
