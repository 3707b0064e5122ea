"""The part of libnccl for the symmetric heap, through ctypes: a communicator, memory, a window, and peers' addresses.

Names and types are those of ``nccl.h`` and ``nccl_device/core.h`` (NCCL 2.29 and later). Collective calls are marked as
such.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from pathlib import Path
from typing import Any

from ep_lib.errors import BackendUnavailable

OLDEST = (2, 29, 2)  # the first with a host call for the address of a peer's memory
UNIQUE_ID_BYTES = 128
_LIBRARY = "libnccl.so.2"
_SYMMETRIC = 1  # NCCL_WIN_COLL_SYMMETRIC: all ranks register the same size, and reach each other at one stride
_IN_PROGRESS = 7


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * UNIQUE_ID_BYTES),)


def find() -> str:
    """The file of libnccl: of ``$NCCL_HOME``, else of pip's wheel, else the loader's. Raises BackendUnavailable."""
    home = os.environ.get("NCCL_HOME")
    if home:
        file = Path(home) / "lib" / _LIBRARY
        if not file.exists():
            raise BackendUnavailable(f"$NCCL_HOME ({home}) has no lib/{_LIBRARY}: correct it, or unset it")
        return str(file)
    spec = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
    for folder in spec.submodule_search_locations or () if spec else ():
        file = Path(folder) / "lib" / _LIBRARY
        if file.exists():
            return str(file)
    return _LIBRARY


def unusable_reason() -> str | None:
    """None if the transport's library is installed, else a sentence that names the missing part."""
    try:
        NcclLibrary(find())
    except BackendUnavailable as error:
        return str(error)
    return None


class NcclLibrary:
    """The loaded library. ``version`` is (major, minor, patch). Raises BackendUnavailable, with the found and the
    needed version."""

    def __init__(self, file: str) -> None:
        need = f"ep_lib needs NCCL {_dotted(OLDEST)} or later: pip install 'nvidia-nccl-cu13>=2.30' (or -cu12)"
        try:
            self._library = ctypes.CDLL(file)
        except OSError as error:
            raise BackendUnavailable(
                f"NCCL is not installed ({error}); {need}, or name its folder in NCCL_HOME"
            ) from None
        number = ctypes.c_int()
        self._library.ncclGetVersion(ctypes.byref(number))
        self.version = (number.value // 10000, number.value // 100 % 100, number.value % 100)
        self.name = f"NCCL {_dotted(self.version)} in {file}"
        if self.version < OLDEST:
            raise BackendUnavailable(f"found {self.name}; {need}")
        self._comm = ctypes.c_void_p()
        self._declare()

    def unique_id(self) -> bytes:
        """The id that rank 0 creates and all ranks need for :meth:`start`."""
        made = _UniqueId()
        self._check("ncclGetUniqueId", ctypes.byref(made))
        return bytes(made)

    def start(self, rank: int, ranks: int, unique_id: bytes) -> None:
        """Collective: join as number ``rank`` of ``ranks``, on the current device."""
        made = _UniqueId.from_buffer_copy(unique_id)
        self._check("ncclCommInitRank", ctypes.byref(self._comm), ranks, made, rank)

    def allocate(self, nbytes: int) -> int:
        """Allocates so many bytes for a window; returns their address."""
        address = ctypes.c_void_p()
        self._check("ncclMemAlloc", ctypes.byref(address), nbytes)
        return int(address.value or 0)

    def free(self, address: int) -> None:
        self._check("ncclMemFree", address)

    def register(self, address: int, nbytes: int) -> int:
        """Collective: the window of all ranks' memory. 0 if NCCL has no symmetric memory."""
        window = ctypes.c_void_p()
        self._check("ncclCommWindowRegister", self._comm, address, nbytes, ctypes.byref(window), _SYMMETRIC)
        return int(window.value or 0)

    def peer_address(self, window: int, rank: int) -> int:
        """The address at which this rank's loads and stores reach ``rank``'s window; 0 if they do not."""
        address = ctypes.c_void_p()
        self._check("ncclGetPeerDevicePointer", window, 0, rank, ctypes.byref(address))
        return int(address.value or 0)

    def forget(self, window: int) -> None:
        """Collective: deregister a window."""
        self._check("ncclCommWindowDeregister", self._comm, window)

    def stop(self) -> None:
        """Collective: leave. No window may be left."""
        self._check("ncclCommDestroy", self._comm)
        self._comm = ctypes.c_void_p()

    def abort(self) -> None:
        """Leave without the others."""
        if self._comm:
            self._library.ncclCommAbort(self._comm)
            self._comm = ctypes.c_void_p()

    def _check(self, call: str, *arguments: Any) -> None:
        status = getattr(self._library, call)(*arguments)
        if status in (0, _IN_PROGRESS):
            return
        said = self._library.ncclGetErrorString(status).decode()
        more = (self._library.ncclGetLastError(self._comm) or b"").decode().strip()
        raise BackendUnavailable(
            f"{call} of {self.name} failed: {said}{f' ({more})' if more else ''}; NCCL_DEBUG=INFO makes NCCL say why"
        )

    def _declare(self) -> None:
        pointer, size, integer = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        for name, result, arguments in (
            ("ncclGetUniqueId", integer, [pointer]),
            ("ncclCommInitRank", integer, [pointer, integer, _UniqueId, integer]),
            ("ncclMemAlloc", integer, [pointer, size]),
            ("ncclMemFree", integer, [pointer]),
            ("ncclCommWindowRegister", integer, [pointer, pointer, size, pointer, integer]),
            ("ncclGetPeerDevicePointer", integer, [pointer, size, integer, pointer]),
            ("ncclCommWindowDeregister", integer, [pointer, pointer]),
            ("ncclCommDestroy", integer, [pointer]),
            ("ncclCommAbort", integer, [pointer]),
            ("ncclGetErrorString", ctypes.c_char_p, [integer]),
            ("ncclGetLastError", ctypes.c_char_p, [pointer]),
        ):
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
