"""The kernels of tutorial_kernels/06_dispatch_and_combine.cu, driven step by step. :class:`ep_lib.Buffer` has quicker
ones with the same results."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib import Kernel, Rank
from ep_lib.memory.arrays import BFLOAT16, describe
from ep_lib.moe import kernels
from ep_lib.moe.config import BufferConfig, lay_out, make_config
from ep_lib.moe.kernels import pack, struct
from support.dispatch_combine_cases import Case, assert_same, expert_output

SOURCE = Path(__file__).parents[2] / "tutorial_kernels" / "06_dispatch_and_combine.cu"
STAGE_ARGS = struct(
    ("signals", kernels.SIGNALS),
    ("rows", "u8"),
    ("finished_blocks", "u8"),
    ("note", "u8"),
    ("previous_operation", "u8"),
    ("num_vectors", "i8"),
)

COMBINE_ARGS = struct(
    ("signals", kernels.SIGNALS),
    ("rows", "u8"),
    ("finished_blocks", "u8"),
    ("num_tokens", "i4"),
    ("row_vectors", "i4"),
    ("top_k", "i4"),
    ("experts_per_rank", "i4"),
)


@functools.cache
def kernel(name: str, template: str = "") -> Kernel:
    """``layout`` is the library's, the others the tutorial's."""
    return kernels.kernel(name) if name == "layout" else Kernel.from_file(SOURCE, f"{name}{template}")


THREADS = {"emulator": 64, "cuda": 256}


class SimpleExchange:
    """Each method launches one step; nothing waits."""

    def __init__(self, rank: Rank, config: BufferConfig) -> None:
        ranks, rows = config.world_size, config.max_rows
        self.rank, self.config, self.threads = rank, config, THREADS[rank.backend]
        self.parts, nbytes = lay_out(
            [
                ("flags", (kernels.NUM_SIGNALS, ranks), "u8"),
                ("notes", (kernels.NUM_SIGNALS, ranks), "u8"),
                ("finished_blocks", (1,), "u4"),
                ("counts", (ranks, ranks + 1), "i4"),
                ("expert_counts", (ranks, config.experts_per_rank), "i4"),
                ("recv_topk", (rows, config.top_k), "i4"),
                ("recv_weights", (rows, config.top_k), "f4"),
                ("recv_source", (rows, 2), "i4"),
                ("rows", (rows, config.row_bytes), "u1"),
            ]
        )
        self.memory = rank.symmetric(nbytes, np.uint8)
        self.address = describe(self.memory).address
        self.differs = rank.to_device(np.zeros(ranks, np.int32))
        self.operation = self.last_combine = 0

    def at(self, name: str) -> int:
        return self.address + self.parts[name].offset

    def received(self, name: str, rows: int) -> Any:
        part = self.parts[name]
        whole = self.memory[part.offset : part.offset + part.nbytes].view(part.dtype).reshape(part.shape)
        return self.rank.to_host(whole[:rows])

    def signals(self) -> bytes:
        return pack(kernels.SIGNALS, flags=self.at("flags"), notes=self.at("notes"), operation=self.operation)

    def shape(self) -> dict[str, int]:
        return {"top_k": self.config.top_k, "experts_per_rank": self.config.experts_per_rank}

    def count(self, topk_idx: Any, options: int = 0) -> tuple[Any, Any]:
        """slot and plan."""
        config, rank, ranks = self.config, self.rank, self.config.world_size
        slot = rank.empty((len(topk_idx), ranks), np.int32)
        rank_counts, expert_counts = rank.empty(ranks, np.int32), rank.empty(config.num_experts, np.int32)
        plan = rank.empty(3 * ranks + config.experts_per_rank, np.int32)
        self.operation += 1
        args = pack(kernels.LAYOUT_ARGS, num_tokens=len(topk_idx), **self.shape())
        shared = 4 * (kernels.MAX_WARPS + config.experts_per_rank)
        grid = min(ranks, config.num_sms)
        counted = (slot, rank_counts, expert_counts)
        kernel("layout").launch(rank, grid, self.threads, args, topk_idx, *counted, shared_bytes=shared)
        notify = pack(
            kernels.NOTIFY_ARGS,
            signals=self.signals(),
            counts=self.at("counts"),
            expert_counts=self.at("expert_counts"),
            experts_per_rank=config.experts_per_rank,
            options=options,
        )
        kernel("exchange_counts").launch(rank, 1, self.threads, notify, rank_counts, expert_counts, plan)
        return slot, plan

    def send(self, x: Any, topk_idx: Any, weights: Any, slot: Any, plan: Any, *, send_routing: bool) -> None:
        names = ("rows", "recv_topk", "recv_weights", "recv_source", "finished_blocks")
        args = pack(
            kernels.DISPATCH_ARGS,
            signals=self.signals(),
            **{name: self.at(name) for name in names},
            num_tokens=len(x),
            row_vectors=self.config.row_vectors,
            send_routing=int(send_routing),
            **self.shape(),
        )
        self.launch("dispatch", "", args, x, topk_idx, weights, slot, plan)

    def enter(self, note: int) -> None:
        self.operation += 1
        kernel("enter").launch(self.rank, 1, self.threads, self.signals(), note, self.differs)

    def combine(self, y: Any, topk_idx: Any, weights: Any, slot: Any, plan: Any, note: int = 0) -> Any:
        config, rank = self.config, self.rank
        self.operation += 1
        stage = pack(
            STAGE_ARGS,
            signals=self.signals(),
            rows=self.at("rows"),
            finished_blocks=self.at("finished_blocks"),
            note=note,
            previous_operation=self.last_combine,
            num_vectors=len(y) * config.row_vectors,
        )
        kernel("stage").launch(rank, config.num_sms, self.threads, stage, y, self.differs)
        self.last_combine = self.operation
        out = rank.empty((len(slot), config.hidden), y.dtype)
        args = pack(
            COMBINE_ARGS,
            signals=self.signals(),
            rows=self.at("rows"),
            finished_blocks=self.at("finished_blocks"),
            num_tokens=len(slot),
            row_vectors=config.row_vectors,
            **self.shape(),
        )
        template = "<__nv_bfloat16>" if config.dtype == BFLOAT16 else "<float>"
        self.launch("combine", template, args, out, topk_idx, weights, slot, plan)
        return out

    def launch(self, name: str, template: str, *args: Any) -> None:
        shared = self.threads // 32 * self.config.world_size * kernels.PLACE_BYTES
        kernel(name, template).launch(self.rank, self.config.num_sms, self.threads, *args, shared_bytes=shared)


def run_simple(rank: Rank, case: Case, num_sms: int = 3, compare: bool = True) -> None:
    """Everything once, compared with the oracle bit for bit (or not: the checker shall find a mistake by itself)."""
    me, expected = rank.rank, case.expected_dispatch()
    want, ys = expected[me], [expert_output_of(r, e.x) for r, e in enumerate(expected)]

    def bits(array: Any) -> Any:
        return rank.to_device(array.view(np.uint16) if array.dtype.itemsize == 2 else array)

    def equal(got: Any, right: Any) -> None:
        wanted = right.astype(got.dtype) if right.dtype.kind == "i" else right
        assert not compare or got.tobytes() == wanted.tobytes()

    exchange = SimpleExchange(rank, make_config(rank.world_size, **case.buffer_arguments(), num_sms=num_sms))
    x, idx, weights = bits(case.xs[me]), bits(case.topk_idx[me].astype(np.int32)), bits(case.topk_weights[me])
    slot, plan = exchange.count(idx)
    exchange.send(x, idx, weights, slot, plan, send_routing=True)
    for name, right in (("rows", want.x), ("recv_topk", want.topk_idx), ("recv_weights", want.topk_weights)):
        equal(exchange.received(name, len(want.x)), right)
    equal(exchange.received("recv_source", len(want.x))[:, 1], want.src_token)
    equal(rank.to_host(plan)[3 * rank.world_size :], want.tokens_per_expert)
    y = bits(ys[me])
    for w in (None, weights):
        out = rank.to_host(exchange.combine(y, idx, w, slot, plan)).view(case.xs[me].dtype)
        if compare:
            assert_same(out, case.expected_combine(ys, weighted=w is not None)[me], "combine")
    exchange.enter(7)
    exchange.send(x, idx, None, slot, plan, send_routing=False)
    equal(exchange.received("rows", len(want.x)), want.x)
    assert not rank.to_host(exchange.differs).any()
    rank.barrier()


class _Named:
    def __init__(self, rank: int) -> None:
        self.rank = rank


def expert_output_of(rank: int, recv_x: Any) -> Any:
    return expert_output(_Named(rank), recv_x)  # type: ignore[arg-type]
