"""Rows that stay where they arrived: each result has its receive area for as long as somebody holds it."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support import Spmd
from support.bad_input import bad_buffers
from support.direct_cases import ready
from support.dispatch_combine_cases import (
    BF16,
    Case,
    assert_received,
    assert_same,
    make_case,
    to_input,
    to_numpy,
    unpack,
)
from support.refusals import refused

import ep_lib
from ep_lib import Buffer, Rank, reference
from ep_lib.errors import ArgumentError, BufferClosedError, PeerTimeout
from ep_lib.memory.arrays import describe
from ep_lib.moe.direct.tuning import EMULATED

AREAS = 3


def stays(rank: Rank, array: Any) -> bool:
    """Whether it lies in this rank's symmetric heap."""
    begin = rank._backend.heap_address(rank.rank)
    return begin <= describe(array).address < begin + rank.heap_bytes


def hold_and_drop(rank: Rank, case: Case, kind: str) -> None:
    """More results at the same time than there are areas, on rank 0 more than elsewhere."""
    me = rank.rank
    x, idx, weights = (to_input(rank, a[me], kind) for a in (case.xs, case.topk_idx, case.topk_weights))
    want = case.expected_dispatch()[me]
    doubled = to_input(rank, case.xs[me] * np.array(2, case.xs[me].dtype), kind)

    def is_first(recv: Any) -> None:
        assert_received(unpack(ready(rank, recv), case.dtype), want, "what is held")

    def is_doubled(rows: Any, begin: int = 0) -> None:
        rank.synchronize()
        assert_same(to_numpy(rows, case.dtype), (want.x * np.array(2, want.x.dtype))[begin:], "doubled")

    with Buffer(rank, **case.buffer_arguments(), receive_areas=AREAS) as buffer:
        first = buffer.dispatch(x, idx, weights)
        assert stays(rank, first.x) and not stays(rank, first.topk_weights)
        second = buffer.dispatch(doubled, handle=first.handle)
        third = buffer.dispatch(doubled, handle=first.handle, async_finish=True)
        ready(rank, third)
        assert stays(rank, second.x) and not stays(rank, third.x), "two areas are lent, so the third is a copy"
        is_first(first), is_doubled(second.x), is_doubled(third.x)
        place, part = describe(second.x).address, second.x[1:] if me == 0 else None
        second = None
        gc.collect()
        fourth = buffer.dispatch(x, handle=first.handle)
        assert (describe(fourth.x).address == place) == (me != 0), "an area is free when no view of it is left"
        assert stays(rank, fourth.x) == (me != 0)
        is_first(first)
        if part is not None:
            is_doubled(part, 1)
        view = buffer.dispatch(doubled, handle=first.handle, copy=False)
        is_doubled(view.x), is_first(first)
        worst = buffer.dispatch(x, idx, weights, num_worst_tokens=rank.world_size * case.max_tokens)
        rank.synchronize()
        assert_same(to_numpy(worst.x, case.dtype)[: len(want.x)], want.x, "num_worst_tokens")
        del worst, fourth
        gc.collect()
        grouped = ready(rank, buffer.dispatch(x, idx, weights, sorted_by_expert=True))
        assert grouped.by_expert is not None and stays(rank, grouped.x) == (me != 0)
        row = to_numpy(grouped.by_expert.row)
        assert_same(to_numpy(grouped.by_expert.x, case.dtype), want.x[row], "rows by expert, from an area")
        ys = [r.x for r in case.expected_dispatch()]
        out = buffer.combine(first.x, first.handle)
        assert_same(to_numpy(out, case.dtype), case.expected_combine(ys, weighted=False)[me], "combine")


@pytest.mark.extended(after=1)
@pytest.mark.parametrize(("kind", "dtype"), [("native", "float32"), ("torch", "bfloat16")])
def test_results_stay_and_never_change(spmd: Spmd, kind: str, dtype: str) -> None:
    spmd(hold_and_drop, 2, make_case(41, world_size=2, dtype=dtype, max_tokens=30), kind)


FP8_SHAPE = {"num_experts": 4, "top_k": 2, "hidden": 256, "max_tokens": 6}


def fp8_rows(rank: Rank, rows: Any, scales: Any, kind: str) -> tuple[Any, Any]:
    """A pair that a dispatch takes; CuPy has no FP8."""
    if kind == "native" and rank.backend == "cuda":
        return to_input(rank, rows.view(np.uint8)), to_input(rank, scales)
    if kind == "native":
        return rows, scales
    import torch

    return to_input(rank, rows.view(np.uint8), kind).view(torch.float8_e4m3fn), to_input(rank, scales, kind)


def fp8(rank: Rank, kind: str) -> None:
    """Rows and scales lie in the same area, and either of them holds it."""
    rng = np.random.default_rng(0)
    pairs = [reference.quantize_fp8(rng.standard_normal((6, 256), np.float32)) for _ in range(rank.world_size)]
    ids = [np.argsort(rng.random((6, 4)), axis=1)[:, :2] for _ in range(rank.world_size)]
    wanted = reference.dispatch([scales for _, scales in pairs], ids, num_experts=4)[rank.rank].x
    x, idx = fp8_rows(rank, *pairs[rank.rank], kind), to_input(rank, ids[rank.rank], kind)
    other = fp8_rows(rank, pairs[rank.rank][0], pairs[rank.rank][1] * 0, kind)
    with Buffer(rank, **FP8_SHAPE, receive_areas=AREAS) as buffer:
        recv = buffer.dispatch(x, idx)
        scales, handle = recv.x[1], recv.handle
        assert stays(rank, recv.x[0]) and stays(rank, scales)
        del recv
        gc.collect()
        later = [buffer.dispatch(other, handle=handle) for _ in range(3)]
        rank.synchronize()
        assert [stays(rank, r.x[0]) for r in later] == [True, False, False]
        assert np.array_equal(to_numpy(scales), wanted), "scales that are held"
        assert all(not to_numpy(r.x[1]).any() for r in later)


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("kind", ["native", "torch"])
def test_fp8_rows_and_their_scales(spmd: Spmd, kind: str) -> None:
    spmd(fp8, 2, kind)


def plain(rank: Rank, case: Case) -> None:
    me = rank.rank
    with Buffer(rank, **case.buffer_arguments(), receive_areas=2) as buffer:
        for _ in range(3):
            recv = buffer.dispatch(case.xs[me], case.topk_idx[me], case.topk_weights[me])
            assert_received(unpack(recv, case.dtype), case.expected_dispatch()[me], "dispatch")
            buffer.dispatch(case.xs[me], handle=recv.handle)
            buffer.combine(recv.x, recv.handle)


@pytest.mark.extended
@pytest.mark.slow
def test_clean_under_the_checker() -> None:
    report = ep_lib.check(plain, 2, seeds=4, args=(make_case(9, world_size=2, dtype="bfloat16", max_tokens=8),))
    assert report.ok, str(report)


def take_turns(rank: Rank, case: Case, push: bool) -> None:
    """Dispatches and combines of every kind in the one area that they share, behind each other in the same stream."""
    me, rng = rank.rank, np.random.default_rng(3)
    later = {"num_worst_tokens": rank.world_size * case.max_tokens, "async_finish": True}
    want, ys = case.expected_dispatch()[me].x, [r.x for r in case.expected_dispatch()]
    sums, rows, results = case.expected_combine(ys, weighted=False)[me], [], []
    with Buffer(rank, **case.buffer_arguments(), receive_areas=0, num_sms=2) as buffer:
        direct: Any = buffer._mode
        direct.tuning = replace(EMULATED, push=push)
        recv = ready(rank, buffer.dispatch(case.xs[me], case.topk_idx[me], **later))
        y = recv.x.copy()
        for what in rng.permutation(["count", "handle", "handle", "combine", "combine", "in place"] * 2):
            if what == "count":
                rows.append(buffer.dispatch(case.xs[me], case.topk_idx[me], **later).x)
            elif what == "handle":
                rows.append(buffer.dispatch(case.xs[me], handle=recv.handle, async_finish=True).x)
            elif what == "combine":
                results.append(buffer.combine(y, recv.handle, async_finish=True)[0])
            else:
                rank.synchronize()
                place = buffer.combine_input(recv.handle, y)
                place[...] = y
                results.append(buffer.combine(place, recv.handle, async_finish=True)[0])
        rank.synchronize()
        for got in rows:
            assert_same(got[: len(want)], want, "dispatch")
        for got in results:
            assert_same(got, sums, "combine")


@pytest.mark.extended(after=1)
@pytest.mark.slow
@pytest.mark.parametrize("push", [True, False])
def test_dispatch_and_combine_take_turns_in_one_area(push: bool) -> None:
    report = ep_lib.check(
        take_turns, 3, seeds=4, args=(make_case(12, world_size=3, dtype="bfloat16", max_tokens=8), push)
    )
    assert report.ok, str(report)


def without_a_peer(rank: Rank, case: Case) -> None:
    """What would have arrived is NaN, in its own area, and what was held before is as it was."""
    me = rank.rank
    buffer = Buffer(rank, **case.buffer_arguments(), receive_areas=AREAS)
    first = buffer.dispatch(case.xs[me], case.topk_idx[me])
    if me == 1:
        return
    later = buffer.dispatch(case.xs[me], handle=first.handle, async_finish=True)
    with pytest.raises(PeerTimeout):
        rank.synchronize()
    assert stays(rank, later.x) and np.isnan(later.x).all()
    assert_same(first.x, case.expected_dispatch()[me].x, "held")
    with pytest.raises(BufferClosedError):
        buffer.dispatch(case.xs[me], handle=first.handle)


def test_a_failed_dispatch_leaves_nan_where_it_would_have_arrived() -> None:
    case = make_case(44, world_size=2, dtype="float32", max_tokens=9)
    ep_lib.spawn(without_a_peer, 2, "emulator", args=(case,), timeout=2)


def mistakes(rank: Rank) -> None:
    shape = {"num_experts": 4, "top_k": 2, "hidden": 64, "max_tokens": 3}
    nic_only = {"receive_areas": 2, "allow_nvlink_for_normal_mode": False}
    areas = [({"receive_areas": areas}, "receive_areas") for areas in (-1, 2.5, True, 2000)]
    bad_buffers(rank, shape, [*areas, (nic_only, "receive_areas: PCIe mode")])
    none, one, two = (Buffer.symmetric_bytes(2, **shape, receive_areas=areas) for areas in (0, 1, 2))
    assert two - one == one - none == 2 * 3 * 64 * 2
    with Buffer(rank, **shape, receive_areas=0) as buffer:
        x, idx = np.ones((1, 64), BF16), np.zeros((1, 2), np.int64)
        none_kept = "copy=False: with receive_areas=0"
        refused(lambda: buffer.dispatch(x, idx, copy=False), ArgumentError, none_kept)


def test_what_is_refused() -> None:
    ep_lib.spawn(mistakes, 2, "emulator")
