"""`Kernel`: one ``__global__`` function of a CUDA source, compiled for the emulator or a GPU on demand; and the
conversion of its arguments to bytes."""

from __future__ import annotations

import ctypes
import functools
import operator
import os
import re
import struct
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import DTypeLike

from ep_lib.errors import ArgumentError, KernelLaunchError, KernelNotFoundError
from ep_lib.jit import gxx, nvrtc, pieces, toolkit
from ep_lib.jit.gxx import EmulatorImage
from ep_lib.jit.nvrtc import NvrtcImage
from ep_lib.jit.signature import Param
from ep_lib.jit.source import Define, KernelSource
from ep_lib.memory.arrays import Array, ArrayInfo, describe, is_array
from ep_lib.require import index, refuse, several, show, text

Dim = int | Sequence[int]  # a grid or block size: a number, or up to three
_TARGET = re.compile(r"sm_\d+[af]?")
_PACKAGE = Path(__file__).resolve().parents[1]


class Launcher(Protocol):
    """The part of an :class:`ep_lib.Rank` that a launch needs: its backend starts the kernel."""

    _backend: Any


class Kernel(KernelSource):
    """One kernel: a source, the name of a ``__global__`` function in it, and how to compile it.

    Make one with :meth:`from_file` or :meth:`from_source`; the source is C++17, as nvcc takes it by default. It is
    compiled at its first launch, or by :meth:`compile`, and the result is cached on disk. A ``Kernel`` keeps the source
    and headers of its compilation; make a new one after editing them.

    Attributes: ``name`` (a C++ name expression such as ``copy`` or ``copy<float, 4>``), ``path`` (of the source, None
    for a string), ``source`` (its text), ``include`` (the learner's own folders, searched before ep_lib's headers),
    ``defines`` and ``options`` (further NVRTC options, which the emulator ignores).
    """

    def __init__(
        self,
        source: str,
        name: str,
        *,
        path: Path | None,
        filename: str,
        include: Sequence[str | os.PathLike[str]] = (),
        defines: Mapping[str, Define] | None = None,
        options: Sequence[str] = (),
        closed: KernelSource | None = None,
    ) -> None:
        super().__init__(
            source,
            name,
            path=path,
            filename=filename,
            include=include,
            defines=defines,
            options=options,
            closed=closed,
        )
        self._images: dict[str, EmulatorImage | NvrtcImage] = {}
        self._lock = threading.Lock()

    def launch(
        self,
        rank: Launcher,
        grid: Dim,
        block: Dim,
        *args: object,
        shared_bytes: int = 0,
        uses: Sequence[object] = (),
    ) -> None:
        """Starts the kernel on ``rank`` and returns at once; the kernels of a rank run one after the other.

        ``grid`` and ``block`` are numbers or up to three of them, ``shared_bytes`` the size of ``extern __shared__``
        memory. ``args`` are numbers, arrays (NumPy, CuPy, torch; zero copy), addresses or None for pointers, and bytes,
        ctypes structures or NumPy scalars for structs by value. ``uses``: the arrays whose addresses such structs
        contain; they are kept alive, and the emulator lets the kernel access them. Raises :class:`KernelLaunchError`,
        :class:`KernelCompileError` and :class:`KernelNotFoundError`.
        """
        backend = getattr(rank, "_backend", None) or _backend_of(rank, "launch(rank, grid, block, ...)")
        if pieces.in_use:
            pieces.launched(self.pieces(toolkit.EMULATED_TRANSPORT))
        backend.launch(self, grid, block, args, shared_bytes, uses)

    def get_global(self, rank: Launcher, name: str, dtype: DTypeLike = np.uint8) -> Array:
        """The variable ``name`` (``__device__`` or ``__constant__``, "space::name" in a namespace) of this kernel on
        ``rank``, as a one-dimensional array of ``dtype`` without a copy: NumPy on the emulator, CuPy on GPUs.

        Each kernel on each rank has its own, as a CuPy RawModule of one kernel would; it lives as long as the rank.
        ``array[...] = values`` sets it for later launches, and ``rank.to_host(array)`` reads it; on the emulator
        call ``rank.synchronize()`` first, if a kernel that uses it was launched before. Raises
        :class:`KernelNotFoundError` if there is no such variable, and :class:`ArgumentError` if its size is no multiple
        of ``dtype``'s.
        """
        *spaces, last = text("the name of a variable", name).strip().split("::")
        mangled = "".join(f"{len(part)}{part}" for part in (*spaces, last))
        found = _backend_of(rank, "get_global(rank, name)").variable(self, f"_ZN{mangled}E" if spaces else last)
        if found is None:
            raise KernelNotFoundError(
                f"kernel '{self.name}' of {self.filename} has no variable {name!r}: is it __device__ or __constant__, "
                "outside of functions, not static, and used by this kernel?"
            )
        kind = np.dtype(dtype)
        if found.nbytes % kind.itemsize:
            raise ArgumentError(f"the variable {name!r} has {found.nbytes} bytes, which is no multiple of {kind}'s")
        return found.view(kind)

    @overload
    def compile(self) -> EmulatorImage: ...
    @overload
    def compile(self, target: str) -> EmulatorImage | NvrtcImage: ...
    def compile(self, target: str = "emulator") -> EmulatorImage | NvrtcImage:
        """Compiles now for "emulator", or for a GPU architecture such as "sm_90", which needs no GPU.

        Raises :class:`KernelCompileError`, :class:`KernelNotFoundError`, and :class:`BackendUnavailable` when the
        compiler is missing.
        """
        key = text("target", target)
        if pieces.in_use:  # the learner may edit them while the library's kernels stay loaded
            key += self.reaches(toolkit.EMULATED_TRANSPORT).digest
        image = self._images.get(key)
        if image is not None and (image.__class__ is not EmulatorImage or os.access(image.path, os.F_OK)):
            return image
        with self._lock:
            image = self._images.get(key)
            if image is None or not _is_there(image):
                if target == "emulator":
                    image = gxx.build_emulator_kernel(self)
                elif _TARGET.fullmatch(target):
                    image = nvrtc.compile_cubin(self, target)
                else:
                    raise ArgumentError(f"target is 'emulator' or an architecture such as 'sm_90', got {target!r}")
                self._images[key] = image
            return image

    def __getstate__(self) -> dict[str, Any]:
        """Kernels travel to other processes as source; each process takes them from the cache."""
        return {**self.__dict__, "_images": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def __repr__(self) -> str:
        return f"<ep_lib.Kernel {self.name} of {self.filename}>"


def _is_there(image: EmulatorImage | NvrtcImage) -> bool:
    """Whether the image's file exists: the cache may have been emptied since."""
    return not isinstance(image, EmulatorImage) or os.access(image.path, os.F_OK)


def _backend_of(rank: Launcher, call: str) -> Any:
    backend = getattr(rank, "_backend", None)
    if backend is None:
        refuse("rank", rank, f"the Rank that main got: kernel.{call}")
    return backend


@functools.cache
def library_kernel(path: str, name: str) -> Kernel:
    """One of ep_lib's own kernels: ``path`` of its ``.cu`` file in the package, and its C++ name."""
    return Kernel.from_file(_PACKAGE / path, name)


# ---- arguments of a launch -------------------------------------------------------------------------------------------
# The limits of a launch, the same on every backend (CUDA C++ Programming Guide, Compute Capabilities, 8.0 to 10.0).
_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_BLOCK = (1024, 1024, 64)


def launch_dimensions(
    kernel: str, grid: int | Sequence[int], block: int | Sequence[int]
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Grid and block as three numbers each. Raises KernelLaunchError if a GPU would refuse them."""
    if type(grid) is int and type(block) is int and 1 <= grid <= _MAX_GRID[0] and 1 <= block <= gxx.MAX_THREADS:
        return (grid, 1, 1), (block, 1, 1)  # the usual case
    grid3 = _dimensions(kernel, "grid", grid, _MAX_GRID)
    block3 = _dimensions(kernel, "block", block, _MAX_BLOCK)
    threads = block3[0] * block3[1] * block3[2]
    if threads > gxx.MAX_THREADS:
        raise KernelLaunchError(
            f"kernel '{kernel}': a block of {block3} has {threads} threads; a GPU allows {gxx.MAX_THREADS}"
        )
    return grid3, block3


def _dimensions(
    kernel: str, what: str, value: int | Sequence[int], limits: tuple[int, int, int]
) -> tuple[int, int, int]:
    numbers = value if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else (value,)
    given = []
    for each in numbers:
        number = each if type(each) is int else index(each)
        if number is not None:
            given.append(number)
    if not 1 <= len(given) == len(numbers) <= 3:
        raise KernelLaunchError(f"kernel '{kernel}': {what} is {show(value)}; it must be 1 to 3 whole numbers")
    full = (*given, 1, 1)[:3]
    for name, number, limit in zip("xyz", full, limits, strict=True):
        if not 1 <= number <= limit:
            raise KernelLaunchError(f"kernel '{kernel}': {what}.{name} is {number}; it must be from 1 to {limit}")
    return full[0], full[1], full[2]


def require_threads(kernel: str, block: tuple[int, int, int], most: int) -> None:
    """Raises KernelLaunchError if a block has more threads than ``most``, which a GPU's driver allows the kernel."""
    threads = block[0] * block[1] * block[2]
    if threads > most:
        raise KernelLaunchError(
            f"kernel '{kernel}': a block of {threads} threads; with its __launch_bounds__ or its registers, this "
            f"kernel runs with at most {most} on a GPU"
        )


def dynamic_shared(kernel: str, value: Any) -> int:
    """The size of ``extern __shared__`` memory. Raises KernelLaunchError if it is invalid."""
    number = value if type(value) is int else index(value)
    if number is None or number < 0:
        raise KernelLaunchError(f"kernel '{kernel}': shared_bytes is {show(value)}; it must be a whole number from 0")
    return number


def used_arrays(kernel: str, uses: Any) -> list[ArrayInfo]:
    """The arrays of a launch's ``uses``. Raises ArgumentError."""
    if type(uses) is not tuple and (is_array(uses) or not isinstance(uses, Iterable) or isinstance(uses, (str, bytes))):
        refuse(f"kernel '{kernel}': uses", uses, "a list of arrays")
    arrays = []
    for array in uses:
        arrays.append(array if type(array) is ArrayInfo else describe(array))
    return arrays


# One argument: its bytes, the array passed for a pointer, and the arrays of a struct's ``ep_kernel_arrays()``. Keep
# them until the kernel has ended.
Marshalled = tuple[bytes, ArrayInfo | None, tuple[ArrayInfo, ...]]


def marshal(kernel_name: str, params: Sequence[Param], args: Sequence[Any]) -> list[Marshalled]:
    """Converts the arguments of a launch, one for each parameter.

    Pointers take contiguous arrays (NumPy, CuPy, torch), an ArrayInfo of ``describe``, addresses as int, or None.
    Integers take anything with ``__index__`` that fits; floats take numbers. Structs take ctypes structures, NumPy
    scalars, ``bytes`` of the exact size, or objects with ``ep_kernel_arg() -> bytes`` (and, optionally,
    ``ep_kernel_arrays()`` that lists the arrays behind their pointers). Raises :class:`KernelLaunchError` otherwise,
    naming the argument (counted from 1).
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
    """An unsuitable argument; the text continues the sentence 'argument 3 of <kernel> ...'."""


_UINT = {size: struct.Struct("<" + code) for size, code in ((1, "B"), (2, "H"), (4, "I"), (8, "Q"))}
_INT = {size: struct.Struct("<" + code) for size, code in ((1, "b"), (2, "h"), (4, "i"), (8, "q"))}
_FLOAT = {4: struct.Struct("<f"), 8: struct.Struct("<d")}
_LEAST_ADDRESS = 4096  # what is below is a number that was taken for one
_pack_address = _UINT[8].pack


def _pointer(param: Param, arg: Any) -> Marshalled:
    if arg is None:
        return _pack_address(0), None, ()
    if not isinstance(arg, int) and (isinstance(arg, ArrayInfo) or is_array(arg)):
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
        if param.element and not _is_element(param, info.dtype) and info.nbytes:
            raise _Refused(_wrong_elements(param, info))
        return _pack_address(info.address), info, ()
    address = arg if type(arg) is int else index(arg)
    if address is None and not isinstance(arg, (bool, np.bool_)):
        hint = ""
        if isinstance(arg, (list, tuple)):
            hint = "; make it an array first: rank.to_device(np.array(...))"
        raise _Refused(f"is a pointer; got {show(arg)}{hint}")
    if isinstance(arg, np.integer) and address is not None and address < _LEAST_ADDRESS:
        raise _Refused(f"is a pointer; got {show(arg)}: an element is a number, and array[2:3] is an array of one")
    if address is None or not 0 <= address < 1 << 64:
        raise _Refused(f"is a pointer; got {show(arg)}, which is no address")
    return _pack_address(address), None, ()


@functools.lru_cache(maxsize=1024)
def _is_element(param: Param, dtype: np.dtype[Any]) -> bool:
    """Whether this pointer's type fits the elements of the array. Integers fit either sign, and also the bits of types
    that C or CuPy lack."""
    if dtype.itemsize != param.element_size:
        return False
    kind, element = dtype.kind, param.element
    if kind in "iu":
        return element != "float"
    if element in ("int", "uint"):
        return dtype.isbuiltin == 2  # registered by ml_dtypes: bfloat16 and FP8, as bits
    return dtype.name == param.element_name


def _wrong_elements(param: Param, info: ArrayInfo) -> str:
    wanted = param.element_name
    if info.kind == "torch":
        convert, view = f"tensor.to(torch.{wanted})", f"tensor.view(torch.{wanted})"
    else:
        module = "np" if hasattr(np, wanted) else "ml_dtypes"
        convert, view = f"array.astype({module}.{wanted})", f"array.view({module}.{wanted})"
    return (
        f"points to {wanted}, and the array of shape {info.shape} has type {info.dtype.name}: pass {convert} to "
        f"convert the values, or {view} if its bytes are {wanted} (a converted array is a copy: symmetric "
        "memory gets its type from rank.symmetric)"
    )


def _integer(param: Param, arg: Any) -> Marshalled:
    table = _INT if param.kind == "int" else _UINT
    try:
        return table[param.size].pack(arg), None, ()
    except (struct.error, TypeError, ValueError):
        pass
    if is_array(arg):
        raise _Refused(f"is {param}, a single number; got {show(arg)}")
    try:
        value = operator.index(arg)
    except TypeError:
        raise _Refused(f"is {param}; got {show(arg)}") from None
    low = -(1 << (8 * param.size - 1)) if param.kind == "int" else 0
    high = (1 << (8 * param.size - (param.kind == "int"))) - 1
    if not low <= value <= high:
        raise _Refused(f"is {param} and takes {low} to {high}; got {value}")
    return table[param.size].pack(value), None, ()


def _float(param: Param, arg: Any) -> Marshalled:
    if is_array(arg) or isinstance(arg, (str, bytes)) or not hasattr(arg, "__float__"):
        raise _Refused(f"is {param}; got {show(arg)}")
    try:
        return _FLOAT[param.size].pack(float(arg)), None, ()
    except (OverflowError, TypeError, ValueError) as error:
        raise _Refused(f"is {param}; {show(arg)} does not fit") from error


def _bool(param: Param, arg: Any) -> Marshalled:
    if isinstance(arg, (bool, np.bool_)) or (isinstance(arg, (int, np.integer)) and arg in (0, 1)):
        return b"\1" if arg else b"\0", None, ()
    raise _Refused(f"is bool; got {show(arg)}")


def _struct(param: Param, arg: Any) -> Marshalled:
    arrays: tuple[ArrayInfo, ...] = ()
    if hasattr(arg, "ep_kernel_arg"):
        data = arg.ep_kernel_arg()
        if not isinstance(data, (bytes, bytearray)):
            raise _Refused(f"is a {param} by value; ep_kernel_arg() of {show(arg)} returned {show(data)}, not bytes")
        if hasattr(arg, "ep_kernel_arrays"):
            arrays = tuple(map(describe, several("ep_kernel_arrays()", arg.ep_kernel_arrays(), "a list of arrays")))
    elif isinstance(arg, (bytes, bytearray, memoryview, ctypes.Structure, ctypes.Union, ctypes.Array)):
        data = bytes(arg)
    elif isinstance(arg, np.generic) or (isinstance(arg, np.ndarray) and arg.ndim == 0):
        data = arg.tobytes()
    else:
        raise _Refused(
            f"is a {param} by value; got {show(arg)}: pass bytes, as header_struct(file, name).pack(...) of "
            "ep_lib.jit.structs makes them from its declaration, or a ctypes.Structure or a NumPy scalar of that size"
        )
    if len(data) != param.size:
        raise _Refused(f"is a {param} by value; got {len(data)} bytes ({type(arg).__name__})")
    return bytes(data), None, arrays


_CONVERTERS = {
    "pointer": _pointer,
    "int": _integer,
    "uint": _integer,
    "float": _float,
    "bool": _bool,
    "struct": _struct,
}
