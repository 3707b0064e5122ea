"""Loads native/host.cpp, which inspects tensors and launches kernels without Python in between.

It is compiled at first use, by a C++ compiler and with Python's headers, and cached. If one of these is missing, the
calling Python code does the same, more slowly. The native code handles only usual cases, so every error is raised in
Python.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import importlib.util
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ep_lib.cuda.module import LoadedKernel
from ep_lib.errors import BackendUnavailable
from ep_lib.jit.operation import Operation
from ep_lib.jit.runtime_library import build_host_library
from ep_lib.memory import arrays
from ep_lib.memory.arrays import BFLOAT16, ArrayInfo

# DLPack's type codes (DLDataTypeCode) of the types that torch and NumPy share. bool is 8 bits of code 6.
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL, _E4M3FN = 0, 1, 2, 4, 6, 10
_DTYPES: list[tuple[int, int, np.dtype[Any]]] = [
    *((_INT, 8 * size, np.dtype(f"i{size}")) for size in (1, 2, 4, 8)),
    *((_UINT, 8 * size, np.dtype(f"u{size}")) for size in (1, 2, 4, 8)),
    *((_FLOAT, 8 * size, np.dtype(f"f{size}")) for size in (2, 4, 8)),
    (_BFLOAT, 16, BFLOAT16),
    (_BOOL, 8, np.dtype(bool)),
    (_E4M3FN, 8, np.dtype(ml_dtypes.float8_e4m3fn)),
]
_KINDS = {"pointer": "p", "struct": "s", "int": "i"}  # kinds of parameters that the native code supports


@functools.cache
def load() -> Any:
    """The extension module; None if it cannot be built."""
    include = Path(sysconfig.get_paths()["include"])
    if not (include / "Python.h").exists():
        return None
    try:
        path = build_host_library("ep_host", Path(__file__).with_name("native"), includes=[include])
        loader = importlib.machinery.ExtensionFileLoader("ep_host", str(path))
        spec = importlib.util.spec_from_loader("ep_host", loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except (BackendUnavailable, ImportError):  # no compiler, or not for this Python
        return None
    module.use_arrays(ArrayInfo, arrays.describe)
    return module


def look_at_tensors() -> bool:
    """Makes :func:`ep_lib.memory.arrays.describe` read torch's tensors natively. False if impossible: torch is not
    loaded, or older than 2.10."""
    native, torch = load(), sys.modules.get("torch")
    if native is None or torch is None:
        return False
    return arrays.looks_natively() or _use_torch(native, torch)


@functools.cache
def _use_torch(native: Any, torch: Any) -> bool:
    table = getattr(getattr(torch, "Tensor", None), "__dlpack_c_exchange_api__", None)
    if table is None or not native.use_tensors(table, (torch.Tensor, torch.nn.Parameter), _DTYPES):
        return False
    arrays.look_natively(native)
    return True


class Launches:
    """Launches of one context's kernels, directly by the driver."""

    def __init__(self, launch: int, get_context: int, device: str) -> None:
        """Takes the addresses of cuLaunchKernel and cuCtxGetCurrent, and uses the current context. ``device``:
        "cuda:N"."""
        self._functions = launch, get_context
        context = ctypes.c_void_p()
        ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))(get_context)(ctypes.byref(context))
        self._context, self._device = context.value or 0, device

    def prepare(self, loaded: LoadedKernel, grid: Sequence[int], block: Sequence[int], shared_bytes: int) -> Any:
        """A launcher of ``loaded``: ``run(stream, args, uses)`` gives 0, the driver's error, or -1 if it did nothing
        because of an unusual argument; ``learn(position, dtype)`` marks a type as usual. None if impossible."""
        offsets, size = loaded.offsets
        native = load()
        if native is None or len(loaded.params) > 32 or size > 4096:
            return None
        params = tuple(
            (_KINDS.get(param.kind, "-"), param.size, offset, param.is_const, not param.element)
            for param, offset in zip(loaded.params, offsets, strict=True)
        )
        return native.Launch(
            *self._functions, self._context, loaded.function, (*grid, *block), shared_bytes, self._device, params
        )


def operation(declared: Operation, prepared: Sequence[Any], makers: Sequence[tuple[Any, Any]]) -> Any:
    """An executor of ``declared``: ``run(stream, values)`` gives a list of arrays made, (launch, the driver's error),
    or None if it did nothing. ``prepared``: its launches by :meth:`Launches.prepare`; ``makers``: torch's function and
    dtype for each array it makes. None if it is too large for the native code."""
    steps = tuple(
        (launch, tuple((argument.data, *argument.patches) for argument in arguments))
        for launch, arguments in zip(prepared, declared.arguments, strict=True)
    )
    shapes = [shape for _, shape, _ in declared.makes]
    try:
        return load().Operation(
            declared.given, tuple((*how, shape) for how, shape in zip(makers, shapes, strict=True)), steps
        )
    except ValueError:
        return None


def launches(device: int) -> Launches | None:
    """The launches of this thread's current context; None without the driver or the extension."""
    if load() is None:
        return None
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    address = [ctypes.cast(f, ctypes.c_void_p).value or 0 for f in (driver.cuLaunchKernel, driver.cuCtxGetCurrent)]
    return Launches(address[0], address[1], f"cuda:{device}")
