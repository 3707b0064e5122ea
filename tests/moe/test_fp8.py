"""FP8 rows: the oracle's quantisation, and their way through a Buffer, by direct writes and in PCIe mode."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Spmd
from support.pcie_cases import FABRIC_NAMES, FABRICS, check_fp8, fp8_case, run_fp8
from support.refusals import refused

from ep_lib import Buffer, Fabric, Rank, reference, spawn
from ep_lib.errors import ArgumentError, RankMismatchError

BF, FP8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


# ---- the oracle ----------------------------------------------------------------------------------------------------
@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-30, 1e-3, 1.0, 1e4, 1e30]), st.sampled_from([np.float32, BF]))
@settings(max_examples=60, deadline=None)
def test_quantised_rows_are_close(seed: int, size: float, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((3, 256)) * size * rng.choice([1, 1e-2, 0], (3, 256))).astype(dtype)
    q, scales = reference.quantize_fp8(x)
    assert (q.dtype, q.shape, scales.dtype, scales.shape) == (np.dtype(FP8), x.shape, np.float32, (3, 2))
    groups = np.abs(x.astype(np.float32)).reshape(3, 2, 128)
    np.testing.assert_array_equal(scales, groups.max(axis=2) / np.float32(448))
    # Half a unit in the last of 3 bits; below the normal range of E4M3 half a step of 2**-9.
    bound = np.maximum(groups / 16, scales[..., None] * 2.0**-10).reshape(3, 256) * 1.001
    error = np.abs(reference.dequantize_fp8(q, scales) - x.astype(np.float32))
    assert (error <= bound).all()
    assert (np.abs(q.astype(np.float32).reshape(3, 2, 128)).max(axis=2) == 448).all()


def test_zeros_tiny_numbers_infinities_and_nan() -> None:
    x = np.zeros((5, 128), np.float32)
    x[1, 3] = 1e-40
    x[2, :3] = [np.nan, 2.0, -4.0]
    x[3, :3] = [np.inf, 2.0, -4.0]
    x[4] = np.nan
    q, scales = reference.quantize_fp8(x)
    back = reference.dequantize_fp8(q, scales)
    assert (back[:2] == 0).all() and scales[:2, 0].tolist() == [1, 1]
    for row in (2, 3):
        assert np.isnan(back[row, 0]) and back[row, 1:3].tolist() == [2, -4] and (back[row, 3:] == 0).all()
    assert np.isnan(back[4]).all() and np.isfinite(scales).all()
    with np.errstate(all="raise"):
        assert reference.quantize_fp8(np.zeros((0, 256)))[1].shape == (0, 2)
        assert np.isnan(reference.quantize_fp8(np.full((1, 128), 1e300))[0].astype(np.float32)).all()
    with pytest.raises(ArgumentError, match="hidden is 100; FP8 takes a multiple of 128"):
        reference.quantize_fp8(np.zeros((1, 100)))


def test_torch_rounds_alike() -> None:
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).standard_normal((64, 384)).astype(np.float32)
    q, scales = reference.quantize_fp8(x)
    scaled = torch.from_numpy((x.reshape(64, 3, 128) / scales[..., None]).reshape(64, 384))
    assert (scaled.to(torch.float8_e4m3fn).view(torch.uint8).numpy() == q.view(np.uint8)).all()


# ---- through a Buffer ----------------------------------------------------------------------------------------------


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("fabric", FABRICS, ids=FABRIC_NAMES)
def test_fp8_dispatch_and_combine(fabric: Fabric | str) -> None:
    for seed in range(9):
        case = fp8_case(seed, (2, 4, 6)[seed % 3], ("bfloat16", "float32")[seed % 2])
        args = (case, seed * 5)
        check_fp8(case, spawn(run_fp8, case.world_size, "emulator", fabric=fabric, seed=seed, args=args))


@pytest.mark.parametrize("kind", ["native", "torch"])
def test_fp8_by_direct_writes(spmd: Spmd, kind: str) -> None:
    for seed in range(3):
        case = fp8_case(seed, 2, ("bfloat16", "float32")[seed % 2])
        check_fp8(case, spmd(run_fp8, 2, case, None, kind))


# ---- bad input -----------------------------------------------------------------------------------------------------
Q, SCALES = reference.quantize_fp8(np.ones((3, 256), np.float32))
IDX = np.array([[0, 2], [1, -1], [3, 2]])
SHAPE = {"num_experts": 4, "top_k": 2, "hidden": 256, "max_tokens": 3}
PCIE = {"allow_nvlink_for_normal_mode": False, "num_sms": 2}

BAD: list[tuple[Any, str]] = [
    ((Q, SCALES[:, :1].copy()), r"scales of x are float32 \(3, 1\); .* float32 \(3, 2\)"),
    ((Q, SCALES[:2]), r"scales of x are float32 \(2, 2\)"),
    ((Q, SCALES.astype(np.float64)), r"scales of x are float64 .* must be float32 \(3, 2\)"),
    ((Q, np.asfortranarray(SCALES)), "the scales of x is not contiguous"),
    ((Q, None), "the scales of x is None"),
    ((Q, SCALES, SCALES), "x is a tuple of 3; FP8 input is a pair"),
    (Q, "x has dtype float8_e4m3fn; this Buffer carries bfloat16, or FP8 with its scales"),
    ((Q.astype(ml_dtypes.float8_e5m2), SCALES), "float8_e5m2; FP8 input is float8_e4m3fn"),
    ((Q[:, :128].copy(), SCALES), r"x\[0\] has shape \(3, 128\); it must be \(T, 256\)"),
    ((np.tile(Q, (2, 1)), np.tile(SCALES, (2, 1))), "6 tokens.*max_tokens=3"),
]


@pytest.mark.parametrize(("mode", "fabric"), [(PCIE, "rc"), ({}, None)], ids=["PCIe", "direct"])
def test_bad_fp8_is_refused_and_the_buffer_works_on(mode: dict[str, Any], fabric: str | None) -> None:
    def main(rank: Rank) -> None:
        only_one = "rank 1 passed FP8 rows with scales to dispatch, rank 0 did not"
        mixed = (Q, SCALES) if rank.rank else Q.astype(BF)
        with Buffer(rank, **SHAPE, **mode) as buffer:
            for x, says in BAD:
                refused(lambda x=x: buffer.dispatch(x, IDX), ArgumentError, says)
            refused(lambda: buffer.dispatch(mixed, IDX), RankMismatchError, only_one)
            recv = buffer.dispatch((Q, SCALES), IDX)
            refused(lambda: buffer.dispatch(mixed, handle=recv.handle), RankMismatchError, only_one)
            assert (recv.x[0].astype(np.float32) == 448).all() and len(recv.x[0]) == len(recv.x[1])
        with Buffer(rank, **{**SHAPE, "hidden": 136}, **mode) as odd:
            groups = "for every 128 elements, and hidden is 136.*hidden=256"
            refused(lambda: odd.dispatch((Q[:, :136].copy(), SCALES), IDX), ArgumentError, groups)

    spawn(main, 2, "emulator", fabric=fabric)
