"""The transports by their names: one line each registers them."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """``heap``: "module:class" of what fits :class:`ep_lib.transports.base.Transport`. ``backend``: whose it is.
    ``variants``: what may follow its name and a colon."""

    heap: str
    backend: str = "cuda"
    variants: tuple[str, ...] = ()


TRANSPORTS = {
    "p2p": Entry("ep_lib.transports.p2p.heap:IpcHeap"),
    "nvshmem": Entry("ep_lib.transports.nvshmem.heap:NvshmemHeap", variants=("whole", "link", "nvcc")),
    "nixl": Entry("ep_lib.transports.nixl.heap:NixlHeap"),
    "emulated": Entry("ep_lib.transports.emulated.heap:EmulatedHeap", backend="emulator"),
    "proxy": Entry("ep_lib.transports.proxy.heap:ProxyHeap", backend="emulator"),
    "by_pair": Entry("ep_lib.transports.emulated.heap:ByPairHeap", backend="emulator"),
}


def names(backend: str = "cuda") -> tuple[str, ...]:
    """What ``transport=`` may be on a backend. On GPUs "auto" chooses."""
    found = ["auto"] if backend == "cuda" else []
    for name, entry in TRANSPORTS.items():
        if entry.backend == backend:
            found += [name, *(f"{name}:{variant}" for variant in entry.variants)]
    return tuple(found)


def heap_class(name: str) -> Any:
    """The class that a transport's line names; its module is imported now."""
    module, _, wanted = TRANSPORTS[name].heap.partition(":")
    return getattr(importlib.import_module(module), wanted)
