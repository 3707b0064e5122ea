"""One rank's part of a GPU that several ranks share: CUDA's green contexts (driver 550 or later).

Kernels in a stream of a part run only on that part's SMs, so kernels of several ranks that wait for each other are
resident at the same time. The ranks are processes under MPS (:mod:`ep_lib.cuda.mps`); each makes its own part. CUDA C++
Programming Guide, "Green Contexts".
"""

from __future__ import annotations

import ctypes
import functools

from ep_lib.cuda.devices import import_cupy
from ep_lib.errors import BackendUnavailable

_RESOURCE_BYTES = 144  # CUdevResource, RESOURCE_ABI_VERSION 1
_COUNT_AT = 96  # of its SMs
_SM = 1  # CU_DEV_RESOURCE_TYPE_SM
_DEFAULT_STREAM = 1  # CU_GREEN_CTX_DEFAULT_STREAM
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_MULTIPROCESSORS = 16  # cudaDevAttrMultiProcessorCount
_SPARE = 2  # SMs of no rank: room for other programs' kernels while every rank waits

_Resource = ctypes.c_ubyte * _RESOURCE_BYTES


class Partition:
    """Part number ``part`` of ``parts`` equal ones of a GPU, for the process's lifetime. ``sm_count``: its SMs.

    Raises BackendUnavailable if the GPU cannot be divided so.
    """

    def __init__(self, device: int, part: int, parts: int) -> None:
        total = int(import_cupy().cuda.runtime.deviceGetAttribute(_MULTIPROCESSORS, device))
        whole = _Resource()
        _call("cuDeviceGetDevResource", device, whole, _SM)
        groups = _split(whole, parts, (total - _SPARE) // parts)
        if groups is None:
            raise BackendUnavailable(
                f"GPU {device} has {total} SMs, which cannot be divided among {parts} ranks: take fewer ranks, or "
                "larger gpus="
            )
        self.sm_count = _count(groups[part])
        self._context = _green_context(groups[part], device)
        self._beside: dict[int, int] = {}  # any stream -> a stream of this part

    def stream(self) -> int:
        """A new stream of this part."""
        stream = ctypes.c_void_p()
        _call("cuGreenCtxStreamCreate", ctypes.byref(stream), self._context, _NON_BLOCKING, 0)
        made = int(stream.value or 0)
        self._beside[made] = made
        return made

    def beside(self, stream: int) -> int:
        """This part's stream for work of ``stream``: ``stream`` itself if it belongs to this part."""
        if stream not in self._beside:
            self._beside[stream] = self.stream()
        return self._beside[stream]


@functools.cache
def _driver() -> ctypes.CDLL:
    library = ctypes.CDLL("libcuda.so.1")
    if not hasattr(library, "cuGreenCtxStreamCreate"):
        raise BackendUnavailable(
            "several ranks on one GPU need CUDA's green contexts, which this driver does not have: update it to 550 or "
            "later"
        )
    return library


def _call(name: str, *arguments: object) -> None:
    status = getattr(_driver(), name)(*arguments)
    if status != 0:
        raise BackendUnavailable(
            f"the GPU's SMs cannot be divided among ranks: {name} failed with CUDA error {status}; use one GPU per rank"
        )


def _count(group: ctypes.Array[ctypes.c_ubyte]) -> int:
    return int.from_bytes(bytes(group[_COUNT_AT : _COUNT_AT + 4]), "little")


def _split(whole: ctypes.Array[ctypes.c_ubyte], parts: int, most: int) -> list[ctypes.Array[ctypes.c_ubyte]] | None:
    """The driver rounds the size of a part up, so search the largest size that leaves enough parts."""
    for wanted in range(most, 0, -1):
        groups = (_Resource * parts)()
        found, rest = ctypes.c_uint(parts), _Resource()
        status = _driver().cuDevSmResourceSplitByCount(groups, ctypes.byref(found), whole, rest, 0, wanted)
        if status == 0 and found.value >= parts:
            return list(groups)
    return None


def _green_context(group: ctypes.Array[ctypes.c_ubyte], device: int) -> ctypes.c_void_p:
    description, context = ctypes.c_void_p(), ctypes.c_void_p()
    _call("cuDevResourceGenerateDesc", ctypes.byref(description), group, 1)
    _call("cuGreenCtxCreate", ctypes.byref(context), description, device, _DEFAULT_STREAM)
    return context
