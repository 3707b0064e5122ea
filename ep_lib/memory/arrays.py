"""The common properties of NumPy, CuPy and torch arrays: an address, a shape, a dtype, strides, a device.

Nothing here imports torch or CuPy: an object can only come from a library that is already loaded.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, TypeAlias

import ml_dtypes
import numpy as np

from ep_lib.errors import ArgumentError
from ep_lib.require import refuse

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

# An array of NumPy, CuPy or torch. CuPy has no type stubs, and the three share no named type.
Array: TypeAlias = Any

_NO_NUMBERS = "USMm"  # kinds of NumPy's types: texts, bytes, dates and times

# torch's names of the types that NumPy lacks
_TORCH_EXTENSION_TYPES: dict[str, np.dtype[Any]] = {
    f"torch.{name}": np.dtype(getattr(ml_dtypes, name))
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
}


class ArrayInfo(NamedTuple):
    """The address and layout of an array.

    ``dtype`` is a NumPy dtype (ml_dtypes' for bfloat16 and float8). ``strides_bytes`` is None for a C-contiguous array.
    ``device`` is "cpu" or "cuda:N"; ``kind`` is "numpy", "torch" or "cupy". ``owner`` keeps the memory alive.
    """

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides_bytes: tuple[int, ...] | None
    device: str
    kind: str
    readonly: bool
    owner: Array
    nbytes: int  # of the elements (for a contiguous array: the bytes it spans)


def is_array(obj: object) -> bool:
    """Whether :func:`describe` accepts ``obj``."""
    kind = _kinds.get(type(obj))
    return (_kind_of(type(obj)) if kind is None else kind) != ""


def describe(obj: Any) -> ArrayInfo:
    """Address, shape, dtype, strides and device of a NumPy, CuPy or torch array; nothing is copied. An ArrayInfo is
    returned unchanged.

    Raises :class:`ArgumentError` for anything else, for elements that kernels cannot use (Python objects, bytes in the
    other order), and for torch tensors that are not dense or still need gradients computed lazily (sparse, meta,
    conjugated views).
    """
    cls = type(obj)
    if cls is ArrayInfo:
        return obj  # type: ignore[no-any-return]
    kind = _kinds.get(cls)
    if kind is None:
        kind = _kind_of(cls)
    if kind == "numpy":
        flags, interface, dtype = obj.flags, obj.__array_interface__, obj.dtype
        if dtype.hasobject or not dtype.isnative:
            _refuse_elements(obj)
        address, readonly = interface["data"]
        strides = None if flags.c_contiguous else obj.strides
        return ArrayInfo(address, obj.shape, dtype, strides, "cpu", "numpy", readonly, obj, obj.nbytes)
    if kind == "torch":
        if _look is not None and (info := _look(obj)) is not None:
            return info
        return _describe_torch(obj)
    if kind == "cupy":
        return _describe_cupy(obj)
    raise ArgumentError(f"expected a NumPy, CuPy or torch array, got {type(obj).__name__}")


_look: Callable[[Any], ArrayInfo | None] | None = None
_native: Any = None


def look_natively(native: Any) -> None:
    """Makes :func:`describe` use ``native`` (:mod:`ep_lib.cuda.native_host`) first for torch's tensors."""
    global _look, _native
    _look, _native = native.describe, native


def looks_natively() -> bool:
    """Whether :func:`look_natively` was called."""
    return _native is not None


def lend(address: int, shape: tuple[int, int], dtype: np.dtype[Any], device: int, owner: object) -> Any:
    """A torch tensor at ``address`` that keeps ``owner`` alive, as do all its views. None if the native code cannot;
    then use DLPack through CuPy or NumPy. ``device``: a CUDA device; -1: the CPU."""
    return None if _native is None else _native.lend(address, *shape, dtype, device, owner)


def like(kind: str, array: Any) -> Any:
    """``array`` (NumPy or CuPy) as an array of ``kind`` ("numpy", "torch" or "cupy") on the same device, zero copy.

    torch has bfloat16 and float8 types that DLPack and NumPy lack; they pass through as integers and are viewed back.
    A CuPy array of uint16 stays uint16: CuPy has no bfloat16, so the caller views it. Raises :class:`ArgumentError`
    when the memory would have to move between CPU and GPU.
    """
    info = describe(array)
    if kind == info.kind:
        return array
    if kind == "torch":
        torch = _loaded("torch", "like('torch', ...)")
        extension = next((name for name, dtype in _TORCH_EXTENSION_TYPES.items() if dtype == info.dtype), None)
        bits = array
        if extension is not None:
            bits = array.view(np.uint8 if info.dtype.itemsize == 1 else np.int16)
        elif info.kind == "numpy" and info.readonly:
            return torch.tensor(array)
        tensor = torch.from_dlpack(bits)
        if not info.nbytes:  # NumPy's strides of an empty array are zeros, which torch cannot view as another type
            tensor = tensor.as_strided(info.shape, [math.prod(info.shape[i + 1 :]) for i in range(tensor.dim())])
        return tensor if extension is None else tensor.view(getattr(torch, extension.partition(".")[2]))
    if kind == "numpy" and info.kind == "torch" and info.device == "cpu":
        return _torch_to_numpy(array, info.dtype)
    if kind == "cupy" and info.kind == "torch" and info.device != "cpu":
        cupy = _loaded("cupy", "like('cupy', ...)")
        torch = sys.modules["torch"]
        is_extension = str(array.dtype) in _TORCH_EXTENSION_TYPES
        bits_type = torch.uint8 if info.dtype.itemsize == 1 else torch.uint16
        return cupy.from_dlpack(array.detach().view(bits_type) if is_extension else array.detach())
    raise ArgumentError(f"cannot view a {info.kind} array on {info.device} as {kind} without a copy")


def as_kind(kind: str, array: Array, dtype: np.dtype[Any]) -> Array:
    """``array`` (NumPy or CuPy) as one of ``kind``, and of ``dtype`` if that kind has it; zero copy."""
    if kind == "numpy":
        return array.view(dtype)
    result = like(kind, array)
    if kind == "torch" and array.dtype != dtype:
        return result.view(getattr(sys.modules["torch"], dtype.name))
    if kind == "cupy" and dtype.isbuiltin == 1 and array.dtype != dtype:  # else CuPy has no such type
        return result.view(dtype)
    return result


def no_memory(shape: tuple[int, ...], error: MemoryError) -> ArgumentError:
    """The error if memory for an array of this shape runs out."""
    return ArgumentError(f"shape is {shape}, and there is no memory for it: {error}; ask for less")


class _Holder:
    """Memory for NumPy: an array made from this object keeps it alive, as do all views of that array."""

    def __init__(self, owner: object, array: Any) -> None:
        self.owner, self.array, self.__array_interface__ = owner, array, array.__array_interface__


def holding(owner: object, array: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """The bytes of ``array`` (NumPy or CuPy, uint8) as an array of a shape and type that keeps ``owner`` alive, as long
    as it or a view of it lives."""
    if describe(array).kind == "numpy":
        return np.ndarray(shape, dtype, np.asarray(_Holder(owner, array)))
    cuda = sys.modules["cupy"].cuda
    memory = cuda.UnownedMemory(array.data.ptr, array.nbytes, (owner, array), array.data.device_id)
    return sys.modules["cupy"].ndarray(shape, dtype=dtype, memptr=cuda.MemoryPointer(memory, 0))


def element_type(dtype: Any) -> np.dtype[Any]:
    """The NumPy dtype for ``dtype``: NumPy's, torch's, a type or a name. Raises ArgumentError for None, and for types
    that kernels cannot use."""
    found = None
    if type(dtype).__module__ == "torch" and type(dtype).__name__ == "dtype":
        found = _torch_dtype(dtype)
    elif isinstance(dtype, (str, type, np.dtype, list, tuple)):
        try:
            found = np.dtype(dtype)
        except (TypeError, ValueError, SyntaxError):
            found = None
    if found is None or not _is_of_numbers(found):
        refuse("dtype", dtype, "a type of numbers in this machine's byte order, such as np.float32 or 'bfloat16'")
    return found


def _is_of_numbers(dtype: np.dtype[Any]) -> bool:
    if dtype.hasobject or not dtype.isnative or not dtype.itemsize or dtype.subdtype is not None:
        return False
    return dtype.kind not in _NO_NUMBERS and (dtype.type is not np.void or dtype.fields is not None)


def _refuse_elements(array: np.ndarray[Any, Any]) -> NoReturn:
    if array.dtype.hasobject:
        raise ArgumentError(
            f"an array of shape {array.shape} and type {array.dtype} holds Python objects, which kernels cannot use; "
            "make it numbers first: array.astype(np.float32), for example"
        )
    raise ArgumentError(
        f"an array of shape {array.shape} has its bytes in the other order (dtype {array.dtype.str!r}); swap them: "
        "array.astype(array.dtype.newbyteorder('='))"
    )


_kinds: dict[type, str] = {}  # the kinds of types seen so far


def _kind_of(cls: type) -> str:
    kind = _kinds[cls] = _find_kind(cls)
    return kind


def _find_kind(cls: type) -> str:
    for base in cls.__mro__:
        if base is np.ndarray:
            return "numpy"
        if base is np.ma.MaskedArray:
            return ""  # a kernel would ignore the mask
        root = base.__module__.partition(".")[0]
        if root == "torch" and base.__name__ == "Tensor":
            return "torch"
        if root == "cupy" and base.__name__ == "ndarray":
            return "cupy"
    return ""


def _describe_cupy(array: Any) -> ArrayInfo:
    strides = None if array.flags.c_contiguous else array.strides
    device = f"cuda:{array.data.device_id}"
    return ArrayInfo(array.data.ptr, array.shape, array.dtype, strides, device, "cupy", False, array, array.nbytes)


def _describe_torch(tensor: Any) -> ArrayInfo:
    dtype = _torch_dtype(tensor.dtype)
    device = tensor.device
    if dtype is None:
        raise ArgumentError(f"torch tensors of type {tensor.dtype} have no counterpart here")
    is_conjugated = tensor.is_conj() or tensor.is_neg()
    if str(tensor.layout) != "torch.strided" or device.type not in ("cpu", "cuda") or is_conjugated:
        raise ArgumentError(
            f"need a dense tensor on a CPU or CUDA device, got layout {tensor.layout} on {device}"
            + (", a lazy conjugate (call .resolve_conj().resolve_neg())" if is_conjugated else "")
        )
    strides = None if tensor.is_contiguous() else tuple(s * dtype.itemsize for s in tensor.stride())
    name = "cpu" if device.type == "cpu" else f"cuda:{device.index or 0}"
    nbytes = tensor.numel() * dtype.itemsize
    address = tensor.data_ptr()
    if nbytes == 0:  # torch gives 0 for an empty view, but its owner matters
        address = tensor.untyped_storage().data_ptr() + tensor.storage_offset() * dtype.itemsize
    return ArrayInfo(address, tuple(tensor.shape), dtype, strides, name, "torch", False, tensor, nbytes)


def _torch_dtype(dtype: Any) -> np.dtype[Any] | None:
    return _torch_dtype_named(str(dtype))


@functools.lru_cache(maxsize=64)
def _torch_dtype_named(name: str) -> np.dtype[Any] | None:
    if name in _TORCH_EXTENSION_TYPES:
        return _TORCH_EXTENSION_TYPES[name]
    try:
        return np.dtype(name.partition(".")[2])  # torch.float32 -> float32, the same names otherwise
    except TypeError:
        return None


def _torch_to_numpy(tensor: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    torch = sys.modules["torch"]
    if str(tensor.dtype) not in _TORCH_EXTENSION_TYPES:
        array: np.ndarray[Any, Any] = tensor.detach().numpy()
        return array
    bits: np.ndarray[Any, Any] = tensor.detach().view(torch.uint8 if dtype.itemsize == 1 else torch.int16).numpy()
    return bits.view(dtype)


def _loaded(module: str, call: str) -> Any:
    """torch or CuPy, which the caller must have imported: this library never imports them itself."""
    if module not in sys.modules:
        raise ArgumentError(f"{call} needs the module {module}, which is not imported")
    return sys.modules[module]
