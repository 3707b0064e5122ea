"""Reads a NIXL memory view of other GPUs' memory: its version, and the addresses at which UCX has mapped each entry."""

from __future__ import annotations

import ctypes
from typing import Any

from ep_lib.errors import BackendUnavailable
from ep_lib.transports.nixl import build

HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
_MAJOR, _MINOR = 75, 76  # cudaDeviceAttr: compute capability
_HEAD_BYTES = 8  # of a memory view on the GPU: version (uint16), lanes (uint16), entries (uint32)


def require_version(runtime: Any, found: build.Installation, view: int, entries: int) -> None:
    """Checks that kernels and the host's UCX use the same version of the struct. Raises BackendUnavailable."""
    head = copy(runtime, view, bytes(_HEAD_BYTES), DEVICE_TO_HOST)
    version, length = int.from_bytes(head[:2], "little"), int.from_bytes(head[4:], "little")
    if version != found.list_version or length != entries:
        raise BackendUnavailable(
            f"found memory views of version {version} with {length} entries from NIXL {found.version}, but UCX "
            f"{found.ucx_version}'s device headers need version {found.list_version} with {entries}: install a "
            f"libucx that fits: {build.pip_line(found.cuda_major)}"
        )


def mapped_addresses(runtime: Any, driver: Any, device: int, view: int, entries: int) -> list[int]:
    """The addresses at which kernels of ``device`` reach each entry by loads and stores; 0 if they do not."""
    attribute = runtime.deviceGetAttribute
    arch = f"sm_{attribute(_MAJOR, device)}{attribute(_MINOR, device)}"
    module = driver.moduleLoadData(build.mapped_addresses_cubin(arch))
    function = driver.moduleGetFunction(module, "mapped_addresses")
    out = int(runtime.malloc(8 * entries))
    values = (ctypes.c_uint64(view), ctypes.c_uint64(out), ctypes.c_int(entries))
    pointers = (ctypes.c_void_p * 3)(*map(ctypes.addressof, values))
    driver.launchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, ctypes.addressof(pointers), 0)
    runtime.deviceSynchronize()
    found = copy(runtime, out, bytes(8 * entries), DEVICE_TO_HOST)
    runtime.free(out)
    driver.moduleUnload(module)
    return [int.from_bytes(found[8 * i : 8 * i + 8], "little") for i in range(entries)]


def copy(runtime: Any, address: int, data: bytes, direction: int) -> bytes:
    """Copies between the GPU's memory at ``address`` and a buffer with the initial content ``data``; returns the
    buffer's content."""
    buffer: Any = ctypes.create_string_buffer(data, len(data))
    host = ctypes.addressof(buffer)
    to, source = (address, host) if direction == HOST_TO_DEVICE else (host, address)
    runtime.memcpy(to, source, len(data), direction)
    return bytes(buffer.raw)
