"""NVSHMEM's host library through ctypes: start by a unique id, allocate symmetric memory, find peers, register modules.

Layouts and calls are those of NVSHMEM 3.4's ``nvshmemx_api.h`` and ``nvshmem_uniqueid.h``; the library checks their
version fields.
"""

from __future__ import annotations

import ctypes
from typing import Any

from ep_lib.errors import BackendUnavailable
from ep_lib.transports.nvshmem.build import Installation, version_text

_VERSION_1 = 1 << 16  # the first version of a struct; its size is added
_INIT_WITH_UNIQUEID = 1 << 3
_IS_INITIALIZED = 2  # NVSHMEM_STATUS_IS_INITIALIZED; the statuses above it are of PEs that share a GPU


class _UniqueId(ctypes.Structure):
    _fields_ = (("version", ctypes.c_int), ("internal", ctypes.c_byte * 124))


class _UniqueIdArguments(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_int),
        ("id", ctypes.c_void_p),
        ("rank", ctypes.c_int),
        ("ranks", ctypes.c_int),
    )


class _InitArguments(ctypes.Structure):
    _fields_ = (("version", ctypes.c_int), ("unique_id", _UniqueIdArguments), ("content", ctypes.c_byte * 96))


class _InitAttributes(ctypes.Structure):
    _fields_ = (("version", ctypes.c_int), ("mpi_comm", ctypes.c_void_p), ("arguments", _InitArguments))


def _version_of(struct: type[ctypes.Structure]) -> int:
    return _VERSION_1 + ctypes.sizeof(struct)


class NvshmemLibrary:
    """The loaded library. ``version`` is (major, minor, patch). Raises BackendUnavailable with the found and the needed
    version."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        try:
            # Its bootstrap and transport plugins look for its symbols among the global ones.
            self._library = ctypes.CDLL(str(installation.host_library), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise BackendUnavailable(f"{installation} cannot be loaded: {error}") from error
        self._declare()
        numbers = [ctypes.c_int() for _ in range(3)]
        self._library.nvshmemx_vendor_get_version_info(*map(ctypes.byref, numbers))
        self.version = tuple(number.value for number in numbers)
        if self.version != installation.version:
            raise BackendUnavailable(
                f"NVSHMEM {version_text(self.version)} is loaded in this process, but kernels are compiled with the "
                f"headers of {version_text(installation.version)} in {installation.home}: install one version only, "
                "or name its folder in NVSHMEM_HOME"
            )
        self.is_adopted = bool(self._library.nvshmemx_init_status() >= _IS_INITIALIZED)
        """Whether the program has started NVSHMEM before, so that :meth:`stop` leaves it running."""
        self._keep: list[Any] = []  # objects that the library has pointers to

    def unique_id(self) -> bytes:
        """The id that rank 0 creates and all ranks need for :meth:`start`."""
        made = _UniqueId(version=_version_of(_UniqueId))
        self._check("nvshmemx_get_uniqueid", ctypes.byref(made))
        self._keep.append(made)
        return bytes(made)

    def start(self, rank: int, ranks: int, unique_id: bytes) -> None:
        """Collective: join as PE number ``rank`` of ``ranks``. The CUDA context of the PE's GPU must be current.

        Raises BackendUnavailable if the program has started NVSHMEM with other PEs."""
        if self.is_adopted:
            pe, pes = self._library.nvshmem_my_pe(), self._library.nvshmem_n_pes()
            if (pe, pes) != (rank, ranks):
                raise BackendUnavailable(
                    f"the program has started NVSHMEM already, with this process as PE {pe} of {pes}, and it is rank "
                    f"{rank} of {ranks}: start both with the same processes in the same order"
                )
            return
        own_id = _UniqueId.from_buffer_copy(unique_id)
        attributes = _InitAttributes(version=_version_of(_InitAttributes))
        attributes.arguments.version = _version_of(_InitArguments)
        attributes.arguments.unique_id.version = _version_of(_UniqueIdArguments)
        self._keep += [own_id, attributes]
        self._check("nvshmemx_set_attr_uniqueid_args", rank, ranks, ctypes.byref(own_id), ctypes.byref(attributes))
        self._check("nvshmemx_hostlib_init_attr", _INIT_WITH_UNIQUEID, ctypes.byref(attributes))

    def allocate(self, nbytes: int) -> int:
        """Collective: the address of so many symmetric bytes, 0 if there is no room."""
        return int(self._library.nvshmem_malloc(nbytes) or 0)

    def free(self, address: int) -> None:
        """Collective."""
        self._library.nvshmem_free(address)

    def peer_address(self, address: int, pe: int) -> int:
        """The address at which this PE's loads and stores reach ``pe``'s copy; 0 if they do not."""
        return int(self._library.nvshmem_ptr(address, pe) or 0)

    def register_module(self, module: int) -> None:
        """Register a loaded module (CUmodule) with this NVSHMEM: after loading, before its first launch."""
        self._check("nvshmemx_cumodule_init", module)

    def forget(self, module: int) -> None:
        """Call before a registered module is unloaded, or NVSHMEM stops."""
        self._check("nvshmemx_cumodule_finalize", module)

    def stop(self) -> None:
        """Collective: leave, unless the program had started it. All memory of :meth:`allocate` must have been freed."""
        if not self.is_adopted:
            self._library.nvshmemx_hostlib_finalize()

    def _check(self, call: str, *arguments: Any) -> None:
        if status := getattr(self._library, call)(*arguments):
            raise BackendUnavailable(
                f"{call} of {self.installation} failed with status {status}; NVSHMEM_DEBUG=INFO makes NVSHMEM say why"
            )

    def _declare(self) -> None:
        pointer, integer = ctypes.c_void_p, ctypes.c_int
        for name, result, arguments in (
            ("nvshmemx_vendor_get_version_info", None, [pointer] * 3),
            ("nvshmemx_init_status", integer, []),
            ("nvshmem_my_pe", integer, []),
            ("nvshmem_n_pes", integer, []),
            ("nvshmemx_get_uniqueid", integer, [pointer]),
            ("nvshmemx_set_attr_uniqueid_args", integer, [integer, integer, pointer, pointer]),
            ("nvshmemx_hostlib_init_attr", integer, [ctypes.c_uint, pointer]),
            ("nvshmemx_hostlib_finalize", None, []),
            ("nvshmemx_cumodule_init", integer, [pointer]),
            ("nvshmemx_cumodule_finalize", integer, [pointer]),
            ("nvshmem_malloc", pointer, [ctypes.c_size_t]),
            ("nvshmem_free", None, [pointer]),
            ("nvshmem_ptr", pointer, [pointer, integer]),
        ):
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
