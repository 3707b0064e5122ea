"""An executor of the proxy on libibverbs: the NIC writes what kernels command (docs/transports.md).

It stands beside the library until it has met a NIC: ``engine.Proxy(rings, verbs.Verbs(heap, ...))``.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_int, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from ep_lib.errors import BackendUnavailable
from ep_lib.jit.runtime_library import build_host_library
from ep_lib.transports.proxy import engine

_SIGNATURES: dict[str, tuple[list[Any], Any]] = {
    "ep_verbs_open": ([c_char_p, c_int, c_int, c_void_p, c_uint64, c_int, c_int, c_int, c_char_p], c_void_p),
    "ep_verbs_address": ([c_void_p, c_int, c_char_p, c_uint64], c_int64),
    "ep_verbs_connect": ([c_void_p, c_int, c_char_p, c_uint64, c_char_p], c_int),
    "ep_executor_verbs": ([POINTER(engine.Table), c_void_p], None),
}
_TEXT_BYTES = 512  # ep::proxy::kTextBytes
_ADDRESS_BYTES = 1 << 20


class Verbs(engine.Executor):
    """libibverbs: RDMA WRITEs, with an immediate where a signal follows. It was tested only against a fake, never on a
    NIC.

    ``heap``: this rank's. ``device``: of /sys/class/infiniband, "" for the first. ``includes`` and ``libraries``: the
    folders of libibverbs, rdma-core's by default. Raises BackendUnavailable.
    """

    def __init__(
        self,
        heap: np.ndarray[Any, Any],
        *,
        ranks: int,
        rank: int,
        queues: int = 1,
        device: str = "",
        port: int = 1,
        gid_index: int = 0,
        includes: Sequence[Path] = (),
        libraries: Sequence[str] = ("ibverbs",),
    ) -> None:
        super().__init__(queues)
        self._library, self._heap = load(tuple(includes), tuple(libraries)), heap
        self._text = ctypes.create_string_buffer(_TEXT_BYTES)
        place, shape = (device.encode(), port, gid_index), (heap.ctypes.data, heap.nbytes, ranks, rank, queues)
        self._state = self._library.ep_verbs_open(*place, *shape, self._text)
        if not self._state:
            raise BackendUnavailable(self._text.value.decode())
        self._library.ep_executor_verbs(ctypes.byref(self.table), self._state)

    def address(self, peer: int) -> bytes:
        """The argument for :meth:`connect` on rank ``peer``."""
        data = ctypes.create_string_buffer(_ADDRESS_BYTES)
        count = self._library.ep_verbs_address(self._state, peer, data, len(data))
        return data.raw[:count]

    def connect(self, rank: int, address: bytes) -> None:
        """Connects to a peer, which does the same with this rank's address."""
        if self._library.ep_verbs_connect(self._state, rank, address, len(address), self._text) < 0:
            raise BackendUnavailable(self._text.value.decode())


@functools.cache
def load(includes: tuple[Path, ...], libraries: tuple[str, ...]) -> ctypes.CDLL:
    """The native half, compiled at its first use. Raises BackendUnavailable."""
    if not includes and not Path("/usr/include/infiniband/verbs.h").exists():
        raise BackendUnavailable("the proxy's RDMA executor needs rdma-core's headers: apt-get install libibverbs-dev")
    native = Path(engine.__file__).with_name("native")
    path = build_host_library("epverbs", Path(__file__).parent, includes=[native, *includes], libraries=libraries)
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise BackendUnavailable(f"the proxy's RDMA executor cannot be loaded: {error}") from error
    for name, (arguments, result) in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return library
