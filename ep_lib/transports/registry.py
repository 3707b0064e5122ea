"""The transports by their names: one line each registers them."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """``cuda`` and ``emulator``: "module:class" of its :class:`ep_lib.transports.base.Transport` for that backend,
    empty if there is none. ``variants``: allowed texts behind its name and a colon. ``spans_hosts``: a world may have
    GPUs of several hosts."""

    cuda: str = ""
    emulator: str = ""
    variants: tuple[str, ...] = ()
    spans_hosts: bool = False


TRANSPORTS = {
    "p2p": Entry("ep_lib.transports.p2p.heap:IpcHeap"),
    "nvshmem": Entry(
        "ep_lib.transports.nvshmem.heap:NvshmemHeap", variants=("whole", "link", "nvcc"), spans_hosts=True
    ),
    "nccl": Entry("ep_lib.transports.nccl.heap:NcclHeap", spans_hosts=True),
    "nixl": Entry("ep_lib.transports.nixl.heap:NixlHeap"),
    "proxy": Entry("ep_lib.transports.proxy.gpu_heap:GpuProxyHeap", "ep_lib.transports.proxy.heap:ProxyHeap"),
    "emulated": Entry(emulator="ep_lib.transports.emulated.heap:EmulatedHeap"),
    "by_pair": Entry(emulator="ep_lib.transports.emulated.heap:ByPairHeap"),
}


def names(backend: str = "cuda") -> tuple[str, ...]:
    """The values of ``transport=`` for a backend. On GPUs "auto" chooses."""
    found = ["auto"] if backend == "cuda" else []
    for name, entry in TRANSPORTS.items():
        if getattr(entry, backend):
            found += [name, *(f"{name}:{variant}" for variant in entry.variants)]
    return tuple(found)


def spans_hosts(name: str) -> bool:
    """Whether a world of this ``transport=`` may have GPUs of several hosts."""
    entry = TRANSPORTS.get(name.partition(":")[0])
    return entry is not None and entry.spans_hosts


def heap_class(name: str, backend: str = "cuda") -> Any:
    """The class that a transport's line names for a backend; its module is imported now."""
    module, _, wanted = getattr(TRANSPORTS[name], backend).partition(":")
    return getattr(importlib.import_module(module), wanted)
