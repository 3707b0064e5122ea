"""The best kernels of tutorial_kernels/06_dispatch.cu and 07_combine.cu, driven step by step. :class:`ep_lib.Buffer`
has quicker ones with the same results."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib import Kernel, Rank
from ep_lib.jit.kernel import library_kernel
from ep_lib.jit.structs import header_constant, header_struct
from ep_lib.memory.arrays import BFLOAT16, describe
from ep_lib.moe.config import BufferConfig, make_config
from ep_lib.moe.memory import lay_out
from support import ROOT
from support.dispatch_combine_cases import Case, assert_same, expert_output

TUTORIALS = ROOT / "tutorial_kernels"
SOURCE = TUTORIALS / "07_combine.cu"
LAYOUT, NOTIFY, DISPATCH = "moe/common/layout.cuh", "moe/common/notify.cuh", "moe/common/dispatch.cuh"


def pack(header: str | Path, name: str, **fields: Any) -> bytes:
    """The struct ``name`` that ``header`` declares."""
    return header_struct(str(header), name).pack(**fields)


@functools.cache
def kernel(name: str, template: str = "") -> Kernel:
    """``layout`` is the library's, the others the tutorial's."""
    return (
        library_kernel("moe/common/layout.cu", "ep_get_dispatch_layout")
        if name == "layout"
        else Kernel.from_file(
            SOURCE if name in ("stage", "combine") else TUTORIALS / "06_dispatch.cu", f"{name}{template}"
        )
    )


THREADS = {"emulator": 64, "cuda": 256}


class SimpleExchange:
    """Each method launches one step; nothing waits."""

    def __init__(self, rank: Rank, config: BufferConfig) -> None:
        ranks, rows = config.world_size, config.max_rows
        self.rank, self.config, self.threads = rank, config, THREADS[rank.backend]
        self.parts, nbytes = lay_out(
            [
                ("flags", (header_constant(NOTIFY, "kNumSignals"), ranks), "u8"),
                ("tags", (header_constant(NOTIFY, "kNumSignals"), ranks), "u8"),
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
        self.epoch = self.last_combine = 0

    def at(self, name: str) -> int:
        return self.address + self.parts[name].offset

    def received(self, name: str, rows: int) -> Any:
        part = self.parts[name]
        whole = self.memory[part.offset : part.offset + part.nbytes].view(part.dtype).reshape(part.shape)
        return self.rank.to_host(whole[:rows])

    def signals(self) -> bytes:
        return pack(NOTIFY, "Signals", flags=self.at("flags"), tags=self.at("tags"), epoch=self.epoch, masked=0)

    def shape(self) -> dict[str, int]:
        return {"top_k": self.config.top_k, "experts_per_rank": self.config.experts_per_rank}

    def count(self, topk_idx: Any, options: int = 0) -> tuple[Any, Any]:
        """send_index and plan."""
        config, rank, ranks = self.config, self.rank, self.config.world_size
        send_index = rank.empty((len(topk_idx), ranks), np.int32)
        rank_counts, expert_counts = rank.empty(ranks, np.int32), rank.empty(config.num_experts, np.int32)
        plan = rank.empty(3 * ranks + config.experts_per_rank, np.int32)
        self.epoch += 1
        args = pack(LAYOUT, "LayoutArgs", num_tokens=len(topk_idx), **self.shape())
        shared = 4 * (header_constant(LAYOUT, "kMaxWarps") + config.experts_per_rank)
        grid = min(ranks, config.num_sms)
        counted = (send_index, rank_counts, expert_counts)
        kernel("layout").launch(rank, grid, self.threads, args, topk_idx, *counted, shared_bytes=shared)
        notify = pack(
            NOTIFY,
            "NotifyArgs",
            signals=self.signals(),
            counts=self.at("counts"),
            expert_counts=self.at("expert_counts"),
            experts_per_rank=config.experts_per_rank,
            options=options,
        )
        kernel("exchange_counts").launch(rank, 1, self.threads, notify, rank_counts, expert_counts, plan)
        return send_index, plan

    def send(self, x: Any, topk_idx: Any, weights: Any, send_index: Any, plan: Any, *, send_routing: bool) -> None:
        names = ("rows", "recv_topk", "recv_weights", "recv_source")
        args = pack(
            DISPATCH,
            "DispatchArgs",
            **{name: self.at(name) for name in names},
            num_tokens=len(x),
            row_vectors=self.config.row_vectors,
            send_routing=int(send_routing),
            **self.shape(),
        )
        self.launch(
            "dispatch", "", args, self.signals(), self.at("finished_blocks"), x, topk_idx, weights, send_index, plan
        )

    def enter(self, tag: int) -> None:
        self.epoch += 1
        kernel("enter").launch(self.rank, 1, self.threads, self.signals(), tag, self.differs)

    def combine(self, y: Any, topk_idx: Any, weights: Any, send_index: Any, plan: Any, tag: int = 0) -> Any:
        config, rank = self.config, self.rank
        self.epoch += 1
        stage = pack(
            SOURCE,
            "StageArgs",
            signals=self.signals(),
            rows=self.at("rows"),
            finished_blocks=self.at("finished_blocks"),
            tag=tag,
            previous_epoch=self.last_combine,
            num_vectors=len(y) * config.row_vectors,
        )
        kernel("stage").launch(rank, config.num_sms, self.threads, stage, y, self.differs)
        self.last_combine = self.epoch
        out = rank.empty((len(send_index), config.hidden), y.dtype)
        args = pack(
            SOURCE,
            "CombineArgs",
            signals=self.signals(),
            rows=self.at("rows"),
            finished_blocks=self.at("finished_blocks"),
            num_tokens=len(send_index),
            row_vectors=config.row_vectors,
            **self.shape(),
        )
        template = "<__nv_bfloat16>" if config.dtype == BFLOAT16 else "<float>"
        self.launch("combine", template, args, out, topk_idx, weights, send_index, plan)
        return out

    def launch(self, name: str, template: str, *args: Any) -> None:
        shared = self.threads // 32 * self.config.world_size * header_struct(LAYOUT, "RowPtr").size
        kernel(name, template).launch(self.rank, self.config.num_sms, self.threads, *args, shared_bytes=shared)


def run_simple(rank: Rank, case: Case, num_sms: int = 3, compare: bool = True) -> None:
    """Everything once, compared with the oracle bit for bit (or not, so that the checker has to find the mistake)."""
    me, expected = rank.rank, case.expected_dispatch()
    want, ys = expected[me], [expert_output_of(r, e.x) for r, e in enumerate(expected)]

    def bits(array: Any) -> Any:
        return rank.to_device(array.view(np.uint16) if array.dtype.itemsize == 2 else array)

    def equal(got: Any, right: Any) -> None:
        wanted = right.astype(got.dtype) if right.dtype.kind == "i" else right
        assert not compare or got.tobytes() == wanted.tobytes()

    exchange = SimpleExchange(rank, make_config(rank.world_size, **case.buffer_arguments(), num_sms=num_sms))
    x, idx, weights = bits(case.xs[me]), bits(case.topk_idx[me].astype(np.int32)), bits(case.topk_weights[me])
    send_index, plan = exchange.count(idx)
    exchange.send(x, idx, weights, send_index, plan, send_routing=True)
    for name, right in (("rows", want.x), ("recv_topk", want.topk_idx), ("recv_weights", want.topk_weights)):
        equal(exchange.received(name, len(want.x)), right)
    equal(exchange.received("recv_source", len(want.x))[:, 1], want.src_token)
    equal(rank.to_host(plan)[3 * rank.world_size :], want.tokens_per_expert)
    y = bits(ys[me])
    for w in (None, weights):
        out = rank.to_host(exchange.combine(y, idx, w, send_index, plan)).view(case.xs[me].dtype)
        if compare:
            assert_same(out, case.expected_combine(ys, weighted=w is not None)[me], "combine")
    exchange.enter(7)
    exchange.send(x, idx, None, send_index, plan, send_routing=False)
    equal(exchange.received("rows", len(want.x)), want.x)
    assert not rank.to_host(exchange.differs).any()
    rank.barrier()


class _Named:
    def __init__(self, rank: int) -> None:
        self.rank = rank


def expert_output_of(rank: int, recv_x: Any) -> Any:
    return expert_output(_Named(rank), recv_x)  # type: ignore[arg-type]
