"""nvJitLink through ctypes: links a relocatable cubin with a library of device code. No GPU and no nvcc is needed."""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ep_lib.errors import BackendUnavailable
from ep_lib.jit import toolkit

# nvJitLinkInputType
_CUBIN = 1
_LIBRARY = 6

_FILE_NAME = re.compile(r"libnvJitLink\.so\.(\d+)$")


def available() -> bool:
    """Whether nvJitLink is installed, so that :func:`link` works."""
    return find_library() is not None


def link(cubin: bytes, library: Path, arch: str) -> bytes:
    """The cubin for ``arch`` ("sm_90") of ``cubin`` (relocatable) and what it needs of ``library`` (a .a file).

    Raises BackendUnavailable, with nvJitLink's message, if it is missing or cannot link them.
    """
    path = find_library()
    if path is None:
        raise BackendUnavailable(
            "linking kernels with NVSHMEM's device library needs nvJitLink (libnvJitLink.so), which is not here: "
            "pip install nvidia-nvjitlink (nvidia-nvjitlink-cu12 for CUDA 12), or use another build route"
        )
    return _Linker(path).link(cubin, library, arch)


@functools.lru_cache(maxsize=1)
def find_library() -> Path | None:
    """libnvJitLink.so of pip's wheels, else of a CUDA toolkit."""
    return next(iter(_candidates()), None)


def _candidates() -> Iterator[Path]:
    folders = [site / lib for site in toolkit.nvidia_sites() for lib in ("cu13/lib", "nvjitlink/lib")]
    folders += [include.with_name("lib64") for include in toolkit.toolkit_include_dirs()]
    for folder in folders:
        yield from sorted(path for path in folder.glob("libnvJitLink.so.*") if _FILE_NAME.search(path.name))


class _Linker:
    def __init__(self, path: Path) -> None:
        self._path = path
        match = _FILE_NAME.search(path.name)
        assert match is not None
        self._suffix = f"_{match[1]}_0"  # the first interface of a major version; later versions only extend it
        self._library = ctypes.CDLL(str(path))
        self._handle = ctypes.c_void_p()

    def link(self, cubin: bytes, library: Path, arch: str) -> bytes:
        options = (ctypes.c_char_p * 1)(f"-arch={arch}".encode())
        self._call("Create", ctypes.byref(self._handle), ctypes.c_uint32(1), options)
        try:
            self._call("AddData", self._handle, _CUBIN, cubin, ctypes.c_size_t(len(cubin)), b"kernel")
            self._call("AddFile", self._handle, _LIBRARY, os.fsencode(library))
            self._call("Complete", self._handle)
            size = ctypes.c_size_t()
            self._call("GetLinkedCubinSize", self._handle, ctypes.byref(size))
            image = ctypes.create_string_buffer(size.value)
            self._call("GetLinkedCubin", self._handle, image)
            return image.raw
        finally:
            self._function("Destroy")(ctypes.byref(self._handle))

    def _function(self, name: str) -> Any:
        return self._library[f"__nvJitLink{name}{self._suffix}"]

    def _call(self, name: str, *arguments: object) -> None:
        status = self._function(name)(*arguments)
        if status:
            raise BackendUnavailable(
                f"nvJitLink ({self._path}) cannot link the kernel: {name} gave error {status}. {self._log()}".rstrip()
            )

    def _log(self) -> str:
        size = ctypes.c_size_t()
        if not self._handle or self._function("GetErrorLogSize")(self._handle, ctypes.byref(size)) or not size.value:
            return ""
        log = ctypes.create_string_buffer(size.value)
        self._function("GetErrorLog")(self._handle, log)
        return log.value.decode(errors="replace").strip()
