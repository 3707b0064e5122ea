"""Arrays of NumPy and torch, seen the same way, without copies."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ep_lib.errors import ArgumentError
from ep_lib.memory.arrays import describe, is_array, like

torch = pytest.importorskip("torch")

TYPES = [
    (torch.float32, np.dtype(np.float32)),
    (torch.float16, np.dtype(np.float16)),
    (torch.int64, np.dtype(np.int64)),
    (torch.uint8, np.dtype(np.uint8)),
    (torch.bool, np.dtype(np.bool_)),
    (torch.bfloat16, np.dtype(ml_dtypes.bfloat16)),
    (torch.float8_e4m3fn, np.dtype(ml_dtypes.float8_e4m3fn)),
    (torch.float8_e5m2, np.dtype(ml_dtypes.float8_e5m2)),
]


@pytest.mark.parametrize(("torch_type", "numpy_type"), TYPES, ids=[str(t) for t, _ in TYPES])
def test_types_of_torch_and_numpy_correspond_both_ways(torch_type: Any, numpy_type: np.dtype[Any]) -> None:
    tensor = torch.ones(2, 3).to(torch_type)
    info = describe(tensor)
    assert (info.dtype, info.shape, info.kind, info.device) == (numpy_type, (2, 3), "torch", "cpu")
    assert info.address == tensor.data_ptr() and info.strides_bytes is None
    array = like("numpy", tensor)
    assert array.dtype == numpy_type and describe(array).address == tensor.data_ptr()
    assert (array.astype(np.float32) == 1).all()
    back = like("torch", array)
    assert back.dtype == torch_type and back.data_ptr() == tensor.data_ptr()


def test_strides_and_readonly() -> None:
    array = np.zeros((4, 6), np.float32)
    assert describe(array).strides_bytes is None and not describe(array).readonly
    assert describe(array[:, ::2]).strides_bytes == (24, 8)
    assert describe(torch.zeros(4, 6).t()).strides_bytes == (4, 24)
    array.flags.writeable = False
    assert describe(array).readonly


def test_parameters_and_subclasses_are_arrays() -> None:
    assert describe(torch.nn.Parameter(torch.zeros(3))).shape == (3,)
    assert is_array(np.zeros(2).view(np.recarray)) and not is_array([1, 2]) and not is_array(np.float32(1))
    assert like("numpy", torch.nn.Parameter(torch.zeros(3))).shape == (3,)


def test_what_cannot_be_described_is_refused() -> None:
    with pytest.raises(ArgumentError, match="got list"):
        describe([1, 2])
    with pytest.raises(ArgumentError, match="layout"):
        describe(torch.zeros(3, 3).to_sparse())
    with pytest.raises(ArgumentError, match="meta"):
        describe(torch.zeros(3, device="meta"))
    with pytest.raises(ArgumentError, match="conj"):
        describe(torch.zeros(3, dtype=torch.complex64).conj())
    with pytest.raises(ArgumentError, match="without a copy"):
        like("cupy", np.zeros(3))


def test_neither_torch_nor_cupy_is_imported() -> None:
    code = (
        "import sys, numpy as np\nfrom ep_lib.memory.arrays import describe\ndescribe(np.zeros(3))\n"
        "assert not {'torch', 'cupy'} & set(sys.modules), 'imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
