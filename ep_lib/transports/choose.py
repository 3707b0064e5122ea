"""Chooses the transport of a rank on a GPU: the requested one, or for ``auto`` one that works here."""

from __future__ import annotations

import warnings
from typing import Any

from ep_lib.bootstrap import Bootstrap
from ep_lib.bootstrap.base import require_same
from ep_lib.cuda.devices import DeviceIdentity, identify, peer_problems
from ep_lib.errors import BackendUnavailable
from ep_lib.jit.nvrtc import NvrtcImage
from ep_lib.transports import registry
from ep_lib.transports.base import GpuSetup, Transport, agree
from ep_lib.transports.nvshmem import build


def open_transport(
    wanted: str, bootstrap: Bootstrap, device: int, heap_bytes: int, timeout: float
) -> Transport[NvrtcImage]:
    """Collective. ``auto`` is ``p2p`` if all GPUs reach each other, else ``nvshmem`` if it is installed.

    Raises on every rank alike: BackendUnavailable (naming the pairs of GPUs, or the transport's missing part),
    OutOfSymmetricMemory, RankMismatchError. Rank 0 warns (RuntimeWarning) where ``auto`` is not ``p2p``.
    """
    ranks: list[Any] = agree(bootstrap, lambda: (wanted, heap_bytes, tuple(identify(device))), timeout)
    require_same("transport", [transport for transport, _, _ in ranks])
    require_same("heap_bytes", [nbytes for _, nbytes, _ in ranks])
    identities = [DeviceIdentity(*identity) for _, _, identity in ranks]
    problems = agree(bootstrap, lambda: peer_problems(bootstrap.rank, identities), timeout)
    unreachable = [problem for problems_of_rank in problems for problem in problems_of_rank]
    kind, _, variant = wanted.partition(":")
    lacks = None
    if kind == "auto" and unreachable:
        reasons = agree(bootstrap, lambda: build.unusable_reason("whole"), timeout)
        lacks = next((reason for reason in reasons if reason is not None), None)
        kind = "p2p" if lacks else "nvshmem"
        if kind == "nvshmem" and bootstrap.rank == 0:
            warnings.warn(f"transport='auto' is 'nvshmem' here: {'; '.join(unreachable)}", RuntimeWarning, stacklevel=2)
    elif kind == "auto":
        kind = "p2p"
    if kind in ("p2p", "proxy") and unreachable:
        listing = "\n  ".join(unreachable)
        nic = "take transport='nvshmem', which can go through a NIC" + (f" (not yet: {lacks})" if lacks else "")
        raise BackendUnavailable(
            f"transport={kind!r} of the cuda backend needs GPUs of one host that reach each other over NVLink or PCIe "
            f"P2P:\n  {listing}\n"
            f"`nvidia-smi topo -p2p r` shows the pairs that work; choose GPUs by CUDA_VISIBLE_DEVICES, "
            f"or {nic}."
        )
    opened: Transport[NvrtcImage] = registry.heap_class(kind)(
        GpuSetup(bootstrap, device, heap_bytes, timeout, variant, unreachable)
    )
    return opened
