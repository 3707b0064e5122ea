"""Rows that come back as FP8: bit for bit what the oracle says, within its bound, and clean under the checker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support import Spmd
from support.direct_cases import TUNINGS
from support.dispatch_combine_cases import BF16, Case, to_input, to_numpy
from support.refusals import refused
from support.row_form_cases import form_case

import ep_lib
from ep_lib import Buffer, Rank, reference, spawn
from ep_lib.errors import ArgumentError, HandleError
from ep_lib.moe.direct.tuning import EMULATED


def returned_rows(case: Case, columns: int) -> list[Any]:
    """Of each rank: what its experts made of the rows that it received."""
    received = case.expected_dispatch()
    return [(w.x.astype(np.float32) * (r + 1))[:, :columns].astype(BF16).copy() for r, w in enumerate(received)]


def bring_back(rank: Rank, case: Case, options: dict[str, Any], kind: str = "native") -> None:
    """Twice as FP8 and as bfloat16 in between, in both orders. ``options``: "columns",
    "weighted", "biases", "tuning", "aside"."""
    me, columns = rank.rank, options.get("columns", case.hidden)
    ys, aside = returned_rows(case, columns), options.get("aside", False)
    weights = case.topk_weights if options.get("weighted") else None
    biases = [[(x[:, :columns] * (b + 1)).copy() for b in range(options.get("biases", 0))] for x in case.xs]
    with Buffer(rank, **case.buffer_arguments()) as buffer:
        if options.get("tuning") is not None:
            buffer._mode.tuning = options["tuning"]
        recv = buffer.dispatch(to_input(rank, case.xs[me], kind), to_input(rank, case.topk_idx[me], kind))
        y, bias = to_input(rank, ys[me], kind), tuple(to_input(rank, b, kind) for b in biases[me]) or None
        given = None if weights is None else to_input(rank, weights[me], kind)
        for quantize, order in (("ue8m0", "ranks"), (None, "choices"), ("ue8m0", "choices")):
            out = buffer.combine(
                y, recv.handle, given, bias=bias, quantize=quantize, async_finish=aside, sum_order=order
            )
            if aside:
                out, event = out
                event.synchronize()
            want = reference.combine(
                ys,
                case.topk_idx,
                weights,
                num_experts=case.num_experts,
                biases=biases,
                quantize=quantize,
                sum_order=order,
            )[me]
            same_but_for_nan(to_numpy(out, "bfloat16"), want, f"rank {me}, {quantize}, {order}")


def same_but_for_nan(got: Any, want: Any, what: str) -> None:
    """Equal bits; a NaN may have any."""
    assert got.shape == want.shape
    lost = np.isnan(want.astype(np.float32))
    assert np.array_equal(np.isnan(got.astype(np.float32)), lost), what
    differ = (got.view(np.uint16) != want.view(np.uint16)) & ~lost
    assert not differ.any(), f"{what}: {got[differ]} instead of {want[differ]}"


WAYS: list[dict[str, Any]] = [
    {},
    {"weighted": True, "tuning": TUNINGS[0]},
    {"biases": 1, "tuning": TUNINGS[1]},
    {"weighted": True, "biases": 2, "aside": True},
    {"tuning": replace(EMULATED, add_vectors=128, add_stages=3), "weighted": True},
]


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("hidden", [128, 512, 640, 1152])
def test_bit_for_bit(hidden: int) -> None:
    for seed, way in enumerate(WAYS):
        case = form_case(seed + hidden, (2, 3, 4, 1, 2)[seed], hidden, max_tokens=12)
        spawn(bring_back, case.world_size, "emulator", seed=seed, args=(case, way))
    spawn(bring_back, 2, "emulator", args=(form_case(3, 2, 1152, max_tokens=9), {"columns": 256}))


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("kind", ["native", "torch"])
@pytest.mark.parametrize("hidden", [640, 7168])
def test_on_both_backends(spmd: Spmd, hidden: int, kind: str) -> None:
    for way in (WAYS[0], WAYS[3]):
        spmd(bring_back, 2, form_case(7, 2, hidden, max_tokens=30), way, kind)


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("way", [0, 2, 4])
def test_clean_under_the_checker(way: int) -> None:
    report = ep_lib.check(bring_back, 3, seeds=5, args=(form_case(5, 3, 640, max_tokens=5), WAYS[way]))
    assert report.ok, str(report)


def test_the_error_is_within_the_stated_bound() -> None:
    rng = np.random.default_rng(1)
    for size in (1e-30, 1.0, 1e30):
        y = (rng.standard_normal((40, 512)) * size * np.exp2(rng.integers(-25, 1, (40, 512)))).astype(BF16)
        exact = y.astype(np.float64)
        cast = reference.dequantize_ue8m0(*reference.quantize_ue8m0(y))
        assert np.array_equal(cast.astype(BF16).astype(np.float32), cast), "numbers times powers of two are bfloat16"
        largest = np.abs(exact).reshape(40, 4, 128).max(axis=2).repeat(128, axis=1)
        assert (np.abs(cast - exact) <= np.maximum(np.abs(exact) / 16, largest / 2**17)).all()


# ---- bad input -----------------------------------------------------------------------------------------------------
SHAPE = {"num_experts": 4, "top_k": 2, "hidden": 256, "max_tokens": 3}
X, IDX = np.ones((3, 256), BF16), np.array([[0, 2], [1, -1], [3, 2]])


def bad_combines(rank: Rank) -> None:
    with Buffer(rank, **SHAPE) as buffer:
        recv = buffer.dispatch(X, IDX, sorted_by_expert=True)
        narrow, grouped, place = recv.x[:, :64].copy(), recv.by_expert.x, buffer.combine_input(recv.handle, recv.x)
        for y, how, error, says in (
            (recv.x, {"quantize": "int8"}, ArgumentError, "quantize is 'int8'.* None or 'ue8m0'"),
            (narrow, {}, ArgumentError, "quantize takes rows of a multiple of 128 elements; x has 64"),
            (place, {}, ArgumentError, "quantize: rows in combine_input are read from there as they are"),
            (grouped, {"sorted_by_expert": True}, ArgumentError, "quantize: not with sorted_by_expert"),
            (
                recv.x,
                {"quantize": None if rank.rank else "ue8m0"},
                HandleError,
                "or combine_input, sorted_by_expert or quantize on some ranks only",
            ),
        ):
            options = {"quantize": "ue8m0", **how}
            refused(lambda y=y, options=options: buffer.combine(y, recv.handle, **options), error, says)
    with Buffer(rank, **SHAPE, dtype="float32") as floats:
        came = floats.dispatch(X.astype(np.float32), IDX)
        says = "quantize casts rows of bfloat16, and this Buffer carries float32"
        refused(lambda: floats.combine(came.x, came.handle, quantize="ue8m0"), ArgumentError, says)


def test_what_cannot_be_is_refused() -> None:
    spawn(bad_combines, 2, "emulator")
