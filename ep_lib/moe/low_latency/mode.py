"""Low-latency mode: its memory, and the launches of its kernels. Knows nothing of callers' mistakes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ep_lib.errors import ArgumentError, OutOfSymmetricMemory
from ep_lib.memory.arrays import BFLOAT16, describe, like
from ep_lib.moe.kernels import kernel, pack
from ep_lib.moe.low_latency import structs
from ep_lib.moe.low_latency.config import LowLatencyConfig, LowLatencyMap, make_low_latency_map
from ep_lib.reference import FP8, FP8_GROUP
from ep_lib.runtime.rank import Rank

_WARP = 32
_BOTH = structs.SENDS | structs.RECEIVES
# Blocks on each multiprocessor, and threads of each. Together they fill one: __launch_bounds__ leaves 72 registers a
# thread. Two blocks of a dispatch keep the links busy while one of them signals; a combine has more to wait for.
_DISPATCH_BLOCKS, _DISPATCH_THREADS = 2, 448
_COMBINE_BLOCKS, _COMBINE_THREADS = 4, 224
_MOST_THREADS = 896
# An emulated thread costs memory and time of its own; two warps and a few blocks show all that more would.
_EMULATED_SMS, _EMULATED_COMBINE_BLOCKS, _EMULATED_THREADS = 2, 2, 64


class Arrivals(NamedTuple):
    """What a dispatch brings: this rank's own memory, of the caller's kind. E experts, C = capacity rows each."""

    rows: Any  # [E, C, hidden] bfloat16 or FP8
    scales: Any | None  # float32 [E, C, hidden / 128] of FP8 rows
    counts: Any  # int32 [E]
    places: Any  # int32 [ranks, max_tokens, top_k]: see <moe/low_latency/dispatch.cuh>
    token_counts: Any  # int32 [ranks]
    weights: Any | None  # float32 [ranks, max_tokens, top_k] where they travel with the dispatch


class Shape(NamedTuple):
    """How a kernel is launched."""

    blocks: int
    threads: int
    role_blocks: int  # a divisor of blocks. Where a kernel does both, of so many consecutive blocks
    send_blocks: int  # the first of them only send, the others only receive; 0: every block does both in turn


_NO_ROLES = Shape(1, _WARP, 1, 0)


@dataclass
class Tuning:
    """Shapes to use instead of the usual ones."""

    dispatch: Shape | None = None
    combine: Shape | None = None


@dataclass
class LowLatency:
    """Collective to make. Raises ArgumentError and OutOfSymmetricMemory."""

    rank: Rank
    config: LowLatencyConfig
    tuning: Tuning = field(default_factory=Tuning)

    def __post_init__(self) -> None:
        rank, config = self.rank, self.config
        self._sms = _num_sms(rank, config.num_sms)
        self._map: LowLatencyMap = make_low_latency_map(config)
        self._memory = _allocate(rank, config, self._map.nbytes)
        self._memory[: self._map.zeroed_bytes] = 0
        self._finished = rank.to_device(np.zeros((structs.NUM_KINDS, 2), np.uint64))
        self.mask = rank.to_device(np.zeros(config.world_size, np.uint32))
        self.settle()
        rank.barrier()  # no flag may arrive before the zeros
        self._address = describe(self._memory).address

    def close(self, orderly: bool) -> None:
        """Free the symmetric memory; ``orderly``: when every rank has come here, or did not within the limit."""
        if self.rank.is_closed:
            return
        if orderly:
            args = self._common(0, mask_on_timeout=True)  # a rank that is gone is no error any more
            kernel("low_latency_finish").launch(self.rank, 1, _WARP, args, uses=(self._finished, self.mask))
            self.rank.synchronize()
        self.rank.free(self._memory)

    def settle(self) -> None:
        """CuPy's own kernels may run on another stream than ours: let them finish."""
        if self.rank.backend == "cuda":
            self.rank.xp.cuda.get_current_stream().synchronize()

    def arrivals(self, kind: str, fp8: bool, weighted: bool = False) -> Arrivals:
        """Memory for what a dispatch brings. Nothing waits for the GPU."""
        c = self.config
        shape = (c.experts_per_rank, c.capacity)
        return Arrivals(
            rows=self.empty(kind, (*shape, c.hidden), FP8 if fp8 else BFLOAT16),
            scales=self.empty(kind, (*shape, c.hidden // FP8_GROUP), np.float32) if fp8 else None,
            counts=self.empty(kind, (c.experts_per_rank,), np.int32),
            places=self.empty(kind, (c.world_size, c.max_tokens, c.top_k), np.int32),
            token_counts=self.empty(kind, (c.world_size,), np.int32),
            weights=self.empty(kind, (c.world_size, c.max_tokens, c.top_k), np.float32) if weighted else None,
        )

    def empty(self, kind: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array of the caller's kind; torch's own where torch has the GPU, so that CUDA graphs may capture it."""
        dtype = np.dtype(dtype)
        if kind == "torch" and self.rank.backend == "cuda":
            import torch

            return torch.empty(shape, dtype=getattr(torch, dtype.name), device="cuda")
        if kind == "cupy" and dtype in (BFLOAT16, FP8):
            dtype = np.dtype(f"u{dtype.itemsize}")
        return like(kind, self.rank.empty(shape, dtype))

    def dispatch(
        self, halves: int, fp8: bool, x: Any, topk_idx: Any, arrivals: Arrivals, topk_weights: Any = None
    ) -> None:
        """Launch what ``halves`` say (SENDS, RECEIVES) of a dispatch on the stream that is chosen."""
        index = _index_type(topk_idx)
        shape = self.tuning.dispatch or self.dispatch_shape(fp8, halves)
        args = pack(
            structs.LOW_LATENCY_DISPATCH_ARGS,
            common=self._common(0 if x is None else len(x), shape),
            slots=self._at("dispatch_slots"),
            row_flags=self._at("dispatch_flags"),
            routes=self._at("routes"),
            weights=self._at("dispatch_weights"),
        )
        to = pack(structs.LOW_LATENCY_ARRIVALS, **{name: _address(array) for name, array in arrivals._asdict().items()})
        kernel("low_latency_dispatch", f"<{str(fp8).lower()}, {halves}, {index}>").launch(
            self.rank,
            shape.blocks,
            shape.threads,
            args,
            to,
            x,
            topk_idx,
            topk_weights,
            shared_bytes=4 * self.config.experts_per_rank,
            uses=tuple(a for a in (*arrivals, self._finished, self.mask) if a is not None),
        )

    def combine(self, halves: int, out: Any, rows: Any, topk_idx: Any, topk_weights: Any, arrivals: Arrivals) -> None:
        """Launch what ``halves`` say of a combine on the stream that is chosen; of ``arrivals`` it needs the routing.
        Without ``topk_weights``: those that came with the dispatch."""
        shape = self.tuning.combine or self.combine_shape()
        args = pack(
            structs.LOW_LATENCY_COMBINE_ARGS,
            common=self._common(len(topk_idx), shape),
            slots=self._at("combine_slots"),
            row_flags=self._at("combine_flags"),
            weights=self._at("weights"),
            places=_address(arrivals.places),
            token_counts=_address(arrivals.token_counts),
            known_weights=0 if topk_weights is not None else _address(arrivals.weights),
        )
        kernel("low_latency_combine", f"<{halves}, {_index_type(topk_idx)}>").launch(
            self.rank,
            shape.blocks,
            shape.threads,
            args,
            out,
            rows,
            topk_idx,
            topk_weights,
            uses=tuple(
                a
                for a in (arrivals.places, arrivals.token_counts, arrivals.weights, self._finished, self.mask)
                if a is not None
            ),
        )

    def dispatch_shape(self, fp8: bool, halves: int) -> Shape:
        """On all multiprocessors, half of them send and half receive. Fewer get a block each, as nobody can say where
        two would go, which sends, then receives."""
        vectors = self.config.row_vectors // 2 if fp8 else self.config.row_vectors
        if self.config.num_sms is not None:
            return Shape(self._sms, self._threads(vectors, _MOST_THREADS), 1, 0)
        threads = self._threads(vectors, _DISPATCH_THREADS)
        if halves != _BOTH:
            return Shape(self._sms, threads, 1, 0)
        return Shape(_DISPATCH_BLOCKS * self._sms, threads, self._sms, self._sms // 2)

    def combine_shape(self) -> Shape:
        """All blocks send, then receive: it takes all multiprocessors to add up."""
        if self.config.num_sms is not None:
            return Shape(self._sms, self._threads(self.config.row_vectors, _MOST_THREADS), 1, 0)
        blocks = _COMBINE_BLOCKS if self.rank.backend == "cuda" else _EMULATED_COMBINE_BLOCKS
        return Shape(blocks * self._sms, self._threads(self.config.row_vectors, _COMBINE_THREADS), 1, 0)

    def _threads(self, vectors: int, most: int) -> int:
        """Up to ``most`` threads, of which each moves as many of a row's vectors as the next."""
        if self.rank.backend == "emulator":
            return _EMULATED_THREADS
        rounds = -(-vectors // most)
        return -(-vectors // (rounds * _WARP)) * _WARP

    def _common(self, num_tokens: int, shape: Shape = _NO_ROLES, mask_on_timeout: bool = False) -> Any:
        config = self.config
        return pack(
            structs.LOW_LATENCY_ARGS,
            finished=_address(self._finished),
            mask=_address(self.mask),
            credits=self._at("credits"),
            num_tokens=num_tokens,
            max_tokens=config.max_tokens,
            top_k=config.top_k,
            experts_per_rank=config.experts_per_rank,
            row_vectors=config.row_vectors,
            role_blocks=shape.role_blocks,
            send_blocks=shape.send_blocks,
            mask_on_timeout=int(mask_on_timeout or config.mask_on_timeout),
        )

    def _at(self, name: str) -> int:
        """Address of a part of this rank's symmetric memory."""
        offset: int = getattr(self._map, name).offset
        return self._address + offset


def _num_sms(rank: Rank, chosen: int | None) -> int:
    """Blocks wait for each other, so all must run at once. Raises ArgumentError."""
    if rank.backend == "emulator":
        return chosen or _EMULATED_SMS
    most = int(rank.xp.cuda.Device().attributes["MultiProcessorCount"])
    if chosen is not None and chosen > most:
        raise ArgumentError(f"num_low_latency_sms is {chosen}, and this GPU has {most} multiprocessors: pass no more")
    return chosen or most


def _index_type(topk_idx: Any) -> str:
    return "int" if topk_idx is None or describe(topk_idx).dtype == np.int32 else "long long"


def _address(array: Any) -> int:
    return 0 if array is None else describe(array).address


def _allocate(rank: Rank, config: LowLatencyConfig, nbytes: int) -> Any:
    try:
        return rank.symmetric(nbytes, np.uint8, fill=None)
    except OutOfSymmetricMemory as error:
        raise OutOfSymmetricMemory(
            f"low-latency mode for {config.world_size} ranks x num_max_dispatch_tokens_per_rank={config.max_tokens} x "
            f"hidden={config.hidden} needs {error.requested} bytes of symmetric memory on every rank, and the largest "
            f"free part has {error.available}: {error.short_by} bytes are missing. Lower "
            f"num_max_dispatch_tokens_per_rank, or start with heap_bytes={rank.heap_bytes + error.short_by} or more",
            requested=error.requested,
            available=error.available,
        ) from error
