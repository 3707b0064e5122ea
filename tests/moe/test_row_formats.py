"""Rows of few bits, MXFP8, NVFP4 and UE8M0 scales: the oracles, and their way through a Buffer."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Spmd
from support.refusals import refused
from support.row_form_cases import (
    BY_TMA,
    CASTS,
    FORMS,
    assert_parts,
    expected_parts,
    form_case,
    make_parts,
    send_form,
)

import ep_lib
from ep_lib import Buffer, Rank, reference, spawn
from ep_lib.errors import ArgumentError, RankMismatchError
from ep_lib.moe.config import make_config
from ep_lib.moe.direct.workspace import kernel as direct_kernel
from ep_lib.moe.formats import row_formats

BF = ml_dtypes.bfloat16


# ---- the oracles ---------------------------------------------------------------------------------------------------
@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-30, 1.0, 1e30]), st.sampled_from(["ue8m0", "mxfp8", "nvfp4"]))
@settings(max_examples=60, deadline=None)
def test_quantised_rows_are_close(seed: int, size: float, name: str) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((3, 256)) * size * rng.choice([1, 1e-2, 0], (3, 256))).astype(BF)
    error = np.abs(reference.dequantize(reference.quantize(x, name), name) - x.astype(np.float32))
    group = {"ue8m0": 128, "mxfp8": 32, "nvfp4": 16}[name]
    largest = np.abs(x.astype(np.float32)).reshape(3, -1, group).max(axis=2).repeat(group, axis=1)
    if name == "nvfp4":  # half a step of 2 at the largest, and what rounding the block's scale costs
        least = np.abs(x.astype(np.float32)).max(axis=1, keepdims=True) / 6 / 448 * 2.0**-9 * 6
        assert (error <= largest * (1 / 6 + 1 / 16) + least).all()
    else:  # half a unit in the last of 3 bits, or half of 2**-9 scales, which are below largest / 224
        assert (error <= np.maximum(np.abs(x.astype(np.float32)) / 16, largest / 224 * 2.0**-10) * 1.001).all()


def test_scales_are_the_smallest_powers_that_clip_nothing() -> None:
    amax = np.array([448, np.nextafter(np.float32(448), np.float32(1e9)), 1, 1.75, 1.7500001, 1e-45, 3e38], np.float32)
    x = np.zeros((len(amax), 32), np.float32)
    x[:, 5] = -amax
    numbers, scales = reference.quantize_mxfp8(x)
    assert scales[:, 0].tolist() == [127, 128, 119, 119, 120, 0, 247]
    assert (np.abs(numbers.astype(np.float32)).max(axis=1)[:5] == [448, 224, 256, 448, 224]).all()
    packed = reference.pack_ue8m0(np.array([[1, 2, 3, 4, 5]], np.uint8))
    assert packed.tolist() == [[0x04030201, 5]] and packed.dtype == np.int32


def test_nan_infinities_and_zeros() -> None:
    x = np.zeros((4, 32), np.float32)
    x[1, :3], x[2, :3] = [np.nan, 2, -4], [np.inf, 2, -4]
    for name in ("ue8m0", "mxfp8"):
        wide = np.tile(x, (1, 4))
        back = reference.dequantize(reference.quantize(wide, name), name)
        assert np.isnan(back[1:3, 0]).all() and (back[1:3, 1:3] == [2, -4]).all() and (back[[0, 3]] == 0).all()
    numbers, scales, rows = reference.quantize_nvfp4(x)
    back = reference.dequantize_nvfp4(numbers, scales, rows)
    assert np.isnan(back[1:3, :16]).all() and (back[1:3, 16:] == 0).all() and (back[[0, 3]] == 0).all()
    assert rows.tolist() == [1, *[np.float32(4) / np.float32(2688)] * 2, 1]
    for name, hidden in (("ue8m0", 100), ("mxfp8", 48), ("nvfp4", 24)):
        with pytest.raises(ArgumentError, match=f"hidden is {hidden}.*takes a multiple of"):
            reference.quantize(np.zeros((1, hidden)), name)
    with pytest.raises(ArgumentError, match="name"):
        reference.quantize(x, "int4")


def test_four_bits_by_hand() -> None:
    """Round to nearest even among 0, 0.5, 1, 1.5, 2, 3, 4, 6, and two numbers in a byte."""
    numbers = np.arange(-6, 6.01, 1 / 32, dtype=np.float32)
    numbers = np.concatenate([numbers, np.zeros(-len(numbers) % 16)]).astype(np.float32)
    numbers[::16] = 6  # so that each block's scale is 1
    size = np.abs(numbers)
    want = np.sum([size > 0.25, size >= 0.75, size > 1.25, size >= 1.75, size > 2.5, size >= 3.5, size > 5], axis=0)
    want = want + 8 * np.signbit(numbers)
    packed, scales, row = reference.quantize_nvfp4((numbers * np.float32(448)).reshape(1, -1))
    assert row.tolist() == [1] and (scales.astype(np.float32) == 448).all()
    assert np.array_equal(np.stack([packed & 15, packed >> 4], -1).ravel(), want)


def test_torch_reads_them_alike() -> None:
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).standard_normal((4, 128)).astype(BF)
    numbers, scales = reference.quantize_mxfp8(x)
    powers = torch.from_numpy(scales).view(torch.float8_e8m0fnu).float()
    values = torch.from_numpy(numbers.view(np.uint8)).view(torch.float8_e4m3fn).float()
    back = (values.view(4, 4, 32) * powers[..., None]).view(4, 128)
    assert np.array_equal(back.numpy(), reference.dequantize_mxfp8(numbers, scales))


# ---- through a Buffer ----------------------------------------------------------------------------------------------
WAYS: list[dict[str, Any]] = [
    {},
    {"copy": False},
    {"sorted_by_expert": True, "expert_alignment": 4},
    {"receive_areas": 3},
    {"async_finish": True},
]


@pytest.mark.extended(after=1)
@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_every_form_by_direct_writes(form: str) -> None:
    for seed, way in enumerate(WAYS):
        hidden = (128, 384, 512, 1152)[(seed + FORMS.index(form)) % 4]
        case = form_case(seed, (2, 3, 4)[seed % 3], hidden, dtype=("bfloat16", "float32")[seed % 2], max_tokens=12)
        by_column = bool(seed % 2) and "nvfp4" not in form
        spawn(
            send_form,
            case.world_size,
            "emulator",
            seed=seed,
            args=(case, form, {**way, "column_major_scales": by_column}),
        )


@pytest.mark.slow
@pytest.mark.parametrize("form", ["mxfp8", "nvfp4"])
def test_side_rows_that_are_no_whole_words(form: str) -> None:
    for way in ({}, {"sorted_by_expert": True}):
        spawn(send_form, 2, "emulator", args=(form_case(3, 2, 160, max_tokens=9), form, dict(way)))


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("name", CASTS)
def test_rows_are_cast_on_their_way(name: str) -> None:
    ways: list[dict[str, Any]] = [*WAYS, {"tuning": BY_TMA}, {"mixed": True}]
    for seed, way in enumerate(ways):
        hidden = (128, 384, 512, 1152)[(seed + CASTS.index(name)) % 4]
        case = form_case(seed + 20, (2, 3, 4)[seed % 3], hidden, max_tokens=12)
        spawn(send_form, case.world_size, "emulator", seed=seed, args=(case, name, {**way, "quantize": name}))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["native", "torch"])
@pytest.mark.parametrize("name", CASTS)
def test_casts_on_both_backends(spmd: Spmd, name: str, kind: str) -> None:
    options = {"quantize": name, "column_major_scales": name != "nvfp4"}
    spmd(send_form, 2, form_case(3, 2, 1152, max_tokens=40), name, options, kind)
    spmd(send_form, 2, form_case(4, 2, 7168, max_tokens=9), name, {"quantize": name}, kind)


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("name", CASTS)
@pytest.mark.parametrize("tuning", [None, BY_TMA], ids=["lanes", "TMA"])
def test_casts_are_clean_under_the_checker(name: str, tuning: Any) -> None:
    case = form_case(5, 2, 128, max_tokens=4)
    report = ep_lib.check(send_form, 2, seeds=4, args=(case, name, {"quantize": name, "tuning": tuning}))
    assert report.ok, str(report)


@pytest.mark.parametrize("kind", ["native", "torch"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_on_both_backends(spmd: Spmd, form: str, kind: str) -> None:
    case = form_case(FORMS.index(form), 2, 1152, max_tokens=40)
    worst = 2 * case.max_tokens
    spmd(send_form, 2, case, form, {"num_worst_tokens": worst, "column_major_scales": "nvfp4" not in form}, kind)
    spmd(send_form, 2, case, form, {"receive_areas": 3, "sorted_by_expert": False}, kind)


@pytest.mark.extended(after=1)
@pytest.mark.parametrize("form", ["packed ue8m0", "nvfp4"])
def test_clean_under_the_checker(form: str) -> None:
    case = form_case(5, 2, 128, max_tokens=4)
    options = {"column_major_scales": form != "nvfp4", "num_worst_tokens": 8}
    report = ep_lib.check(send_form, 2, seeds=6, args=(case, form, options))
    assert report.ok, str(report)


def no_rows(rank: Rank) -> None:
    """Scales of no rows are an array in a row, for torch too."""
    import torch

    x = torch.ones(3, 256).to(torch.float8_e4m3fn), torch.ones(3, 2)
    with Buffer(rank, **SHAPE) as buffer:
        recv = buffer.dispatch(x, torch.zeros((3, 2), dtype=torch.int64))
        assert recv.x[1].view(torch.uint8).shape == ((0, 8) if rank.rank else (6, 8))


def test_scales_of_no_rows() -> None:
    pytest.importorskip("torch")
    spawn(no_rows, 2, "emulator")


def forms_by_one_handle(rank: Rank, case: Any) -> None:
    """One handle for rows of every form, one after the other, and scales that begin at any address."""
    me = rank.rank
    with Buffer(rank, **case.buffer_arguments()) as buffer:
        handle = buffer.dispatch(case.xs[me], case.topk_idx[me]).handle
        for form in FORMS:
            numbers, scales, *more = make_parts(case.xs[me], form)
            if scales.itemsize == 1:
                odd = np.zeros(scales.size + 1, scales.dtype)
                odd[1:] = scales.ravel()
                scales = odd[1:].reshape(scales.shape)
            want = expected_parts(case, form)[me]
            assert_parts(buffer.dispatch((numbers, scales, *more), handle=handle).x, want, form)


@pytest.mark.extended
def test_one_handle_for_all_forms() -> None:
    spawn(forms_by_one_handle, 2, "emulator", args=(form_case(8, 2, 512, max_tokens=7),))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_side_rows_have_room_behind_rows(dtype: str) -> None:
    for hidden in range(32, 4096, 32):
        config = make_config(2, num_experts=4, top_k=2, hidden=hidden, max_tokens=1, dtype=dtype, num_sms=2)
        for form in row_formats(config):
            assert form is None or form.is_apart or form.row_bytes + form.side_bytes + 3 <= config.row_bytes


# ---- bad input -----------------------------------------------------------------------------------------------------
SHAPE = {"num_experts": 4, "top_k": 2, "hidden": 256, "max_tokens": 3}
X, IDX = np.ones((3, 256), BF), np.array([[0, 2], [1, -1], [3, 2]])
PARTS = {form: make_parts(X, form) for form in FORMS}
NUMBERS, SCALES = PARTS["mxfp8"]
HALVES, BLOCKS, ROWS = PARTS["nvfp4"]
BAD: list[tuple[Any, dict[str, Any], str]] = [
    ((NUMBERS, SCALES[:, :3].copy()), {}, r"uint8 \(3, 3\); .* uint8 \(3, 8\), int32 \(3, 2\)"),
    ((NUMBERS, np.zeros((3, 2), np.int64)), {}, r"scales of x are int64 \(3, 2\)"),
    ((NUMBERS, np.asfortranarray(SCALES)), {}, "the scales of x is not contiguous"),
    ((HALVES, np.zeros((3, 8), np.uint8)), {}, r"must be float8_e4m3fn \(3, 16\): .* 16 elem"),
    ((HALVES[:, :100].copy(), BLOCKS), {}, r"x\[0\] has dtype uint8; .* uint8, \(T, 128\).*\(3, 100\)"),
    ((NUMBERS, SCALES, ROWS), {}, "x is a tuple of 3; FP8 input is a pair"),
    ((HALVES, BLOCKS, ROWS[:2]), {}, r"row scales of x are float32 \(2,\)"),
    ((HALVES, BLOCKS, ROWS.astype(float)), {}, r"row scales of x are float64"),
    (HALVES, {}, r"x has shape \(3, 128\)"),
    (X, {"column_major_scales": True}, "column_major_scales: x has no scales"),
    ((HALVES, BLOCKS), {"column_major_scales": True}, "scales of NVFP4 only come by rows"),
    (X, {"quantize": "int8"}, "quantize is 'int8'.* one of 'fp8', 'ue8m0', 'mxfp8', 'nvfp4'"),
    ((NUMBERS, SCALES), {"quantize": "mxfp8"}, "casts rows of bfloat16, and x is cast already"),
    (X.astype(np.float32), {"quantize": "mxfp8"}, "dtype float32; this Buffer carries bfloat16"),
    (X, {"quantize": "nvfp4", "column_major_scales": True}, "scales of NVFP4 only come by"),
    ((NUMBERS, SCALES), {"column_major_scales": "False"}, "column_major_scales is 'False'"),
]


def bad_rows(rank: Rank) -> None:
    mixed = PARTS["mxfp8"] if rank.rank else PARTS["nvfp4"]
    differ = "the ranks passed rows of different forms .* MXFP8 rows on rank 1, NVFP4 "
    with Buffer(rank, **SHAPE) as buffer:
        for x, how, says in BAD:
            refused(lambda x=x, how=how: buffer.dispatch(x, IDX, **how), ArgumentError, says)
        refused(lambda: buffer.dispatch(mixed, IDX), RankMismatchError, differ)
        recv = buffer.dispatch(PARTS["mxfp8"], IDX)
        refused(lambda: buffer.dispatch(mixed, handle=recv.handle), RankMismatchError, differ)
    with Buffer(rank, **SHAPE, dtype="float32") as floats:
        x, says = X.astype(np.float32), "quantize casts rows of bfloat16, and this Buffer carries float32"
        refused(lambda: floats.dispatch(x, IDX, quantize="fp8"), ArgumentError, says)
    with Buffer(rank, **{**SHAPE, "hidden": 160}) as odd:
        rows, groups = X[:, :160].copy(), "quantize='ue8m0' takes rows of a multiple of 128 elements; hidden is 160"
        refused(lambda: odd.dispatch(rows, IDX, quantize="ue8m0"), ArgumentError, groups)


def test_bad_rows_are_refused_and_the_buffer_works_on() -> None:
    spawn(bad_rows, 2, "emulator")


def test_bytes_of_every_form() -> None:
    config = make_config(2, num_experts=4, top_k=2, hidden=7168, max_tokens=8, dtype="bfloat16", num_sms=2)
    sizes = {form.name: (form.row_bytes, form.side_bytes) for form in row_formats(config) if form is not None}
    assert sizes == {
        "bfloat16 rows": (14336, 0),
        "FP8 rows with scales": (7168, 224),
        "FP8 rows with scales (UE8M0)": (7168, 56),
        "FP8 rows with scales (packed UE8M0)": (7168, 56),
        "MXFP8 rows": (7168, 224),
        "MXFP8 rows (packed scales)": (7168, 224),
        "NVFP4 rows": (3584, 448),
        "NVFP4 rows with row scales": (3584, 464),
    }


@pytest.mark.slow
def test_a_handle_by_expert_is_launched_the_quick_way() -> None:
    """Other kinds of parameters would make each launch take the slow way (ep_lib/cuda/native_host.py)."""
    by_expert = direct_kernel("copy_epilogue", "<long long, unsigned char>", "copy_by_expert").compile("sm_90")
    assert {param.kind for param in by_expert.params} <= {"pointer", "struct", "int"}
