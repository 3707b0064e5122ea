"""The symmetric memory of a Buffer, and the launches of the kernels that work on it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from ep_lib.errors import OutOfSymmetricMemory, RankMismatchError
from ep_lib.memory.arrays import BFLOAT16, describe
from ep_lib.moe import kernels
from ep_lib.moe.config import BufferConfig, make_memory_map
from ep_lib.moe.kernels import kernel, pack
from ep_lib.moe.mode import Arrivals, Payload, Plan
from ep_lib.runtime.rank import Rank

# Threads a block. An emulated thread costs memory and time of its own, and two warps show all that more would.
_THREADS = {"emulator": 64, "cuda": 512}
_WARP = 32


class Routing(NamedTuple):
    """Where this rank's tokens go, in memory that kernels read: int32 arrays of the rank's array module."""

    topk_idx: Any  # [num_tokens, top_k]: global expert ids
    slot: Any  # [num_tokens, ranks]: see <ep/layout.cuh>
    first_row: Any  # [ranks]: where this rank's rows begin on each destination


class Exchange:
    """The :class:`ep_lib.moe.mode.Mode` of ranks that reach each other by loads and stores: direct writes.

    ``operation`` is the number of the current operation, the same on all ranks: begin each with :meth:`next_operation`.
    """

    carries_fp8 = False

    def __init__(self, rank: Rank, config: BufferConfig) -> None:
        """Collective. Raises RankMismatchError and OutOfSymmetricMemory."""
        require_same_everywhere(rank, config)
        self._rank = rank
        self._config = config
        self._map = make_memory_map(config)
        self._memory = _allocate(rank, config, self._map.nbytes)
        self._memory[: self._map.zeroed_bytes] = 0
        self.settle()
        rank.barrier()  # no signal may arrive before the zeros
        info = describe(self._memory)
        self._address = info.address
        self.device = info.device
        # How this rank's array module calls the Buffer's dtype: CuPy has no bfloat16.
        is_bits = config.dtype == BFLOAT16 and info.kind == "cupy"
        self.storage_dtype = np.dtype(np.uint16) if is_bits else config.dtype
        self._threads = _THREADS[rank.backend]
        self._differs = rank.to_device(np.zeros(rank.world_size, np.int32))  # written by compare_notes
        self.operation = 0
        self._last_combine = 0

    def close(self) -> None:
        """Free the symmetric memory. Peers may still read it: rank.symmetric() waits for them before it reuses it."""
        if not self._rank.is_closed:
            self._rank.free(self._memory)

    def next_operation(self) -> None:
        """Every rank begins the same operation."""
        self.operation += 1

    def dispatch(
        self, payload: Payload, experts: Any, weights: Any, options: int
    ) -> tuple[Routing, Plan, Arrivals | None]:
        """Count, send straight away, and copy what arrived before the next operation reuses the receive area."""
        routing, counted = self.count(experts, options)
        self.send(payload.rows, weights, routing, send_routing=True)
        plan = self.plan(counted)
        rows = int(plan.received.sum())
        arrivals = self._arrivals(rows, weights)
        topk, source = self.received("recv_topk", rows), self.received("recv_source", rows)
        return routing, plan, arrivals._replace(topk=topk, source=source)

    def dispatch_again(self, payload: Payload, weights: Any, routing: Routing, rows: int, note: int) -> Arrivals | None:
        """Meet the others, then send as the handle says; then :meth:`who_differs`."""
        self.enter(note)
        self.send(payload.rows, weights, routing, send_routing=False)
        self._rank.synchronize()
        return self._arrivals(rows, weights)

    def combine(self, rows: Any, weights: Any, routing: Routing, note: int) -> Any:
        """Offer rows, pull the others' and add up: ``[num_tokens, hidden]``; then :meth:`who_differs`."""
        self.settle()
        self.stage(rows, note)
        return self.pull(weights, routing)

    def _arrivals(self, rows: int, weights: Any) -> Arrivals:
        """Copies of the rows and weights that lie in the receive area."""
        sent_weights = None if weights is None else self.received("recv_weights", rows)
        return Arrivals(rows=self.received("rows", rows), scales=None, topk=None, weights=sent_weights, source=None)

    def count(self, experts: Any, options: int) -> tuple[Routing, Any]:
        """Launch layout and notify for ``experts`` ``[num_tokens, top_k]``; the second result is for :meth:`plan`."""
        config, rank = self._config, self._rank
        ranks = config.world_size
        topk_idx, slot, rank_counts, expert_counts = launch_layout(rank, config, self._threads, experts)
        plan = rank.empty(3 * ranks + config.experts_per_rank, np.int32)
        notify = pack(
            kernels.NOTIFY_ARGS,
            signals=self._signals(),
            counts=self._at("counts"),
            expert_counts=self._at("expert_counts"),
            experts_per_rank=config.experts_per_rank,
            options=options,
        )
        kernel("notify").launch(rank, 1, self._threads, notify, rank_counts, expert_counts, plan)
        return Routing(topk_idx, slot, plan[:ranks]), plan

    def plan(self, plan: Any) -> Plan:
        """Wait for all kernels and read what notify found out."""
        host, ranks = self._rank.to_host(plan), self._config.world_size
        return Plan(host[ranks : 2 * ranks].copy(), host[2 * ranks : 3 * ranks], host[3 * ranks :].copy())

    def enter(self, note: int) -> None:
        """Launch the meeting that replaces notify when the counts are known; then :meth:`who_differs`."""
        self.settle()
        kernel("enter").launch(self._rank, 1, self._threads, self._signals(), note, self._differs)

    def send(self, x: Any, weights: Any, routing: Routing, *, send_routing: bool) -> None:
        """Launch the dispatch kernel, which ends when all rows for this rank have arrived."""
        config = self._config
        args = pack(
            kernels.DISPATCH_ARGS,
            signals=self._signals(),
            rows=self._at("rows"),
            recv_topk=self._at("recv_topk"),
            recv_weights=self._at("recv_weights"),
            recv_source=self._at("recv_source"),
            finished_blocks=self._at("finished_blocks"),
            num_tokens=len(x),
            row_vectors=config.row_vectors,
            top_k=config.top_k,
            experts_per_rank=config.experts_per_rank,
            send_routing=int(send_routing),
        )
        self._launch_on_tokens("dispatch", args, x, routing.topk_idx, weights, routing.slot, routing.first_row)

    def stage(self, rows: Any, note: int) -> None:
        """Launch the kernel that offers ``rows`` to the other ranks; then :meth:`who_differs`."""
        args = pack(
            kernels.STAGE_ARGS,
            signals=self._signals(),
            rows=self._at("rows"),
            finished_blocks=self._at("finished_blocks"),
            note=note,
            previous_operation=self._last_combine,
            num_vectors=len(rows) * self._config.row_vectors,
        )
        kernel("stage").launch(self._rank, self._config.num_sms, self._threads, args, rows, self._differs)
        self._last_combine = self.operation

    def pull(self, weights: Any, routing: Routing) -> Any:
        """Launch the combine kernel; returns its output ``[num_tokens, hidden]``."""
        config = self._config
        out = self._rank.empty((len(routing.slot), config.hidden), self.storage_dtype)
        args = pack(
            kernels.COMBINE_ARGS,
            signals=self._signals(),
            rows=self._at("rows"),
            finished_blocks=self._at("finished_blocks"),
            num_tokens=len(routing.slot),
            row_vectors=config.row_vectors,
            top_k=config.top_k,
            experts_per_rank=config.experts_per_rank,
        )
        template = "<__nv_bfloat16>" if config.dtype == BFLOAT16 else "<float>"
        self._launch_on_tokens(
            "combine", args, out, routing.topk_idx, weights, routing.slot, routing.first_row, template=template
        )
        return out

    def who_differs(self) -> list[int]:
        """Wait for all kernels; the ranks whose note was another one than ours."""
        differs = np.flatnonzero(self._rank.to_host(self._differs))
        if len(differs):
            self._differs[...] = 0
            self.settle()
        return [int(r) for r in differs]

    def received(self, name: str, rows: int) -> Any:
        """A copy of the first rows of a part of the receive area: "rows", "recv_topk", ..."""
        part = getattr(self._map, name)
        whole = self._memory[part.offset : part.offset + part.nbytes].view(part.dtype).reshape(part.shape)
        copy = whole[:rows].copy()
        return copy.view(self.storage_dtype) if name == "rows" else copy

    def settle(self) -> None:
        """CuPy's own kernels may run on another stream than ours: let them finish."""
        if self._rank.backend == "cuda":
            self._rank.xp.cuda.get_current_stream().synchronize()

    def _launch_on_tokens(self, name: str, *args: Any, template: str = "") -> None:
        """A kernel in which a warp takes a token and lists its places in shared memory."""
        shared_bytes = self._threads // _WARP * self._config.world_size * kernels.PLACE_BYTES
        kernel(name, template).launch(self._rank, self._config.num_sms, self._threads, *args, shared_bytes=shared_bytes)

    def _signals(self) -> Any:
        return pack(kernels.SIGNALS, flags=self._at("flags"), notes=self._at("notes"), operation=self.operation)

    def _at(self, name: str) -> int:
        """Address of a part of this rank's symmetric memory."""
        offset: int = getattr(self._map, name).offset
        return self._address + offset


def launch_layout(rank: Rank, config: BufferConfig, threads: int, experts: Any) -> tuple[Any, Any, Any, Any]:
    """Launch <ep/layout.cuh> for ``experts`` ``[num_tokens, top_k]``: topk_idx, slot, rank_counts, expert_counts."""
    ranks, num_tokens = config.world_size, len(experts)
    # Kernels know one type of index. The copy is the handle's own: the caller may overwrite his array.
    topk_idx = rank.empty((num_tokens, config.top_k), np.int32)
    topk_idx[...] = experts
    slot = rank.empty((num_tokens, ranks), np.int32)
    rank_counts = rank.empty(ranks, np.int32)
    expert_counts = rank.empty(config.num_experts, np.int32)
    if rank.backend == "cuda":
        rank.xp.cuda.get_current_stream().synchronize()  # CuPy's copy may run on another stream than our kernels
    args = pack(
        kernels.LAYOUT_ARGS, num_tokens=num_tokens, top_k=config.top_k, experts_per_rank=config.experts_per_rank
    )
    kernel("layout").launch(
        rank,
        min(ranks, config.num_sms),
        threads,
        args,
        topk_idx,
        slot,
        rank_counts,
        expert_counts,
        shared_bytes=4 * (kernels.MAX_WARPS + config.experts_per_rank),
    )
    return topk_idx, slot, rank_counts, expert_counts


def name_ranks(numbers: list[int]) -> str:
    """``rank 3``, ``ranks 0, 2``."""
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def require_same_everywhere(rank: Rank, config: BufferConfig) -> None:
    """Raises RankMismatchError that says which ranks passed which values."""
    mine = {name: str(value) for name, value in asdict(config).items()}
    everybody = rank.all_gather(mine)
    complaints = []
    for name in mine:
        by_value: dict[str, list[int]] = {}
        for r, theirs in enumerate(everybody):
            by_value.setdefault(theirs[name], []).append(r)
        if len(by_value) > 1:
            complaints.append(f"{name} is " + " but ".join(f"{v} on {name_ranks(r)}" for v, r in by_value.items()))
    if complaints:
        raise RankMismatchError(f"the ranks make different Buffers: {'; '.join(complaints)}; pass the same everywhere")


def _allocate(rank: Rank, config: BufferConfig, nbytes: int) -> Any:
    try:
        return rank.symmetric(nbytes, np.uint8, fill=None)
    except OutOfSymmetricMemory as error:
        fits = _tokens_that_fit(config, error.available)
        lower = f"max_tokens={fits} would fit" if fits else "not even max_tokens=1 would fit"
        raise OutOfSymmetricMemory(
            f"a Buffer for {config.world_size} ranks x max_tokens={config.max_tokens} x hidden={config.hidden} "
            f"{config.dtype.name} needs {error.requested} bytes of symmetric memory on every rank, and the largest "
            f"free part has {error.available}: {error.short_by} bytes are missing. Lower max_tokens ({lower}), or "
            f"start with heap_bytes={rank.heap_bytes + error.short_by} or more",
            requested=error.requested,
            available=error.available,
        ) from error


def _tokens_that_fit(config: BufferConfig, available: int) -> int:
    """The largest max_tokens with which the Buffer takes at most ``available`` bytes; 0 if there is none."""
    low, high = 0, config.max_tokens
    while low < high:
        middle = (low + high + 1) // 2
        smaller = BufferConfig(**{**asdict(config), "max_tokens": middle})
        fits = make_memory_map(smaller).nbytes <= available
        low, high = (middle, high) if fits else (low, middle - 1)
    return low
