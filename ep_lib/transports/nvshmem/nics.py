"""RDMA network cards of this host, and the settings with which NVSHMEM uses them. Reads /sys; loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_DEVICES = Path("/sys/class/infiniband")
_EFA, _MELLANOX = "efa", "mlx5_core"


@dataclass(frozen=True)
class Nic:
    """``name``: the system's ("mlx5_0"), ``driver`` of the kernel ("mlx5_core", "efa"; "" if unknown)."""

    name: str
    driver: str

    def __str__(self) -> str:
        return f"{self.name} ({self.driver or 'driver unknown'})"


def rdma_devices(folder: Path = _DEVICES) -> tuple[Nic, ...]:
    """The RDMA devices of this host, by name; empty if the system shows none (a container may hide them)."""
    if not folder.is_dir():
        return ()
    return tuple(Nic(device.name, _driver(device)) for device in sorted(folder.iterdir()))


def nvshmem_settings(nics: Sequence[Nic]) -> dict[str, str]:
    """Environment variables with which NVSHMEM uses these NICs; empty if it has no known transport for them.

    EFA goes through libfabric; everything else that speaks verbs through ibrc, a thread of the CPU. On Mellanox NICs
    NVSHMEM_IB_ENABLE_IBGDA=1 lets the GPU drive them; it has more requirements, so the user must enable it.
    """
    if any(nic.driver == _EFA for nic in nics):
        return {
            "NVSHMEM_REMOTE_TRANSPORT": "libfabric",
            "NVSHMEM_LIBFABRIC_PROVIDER": "efa",
            "FI_PROVIDER": "efa",
            "FI_EFA_USE_DEVICE_RDMA": "1",
        }
    return {"NVSHMEM_REMOTE_TRANSPORT": "ibrc"} if nics else {}


def can_be_driven_by_gpus(nics: Sequence[Nic]) -> bool:
    """Whether NVSHMEM's IBGDA has code for one of them."""
    return any(nic.driver == _MELLANOX for nic in nics)


def _driver(device: Path) -> str:
    link = device / "device" / "driver"
    return link.resolve().name if link.exists() else ""
