"""One rank's part of a GPU that several ranks share: CUDA's green contexts (driver 550 or later).

Kernels in a stream of a part run only on that part's SMs, so kernels of several ranks that wait for each other are
resident at the same time. The ranks are processes under MPS (:mod:`ep_lib.cuda.mps`); each makes its own part. CUDA C++
Programming Guide, "Green Contexts".
"""

from __future__ import annotations

import importlib
from typing import Any

from ep_lib.errors import BackendUnavailable

_SPARE = 2  # SMs of no rank: room for other programs' kernels while every rank waits


class Partition:
    """Part number ``part`` of ``parts`` equal ones of a GPU, for the process's lifetime. ``sm_count``: its SMs.

    Raises BackendUnavailable if the GPU cannot be divided so.
    """

    def __init__(self, device: int, part: int, parts: int) -> None:
        self._driver = driver = _load_driver()
        (whole,) = self._call("cuDeviceGetDevResource", device, driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM)
        total = whole.sm.smCount
        groups = _split(driver, whole, parts, (total - _SPARE) // parts)
        if groups is None:
            raise BackendUnavailable(
                f"GPU {device} has {total} SMs, which cannot be divided among {parts} ranks: take fewer ranks, or "
                "larger gpus="
            )
        self.sm_count = int(groups[part].sm.smCount)
        (description,) = self._call("cuDevResourceGenerateDesc", [groups[part]], 1)
        flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        (self._context,) = self._call("cuGreenCtxCreate", description, device, flags)
        self._beside: dict[int, int] = {}  # any stream -> a stream of this part

    def stream(self) -> int:
        """A new stream of this part."""
        flags = self._driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        (stream,) = self._call("cuGreenCtxStreamCreate", self._context, flags, 0)
        made = int(stream)
        self._beside[made] = made
        return made

    def beside(self, stream: int) -> int:
        """This part's stream for work of ``stream``: ``stream`` itself if it belongs to this part."""
        if stream not in self._beside:
            self._beside[stream] = self.stream()
        return self._beside[stream]

    def _call(self, name: str, *arguments: object) -> Any:
        try:
            status, *results = getattr(self._driver, name)(*arguments)
        except RuntimeError as error:  # the driver does not have this function
            raise BackendUnavailable(
                f"several ranks on one GPU need CUDA's green contexts, of driver 550 or later: {error}"
            ) from error
        if status.value:
            raise BackendUnavailable(
                f"the GPU's SMs cannot be divided among ranks: {name} failed with {status.name}; use one GPU per rank"
            )
        return results


def _load_driver() -> Any:
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise BackendUnavailable(
            "several ranks on one GPU need the package cuda-bindings, of the CUDA that CuPy is for: pip install "
            f"cuda-bindings ({error})"
        ) from error


def _split(driver: Any, whole: Any, parts: int, most: int) -> list[Any] | None:
    """The driver rounds the size of a part up, so search the largest size that leaves enough parts."""
    for wanted in range(most, 0, -1):
        status, groups, found, _ = driver.cuDevSmResourceSplitByCount(parts, whole, 0, wanted)
        if not status.value and found >= parts:
            return list(groups)
    return None
