"""Rows of few bits on their way through a Buffer, in every form, compared with the oracle byte by byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from ep_lib import Buffer, Rank, reference
from ep_lib.memory.arrays import like
from ep_lib.moe.direct.tuning import EMULATED
from support.dispatch_combine_cases import Case, make_case, to_input

FORMS = ["fp8", "ue8m0", "packed ue8m0", "mxfp8", "packed mxfp8", "nvfp4", "nvfp4 alone"]
_TORCH_BYTES = {
    np.dtype(ml_dtypes.float8_e4m3fn): "float8_e4m3fn",
    np.dtype(ml_dtypes.float8_e8m0fnu): "float8_e8m0fnu",
}


def form_case(seed: int, ranks: int, hidden: int, *, dtype: str = "bfloat16", max_tokens: int | None = None) -> Case:
    """Rows with zeros, NaN, infinities, and numbers of very different sizes."""
    rng, case = np.random.default_rng(seed), make_case(seed, world_size=ranks, dtype=dtype, max_tokens=max_tokens)
    xs = []
    for old in case.xs:
        x = rng.standard_normal((len(old), hidden)) * np.exp2(
            rng.integers(-20, 20, (len(old), hidden // 16)).repeat(16, 1)
        )
        x[: len(x) // 4, :64] = 0
        x[: len(x) // 6, 70] = np.nan
        x[: len(x) // 8, 90] = np.inf
        x[: len(x) // 9, :] = 1e-39
        xs.append(x.astype(old.dtype))
    return Case(**{**vars(case), "hidden": hidden, "xs": xs})


def make_parts(x: Any, form: str) -> tuple[Any, ...]:
    """Numbers and scales of bfloat16 or float32 rows."""
    name = form.split()[-1] if "packed" in form else form.split()[0]
    parts = reference.quantize(x, name)
    if "packed" in form:
        return parts[0], reference.pack_ue8m0(parts[1])
    return parts[:2] if "alone" in form else parts


def part_to_input(rank: Rank, array: Any, kind: str) -> Any:
    """One of them as a rank's kernels can take it: CuPy knows 8-bit floats as uint8."""
    if kind == "torch" and rank.backend == "emulator":
        return like("torch", array.copy())
    if rank.backend == "emulator":
        return array.copy()
    on_device = rank.to_device(array.view(np.uint8) if array.dtype in _TORCH_BYTES else array)
    if kind == "native":
        return on_device
    import torch

    tensor = like("torch", on_device)
    return tensor.view(getattr(torch, _TORCH_BYTES[array.dtype])) if array.dtype in _TORCH_BYTES else tensor


def row_bytes(array: Any) -> Any:
    """[N, bytes of a row], NumPy, of an array of any library and with any strides."""
    if type(array).__module__.startswith("torch"):
        import torch

        columns = array.shape[1] if array.ndim == 2 else 1
        rows = torch.empty((len(array), columns), dtype=array.dtype, device=array.device)
        array = rows.copy_(array.reshape(rows.shape)).view(torch.uint8).cpu().numpy()
    elif hasattr(array, "get"):
        array = array.get()
    array = np.ascontiguousarray(array)
    width = array.dtype.itemsize * (array.shape[1] if array.ndim == 2 else 1)
    return array.view(np.uint8).reshape(len(array), width) if len(array) else np.zeros((0, width), np.uint8)


def expected_parts(case: Case, form: str) -> list[list[Any]]:
    """Of each rank: the bytes of each part, row by row."""
    sent = [[row_bytes(part) for part in make_parts(x, form)] for x in case.xs]
    received = [
        reference.dispatch([part.astype(np.float32) for part in parts], case.topk_idx, num_experts=case.num_experts)
        for parts in zip(*sent, strict=True)
    ]
    return [[of_rank.x.astype(np.uint8) for of_rank in parts] for parts in zip(*received, strict=True)]


def assert_parts(got: Any, want: list[Any], what: str) -> None:
    assert len(got) == len(want)
    for number, (array, expected) in enumerate(zip(got, want, strict=True)):
        found = row_bytes(array)
        assert np.array_equal(found, expected), f"{what}, part {number}:\n{found}\ninstead of\n{expected}"


CASTS = ["fp8", "ue8m0", "mxfp8", "nvfp4"]
BY_TMA = replace(EMULATED, way="Tma", dispatch_stages=3)


def send_form(rank: Rank, case: Case, form: str, options: dict[str, Any], kind: str = "native") -> None:
    """There, again by the handle, grouped by expert, and by columns, as ``options`` say; also "receive_areas" of the
    Buffer, "tuning" of its launches, and "mixed": only some ranks cast before."""
    me, options = rank.rank, dict(options)
    areas, tuning = options.pop("receive_areas", 1), options.pop("tuning", None)
    if options.pop("mixed", False) and me % 2:
        options.pop("quantize")
    if "quantize" in options:
        parts = to_input(rank, case.xs[me], kind)
    else:
        parts = tuple(part_to_input(rank, part, kind) for part in make_parts(case.xs[me], form))
    idx = to_input(rank, case.topk_idx[me], kind)
    want = expected_parts(case, form)[me]
    with Buffer(rank, **case.buffer_arguments(), receive_areas=areas) as buffer:
        if tuning is not None:
            buffer._mode.tuning = tuning
        recv = buffer.dispatch(parts, idx, **options)
        rank.synchronize()
        if recv.event is not None:
            recv.event.synchronize()
        rows = len(want[0])
        assert len(recv.x[0]) == options.get("num_worst_tokens", rows)
        assert_parts([part[:rows] for part in recv.x], want, f"rank {me}, {form}")
        if recv.by_expert is not None:
            row = row_bytes(recv.by_expert.row).view(np.int32)[:, 0]
            used = np.flatnonzero(row >= 0)
            for got, expected in zip(recv.by_expert.x, want, strict=True):
                assert np.array_equal(row_bytes(got)[used], expected[row[used]]), f"{form} by expert"
                assert np.array_equal(
                    row_bytes(recv.by_expert.x[0])[row < 0], np.zeros_like(row_bytes(recv.by_expert.x[0])[row < 0])
                )
        again = buffer.dispatch(parts, handle=recv.handle, **options)
        rank.synchronize()
        if again.event is not None:
            again.event.synchronize()
        assert_parts([part[:rows] for part in again.x], want, f"rank {me}, {form} again")
        if options.get("copy", True):
            assert_parts([part[:rows] for part in recv.x], want, f"rank {me}, {form}, later")
        if options.get("column_major_scales"):
            assert_by_columns(again.x[1])


def assert_by_columns(scales: Any) -> None:
    """Columns lie together and begin at whole 16 bytes."""
    itemsize = scales.itemsize if not hasattr(scales, "element_size") else scales.element_size()
    strides = scales.stride() if hasattr(scales, "stride") else tuple(s // itemsize for s in scales.strides)
    if len(scales):
        assert strides[0] == 1 and strides[1] * itemsize % 16 == 0 and strides[1] >= len(scales)
