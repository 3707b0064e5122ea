"""Arguments of a launch: what is accepted, which bytes it becomes, and what the refusals say."""

from __future__ import annotations

import ctypes
import struct
import sys

import ml_dtypes
import numpy as np
import pytest

from ep_lib.errors import KernelLaunchError
from ep_lib.jit.kernel import marshal
from ep_lib.jit.signature import Param

POINTER, CONST_POINTER = Param("pointer", 8, 8), Param("pointer", 8, 8, True)
I32, U64, F32, F64, BOOL = (
    Param("int", 4, 4),
    Param("uint", 8, 8),
    Param("float", 4, 4),
    Param("float", 8, 8),
    Param("bool", 1, 1),
)
STRUCT = Param("struct", 12, 4)


def data(param: Param, arg: object) -> bytes:
    ((words, _, _),) = marshal("k", [param], [arg])
    assert len(words) == param.size
    return words


class Point(ctypes.Structure):
    _fields_ = (("x", ctypes.c_int), ("y", ctypes.c_float), ("z", ctypes.c_int))


class Handle:
    def __init__(self) -> None:
        self.array = np.zeros(3)

    def ep_kernel_arg(self) -> bytes:
        return struct.pack("<Qi", self.array.ctypes.data, 3)

    def ep_kernel_arrays(self) -> list[np.ndarray]:
        return [self.array]


def test_numbers() -> None:
    assert data(I32, -5) == struct.pack("<i", -5)
    assert data(I32, np.int64(7)) == struct.pack("<i", 7)
    assert data(I32, True) == struct.pack("<i", 1)
    assert data(U64, 2**64 - 1) == b"\xff" * 8
    assert data(Param("int", 1, 1), -128) == b"\x80"
    assert data(F32, 1.5) == struct.pack("<f", 1.5)
    assert data(F32, 3) == struct.pack("<f", 3)
    assert data(F64, np.float32(0.25)) == struct.pack("<d", 0.25)
    assert data(F32, float("inf")) == struct.pack("<f", float("inf"))
    assert data(BOOL, np.bool_(True)) == b"\1" and data(BOOL, 0) == b"\0"


def test_pointers() -> None:
    array = np.zeros((3, 4), np.float32)
    ((words, info, _),) = marshal("k", [POINTER], [array])
    assert words == struct.pack("<Q", array.ctypes.data)
    assert info is not None and info.owner is array
    assert (info.shape, info.nbytes, info.device) == ((3, 4), 48, "cpu")
    assert data(POINTER, None) == bytes(8)
    assert data(POINTER, 0x1234) == data(POINTER, np.uint64(0x1234)) == struct.pack("<Q", 0x1234)
    assert data(CONST_POINTER, np.broadcast_to(np.float32(1), (1,)))  # read-only is fine for const
    assert marshal("k", [POINTER], [np.zeros(0)])[0][1] is not None


def test_torch_tensors_are_passed_without_a_copy() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(8, dtype=torch.bfloat16)
    ((words, info, _),) = marshal("k", [POINTER], [tensor])
    assert words == struct.pack("<Q", tensor.data_ptr())
    assert info is not None and info.dtype == np.dtype(ml_dtypes.bfloat16)
    with pytest.raises(KernelLaunchError, match=r"argument 1 of 'k' is a non-contiguous array .*strides"):
        marshal("k", [POINTER], [torch.zeros(4, 4).t()])


def test_structs() -> None:
    assert data(STRUCT, Point(1, 2.0, 3)) == struct.pack("<ifi", 1, 2.0, 3)
    assert data(STRUCT, bytes(12)) == bytes(12)
    record = np.array((1, 2.0, 3), dtype=[("x", "<i4"), ("y", "<f4"), ("z", "<i4")])
    assert data(STRUCT, record) == data(STRUCT, record[()]) == struct.pack("<ifi", 1, 2.0, 3)
    assert data(Param("struct", 2, 2), ml_dtypes.bfloat16(1)) == b"\x80\x3f"  # __nv_bfloat16 is a class
    assert data(Param("struct", 2, 2), np.float16(1)) == b"\x00\x3c"
    handle = Handle()
    ((words, _, inside),) = marshal("k", [STRUCT], [handle])
    assert words == handle.ep_kernel_arg()
    assert [info.owner is handle.array for info in inside] == [True]


@pytest.mark.parametrize(
    ("param", "arg", "message"),
    [
        (POINTER, 2.5, r"argument 1 of 'k' is a pointer; got 2\.5 \(float\)"),
        (POINTER, [1, 2], r"is a pointer; got \[1, 2\] \(list\); make it an array first: rank\.to_device"),
        (POINTER, True, "is a pointer; got True"),
        (POINTER, -1, "no address"),
        (POINTER, np.float32(1), "is a pointer; got"),
        (POINTER, np.uint64(0), r"is a pointer; got np\.uint64\(0\).*an element is a number, and array\[2:3\] is an"),
        (POINTER, np.zeros((4, 4))[:, 1], r"non-contiguous array \(shape \(4,\), strides \(32,\) bytes\)"),
        (POINTER, np.frombuffer(b"abcd", np.uint8), "read-only"),
        (I32, 2.0, r"is int32; got 2\.0 \(float\)"),
        (I32, 2**31, "is int32 and takes -2147483648 to 2147483647; got 2147483648"),
        (U64, -1, "is uint64 and takes 0 to 18446744073709551615; got -1"),
        (I32, np.zeros(3), r"is int32, a single number; got an array of shape \(3,\) and type float64"),
        (I32, None, r"is int32; got None \(NoneType\)"),
        (F32, "1", r"is float32; got '1' \(str\)"),
        (F32, 1e300, "does not fit"),
        (F32, np.zeros(1), "is float32; got an array"),
        (BOOL, 2, "is bool; got 2"),
        (STRUCT, bytes(8), r"is a struct of 12 bytes by value; got 8 bytes \(bytes\)"),
        (STRUCT, 5, r"is a struct of 12 bytes by value; got 5 .*header_struct\(file, name\)\.pack.*ctypes.Structure"),
    ],
)
def test_refusals(param: Param, arg: object, message: str) -> None:
    with pytest.raises(KernelLaunchError, match=message):
        marshal("k", [param], [arg])


def test_the_position_and_the_whole_signature_are_named() -> None:
    with pytest.raises(KernelLaunchError, match="argument 3 of 'write_signal' is a pointer"):
        marshal("write_signal", [I32, I32, POINTER], [1, 2, 2.5])
    with pytest.raises(KernelLaunchError, match=r"'k' takes 4 arguments \(pointer, uint64, int32, float32\); got 3"):
        marshal("k", [POINTER, U64, I32, F32], [None, 1, 2])
    with pytest.raises(KernelLaunchError, match="'k' takes 0 arguments; got 1"):
        marshal("k", [], [1])


def test_marshalling_eight_arguments_takes_few_calls() -> None:
    """A launch must not become slow unnoticed: what is counted is Python's calls, since a machine may be busy."""
    array = np.zeros(10)
    params, args = [POINTER] * 4 + [I32, U64, F32, BOOL], [array, array, array, array, 3, 4, 2.5, True]
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    marshal("k", params, args)
    sys.setprofile(count)
    try:
        marshal("k", params, args)
    finally:
        sys.setprofile(None)
    assert calls <= 60
