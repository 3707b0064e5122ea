"""What the tests of low-latency mode run, on any backend, and what it is compared with."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ep_lib import Buffer, Rank, reference
from ep_lib.jit.structs import header_constant
from ep_lib.memory.arrays import describe
from support.dispatch_combine_cases import BF16, Case, assert_same, make_case, to_input, to_numpy

FP8 = reference.FP8


def low_latency_case(seed: int, *, fp8: bool, **shape: Any) -> Case:
    """A random case with up to 32 choices a token, and now and then an expert that a token names twice."""
    rng = np.random.default_rng(seed + 1000)
    case = make_case(seed, dtype="bfloat16", **shape)
    hidden = 128 * int(rng.integers(1, 4)) if fp8 else case.hidden
    xs = [(rng.standard_normal((len(x), hidden)) * 10.0 ** rng.integers(-3, 4)).astype(BF16) for x in case.xs]
    for x in xs:
        x[rng.random(x.shape) < 0.01] = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, 1e-38])
    if rng.random() < 0.3 and case.top_k > 1:
        for idx in case.topk_idx:
            idx[:, -1] = idx[:, 0]
    top_k = min(case.top_k, header_constant("moe/low_latency/common.cuh", "kMaxTopK"))
    idx, weights = (
        [np.ascontiguousarray(a[:, :top_k]) for a in arrays] for arrays in (case.topk_idx, case.topk_weights)
    )
    return dataclasses.replace(case, hidden=hidden, top_k=top_k, xs=xs, topk_idx=idx, topk_weights=weights)


def experts(rank: int, recv_x: Any, scales: Any, counts: Any) -> Any:
    """What a rank's experts make of their rows; NaN where there is no row."""
    rows = recv_x.astype(np.float32) if scales is None else _dequantize(recv_x, scales)
    with np.errstate(over="ignore", invalid="ignore"):
        y = (rows * np.float32(0.5) + np.float32(rank)).astype(BF16)
    y[np.arange(y.shape[1])[None, :] >= counts[:, None]] = np.nan
    return y


def _dequantize(rows: Any, scales: Any) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):
        return rows.astype(np.float32) * np.repeat(scales, reference.FP8_GROUP, axis=-1)


def receive(result: Any, fp8: bool) -> tuple[Any, Any, Any]:
    """recv_x, scales and recv_count of a dispatch as NumPy arrays."""
    rows, scales = result.recv_x if fp8 else (result.recv_x, None)
    rows = to_numpy(rows.view(_torch_bytes(rows)) if type(rows).__module__.startswith("torch") else rows)
    rows, counts = rows.view(FP8 if fp8 else BF16), to_numpy(result.recv_count)
    unused = np.arange(rows.shape[1])[None, :] >= counts[:, None]
    rows[unused] = 0  # mean nothing, and differ from run to run
    if scales is not None:
        scales = to_numpy(scales)
        scales[unused] = 0
    return rows, scales, counts


def _torch_bytes(rows: Any) -> Any:
    import torch

    return torch.uint8 if rows.element_size() == 1 else torch.int16


def run_case(
    rank: Rank,
    case: Case,
    fp8: bool,
    rounds: int = 1,
    hooks: bool = False,
    asynchronous: bool = False,
    kind: str = "",
    sms: int | None = None,
) -> list[Any]:
    """Some dispatches and combines: (rows, scales, counts, what the experts made of it, combined tokens) of each."""
    me, results = rank.rank, []
    options = {"return_recv_hook": hooks, "async_finish": asynchronous}
    x, idx, weights = (to_input(rank, a[me], kind or "native") for a in (case.xs, case.topk_idx, case.topk_weights))
    # Every other token's choices come back sorted, each weight beside its expert.
    order = np.tile(np.arange(case.top_k), (len(case.topk_idx[me]), 1))
    order[1::2] = np.argsort(case.topk_idx[me], 1, kind="stable")[1::2]
    sorted_idx, sorted_weights = (
        to_input(rank, np.take_along_axis(a[me], order, 1), kind or "native")
        for a in (case.topk_idx, case.topk_weights)
    )
    arguments = case.buffer_arguments() | {"max_tokens": 1}
    with Buffer(rank, **arguments, num_max_dispatch_tokens_per_rank=case.max_tokens, num_low_latency_sms=sms) as buffer:
        totals = to_input(rank, np.zeros(case.num_experts // rank.world_size, np.int32), kind or "native")
        for number in range(rounds):
            odd = number % 2 == 1
            more = {"topk_weights": weights if odd else None, "column_major_scales": odd, "recv_totals": totals}
            sent = buffer.low_latency_dispatch(x, idx, fp8, **options, **more)
            _wait(rank, sent)
            rows, scales, counts = receive(sent, fp8)
            assert_same(to_numpy(totals), (number + 1) * counts, "totals")
            if fp8 and odd and 1 not in scales.shape[1:]:
                assert describe(sent.recv_x[1]).strides_bytes[1:] == (4, 4 * rows.shape[1])
            y = experts(me, rows, scales, counts)
            there = buffer.get_next_low_latency_combine_buffer(sent.handle)
            assert tuple(there.shape) == y.shape
            back = buffer.low_latency_combine(
                to_input(rank, y, kind or "native"),
                sorted_idx,
                None if odd else sorted_weights,
                sent.handle,
                **options,
            )
            _wait(rank, back)
            results.append((rows, scales, counts, y, to_numpy(back.out, "bfloat16")))
    return results


def _wait(rank: Rank, result: Any) -> None:
    if result.hook is not None:
        result.hook()
    if result.event is not None:
        result.event.current_stream_wait()
    rank.synchronize()


def check_case(case: Case, fp8: bool, results: list[list[Any]]) -> None:
    """All ranks' results against the oracle, bit for bit."""
    with np.errstate(invalid="ignore"):
        want = reference.low_latency_dispatch(
            case.xs, case.topk_idx, num_experts=case.num_experts, max_tokens=case.max_tokens, use_fp8=fp8
        )
    for number in range(len(results[0])):
        ys = [result[number][3] for result in results]
        with np.errstate(over="ignore", invalid="ignore"):
            combined = reference.low_latency_combine(ys, want, case.topk_weights)
        for rank, result in enumerate(results):
            rows, scales, counts, _, out = result[number]
            what = f"rank {rank}, round {number}"
            assert_same(counts, want[rank].counts, f"{what}: counts")
            for e, count in enumerate(counts):
                assert_same(rows[e, :count], want[rank].x[e, :count], f"{what}: rows of expert {e}")
                if fp8:
                    assert_same(scales[e, :count], want[rank].scales[e, :count], f"{what}: scales of expert {e}")
            # Which NaN comes out of a sum is the processor's affair; that it is one is ours.
            nan = np.isnan(combined[rank].astype(np.float32))
            assert_same(np.isnan(out.astype(np.float32)), nan, f"{what}: NaN")
            assert_same(np.where(nan, BF16(0), out), np.where(nan, BF16(0), combined[rank]), f"{what}: combined")
