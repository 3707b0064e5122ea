"""A kernel's parameters, and the conversion of Python arguments into their bytes."""

from __future__ import annotations

import ctypes
import operator
import struct
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from ep_lib.errors import ArgumentError, KernelLaunchError
from ep_lib.memory.arrays import ArrayInfo, describe, is_array

Kind = Literal["int", "uint", "float", "bool", "pointer", "struct"]

_TABLE_MAGIC = 0x45504B54  # the table's format: ep_lib/device/ep/detail/entry.cuh
_KINDS: tuple[Kind, ...] = ("int", "uint", "float", "bool", "pointer", "struct")  # the first is number 1 there
_POINTS_TO_CONST = 1


class Param(NamedTuple):
    """One parameter of a kernel: its kind, ``size`` and ``align`` in bytes.

    ``is_const`` is meant for pointers: the kernel only reads through it.
    """

    kind: Kind
    size: int
    align: int
    is_const: bool = False

    def __str__(self) -> str:
        if self.kind in ("int", "uint", "float"):
            return f"{self.kind}{8 * self.size}"
        return f"struct of {self.size} bytes" if self.kind == "struct" else self.kind


class MarshalledArg(NamedTuple):
    """The bytes of one argument, and the memory that it points to.

    ``array`` is the array passed for a pointer, ``arrays`` those that a struct's ``ep_kernel_arrays()`` names. Keep
    them until the kernel has ended.
    """

    data: bytes
    array: ArrayInfo | None = None
    arrays: tuple[ArrayInfo, ...] = ()


def parse_table(table: bytes) -> tuple[Param, ...]:
    """Decodes the table that ``EP_KERNEL_ENTRY`` puts into a compiled kernel."""
    magic, count = struct.unpack_from("<II", table)
    if magic != _TABLE_MAGIC:
        raise ValueError(f"not a table of kernel parameters: it starts with {magic:#x}")
    rows = [struct.unpack_from("<IIII", table, 8 + 16 * i) for i in range(count)]
    return tuple(
        Param(_KINDS[kind - 1], size, align, bool(flags & _POINTS_TO_CONST)) for kind, size, align, flags in rows
    )


def marshal(kernel_name: str, params: Sequence[Param], args: Sequence[object]) -> list[MarshalledArg]:
    """Converts the arguments of a launch, one for each parameter.

    Pointers take contiguous arrays (NumPy, CuPy, torch), what ``describe`` says of one, addresses as int, or None.
    Integers take anything with ``__index__`` that fits; floats take numbers. Structs take ctypes structures, NumPy
    scalars, ``bytes`` of the exact size, or objects with ``ep_kernel_arg() -> bytes`` (and, optionally,
    ``ep_kernel_arrays()`` that lists the arrays behind their pointers). Raises :class:`KernelLaunchError` for all
    else, naming the argument (counted from 1).
    """
    if len(params) != len(args):
        wanted = ", ".join(map(str, params))
        count = f"{len(params)} argument{'s' if len(params) != 1 else ''}"
        raise KernelLaunchError(f"{kernel_name!r} takes {count}{f' ({wanted})' if params else ''}; got {len(args)}")
    result = []
    for position, (param, arg) in enumerate(zip(params, args, strict=True), 1):
        try:
            result.append(_CONVERTERS[param.kind](param, arg))
        except _Refused as refused:
            raise KernelLaunchError(f"argument {position} of {kernel_name!r} {refused}") from refused.__cause__
    return result


class _Refused(Exception):
    """An argument that does not fit; the text continues the sentence 'argument 3 of <kernel> ...'."""


_UINT = {size: struct.Struct("<" + code) for size, code in ((1, "B"), (2, "H"), (4, "I"), (8, "Q"))}
_INT = {size: struct.Struct("<" + code) for size, code in ((1, "b"), (2, "h"), (4, "i"), (8, "q"))}
_FLOAT = {4: struct.Struct("<f"), 8: struct.Struct("<d")}
_pack_address = _UINT[8].pack


def _pointer(param: Param, arg: Any) -> MarshalledArg:
    if isinstance(arg, ArrayInfo) or is_array(arg):
        try:
            info = arg if isinstance(arg, ArrayInfo) else describe(arg)
        except ArgumentError as error:
            raise _Refused(f"is a tensor that a kernel cannot use: {error}") from error
        if info.strides_bytes is not None:
            raise _Refused(
                f"is a non-contiguous array (shape {info.shape}, strides {info.strides_bytes} bytes): "
                "pass a contiguous copy, or the whole array and the strides"
            )
        if info.readonly and not param.is_const:
            raise _Refused("is a read-only array, but the kernel's pointer is not const")
        return MarshalledArg(_pack_address(info.address), info)
    if arg is None:
        return MarshalledArg(_pack_address(0))
    try:
        address = operator.index(arg)
    except TypeError:
        hint = ""
        if isinstance(arg, (list, tuple)):
            hint = "; make it an array first: rank.to_device(np.array(...))"
        raise _Refused(f"is a pointer; got {_show(arg)}{hint}") from None
    if isinstance(arg, (bool, np.bool_)) or not 0 <= address < 1 << 64:
        raise _Refused(f"is a pointer; got {_show(arg)}, which is no address")
    return MarshalledArg(_pack_address(address))


def _integer(param: Param, arg: Any) -> MarshalledArg:
    table = _INT if param.kind == "int" else _UINT
    try:
        return MarshalledArg(table[param.size].pack(arg))
    except (struct.error, TypeError, ValueError):
        pass
    if is_array(arg):
        raise _Refused(f"is {param}, a single number; got {_show(arg)}")
    try:
        value = operator.index(arg)
    except TypeError:
        raise _Refused(f"is {param}; got {_show(arg)}") from None
    low = -(1 << (8 * param.size - 1)) if param.kind == "int" else 0
    high = (1 << (8 * param.size - (param.kind == "int"))) - 1
    if not low <= value <= high:
        raise _Refused(f"is {param} and takes {low} to {high}; got {value}")
    return MarshalledArg(table[param.size].pack(value))


def _float(param: Param, arg: Any) -> MarshalledArg:
    if is_array(arg) or isinstance(arg, (str, bytes)) or not hasattr(arg, "__float__"):
        raise _Refused(f"is {param}; got {_show(arg)}")
    try:
        return MarshalledArg(_FLOAT[param.size].pack(float(arg)))
    except (OverflowError, TypeError, ValueError) as error:
        raise _Refused(f"is {param}; {_show(arg)} does not fit") from error


def _bool(param: Param, arg: Any) -> MarshalledArg:
    if isinstance(arg, (bool, np.bool_)) or (isinstance(arg, (int, np.integer)) and arg in (0, 1)):
        return MarshalledArg(b"\1" if arg else b"\0")
    raise _Refused(f"is bool; got {_show(arg)}")


def _struct(param: Param, arg: Any) -> MarshalledArg:
    arrays: tuple[ArrayInfo, ...] = ()
    if hasattr(arg, "ep_kernel_arg"):
        data = bytes(arg.ep_kernel_arg())
        if hasattr(arg, "ep_kernel_arrays"):
            arrays = tuple(describe(array) for array in arg.ep_kernel_arrays())
    elif isinstance(arg, (bytes, bytearray, memoryview, ctypes.Structure, ctypes.Union, ctypes.Array)):
        data = bytes(arg)
    elif isinstance(arg, np.generic) or (isinstance(arg, np.ndarray) and arg.ndim == 0):
        data = arg.tobytes()
    else:
        raise _Refused(
            f"is a {param} by value; got {_show(arg)}: pass a ctypes.Structure, a NumPy scalar or bytes of that size"
        )
    if len(data) != param.size:
        raise _Refused(f"is a {param} by value; got {len(data)} bytes ({type(arg).__name__})")
    return MarshalledArg(data, None, arrays)


_CONVERTERS = {
    "pointer": _pointer,
    "int": _integer,
    "uint": _integer,
    "float": _float,
    "bool": _bool,
    "struct": _struct,
}


def _show(arg: Any) -> str:
    """2.5 (float); arrays by shape and dtype."""
    if is_array(arg):
        return f"an array of shape {tuple(arg.shape)} and type {arg.dtype}"
    text = repr(arg)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(arg).__name__})"
