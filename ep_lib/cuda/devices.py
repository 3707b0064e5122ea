"""Finds GPUs, and chooses the one of a rank. Importing this imports no CUDA library."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ep_lib.config import Config
from ep_lib.errors import BackendUnavailable
from ep_lib.require import installs

RANKS_PER_GPU = 8  # that share it by default


class DeviceIdentity(NamedTuple):
    """A rank's GPU, as the other ranks need to know it."""

    host: str  # the host's boot id: host names may repeat inside containers
    host_name: str
    device: int  # index among the GPUs that this process sees
    pci_bus_id: str  # the same GPU has the same id in every process of a host
    name: str


def import_cupy() -> Any:
    """CuPy. Raises BackendUnavailable with the package to install."""
    try:
        import cupy
    except ImportError as error:
        raise BackendUnavailable(
            f"the cuda backend needs CuPy, which cannot be imported ({error}). Install the one for your driver: "
            f"{installs('cuda13')} (or cuda12; `nvidia-smi` prints the driver's CUDA version)"
        ) from error
    return cupy


def gpu_count() -> int:
    """GPUs that this process sees (CUDA_VISIBLE_DEVICES counts). Raises BackendUnavailable if CUDA does not work."""
    cupy = import_cupy()
    runtime = cupy.cuda.runtime
    try:
        return int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        driver, needed = (int(version()) for version in (runtime.driverGetVersion, runtime.runtimeGetVersion))
        if 0 < driver < needed:
            raise BackendUnavailable(
                f"found a driver for CUDA {_cuda_version(driver)}, but this CuPy needs CUDA {_cuda_version(needed)}: "
                f"update the driver, or use the CuPy for it (pip install cupy-cuda{driver // 1000}x)"
            ) from error
        raise BackendUnavailable(
            f"CUDA finds no usable GPU: {error}. Check that `nvidia-smi` lists one and that the driver is not older "
            "than CuPy's CUDA."
        ) from error


def architecture(device: int) -> str:
    """The architecture of a GPU of this process: "sm_90". Raises BackendUnavailable if CUDA does not work."""
    gpu_count()
    return f"sm_{import_cupy().cuda.Device(device).compute_capability}"


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def unusable_reason(wanted: int = 1) -> str | None:
    """None if ``wanted`` ranks can run on GPUs here, one each unless they share; else the reason in a sentence."""
    try:
        count = gpu_count()
    except BackendUnavailable as error:
        return str(error)
    from ep_lib.jit import nvrtc

    if not nvrtc.available():
        return "kernels cannot be compiled for GPUs: NVRTC is missing (pip install nvidia-cuda-nvrtc)"
    wanted = min(wanted, Config.from_environment().gpus or wanted)
    if count == 0 or (count < wanted and not gpus_are_shared()):
        share = "; gpus= lets ranks share them, several on each" if count else ""
        return f"{wanted} GPUs are wanted, this machine shows {count}{share}"
    return None


def room_for_ranks() -> int:
    """The number of ranks that the GPUs here have room for: one on each, or more if EP_LIB_GPUS lets them share."""
    shared = Config.from_environment().gpus
    return gpu_count() if shared is None else RANKS_PER_GPU * shared


def gpus_are_shared() -> bool:
    """Whether the user allows several ranks on one GPU."""
    return Config.from_environment().share_gpus


def device_for(local_rank: int, ranks_here: int, gpus: int | None = None) -> int:
    """The index of the GPU for rank number ``local_rank`` of ``ranks_here`` on this host.

    ``gpus``: the ranks share so many of them.
    """
    count = gpu_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if count == 0:
        hint = f" (CUDA_VISIBLE_DEVICES={visible!r})" if visible is not None else ""
        raise BackendUnavailable(f"CUDA sees no GPU on {socket.gethostname()}{hint}")
    if gpus is not None and gpus > count:
        raise BackendUnavailable(f"gpus is {gpus}, and {socket.gethostname()} shows {count}: take at most that")
    if gpus is not None or gpus_are_shared():
        return local_rank % (gpus or count)
    if ranks_here > count or local_rank >= count:
        hint = f"; CUDA_VISIBLE_DEVICES={visible!r} limits them" if visible is not None else ""
        raise BackendUnavailable(
            f"{max(ranks_here, local_rank + 1)} ranks on {socket.gethostname()}, but it shows {count} "
            f"GPU{'s' if count != 1 else ''} to them{hint}. Start fewer ranks, or run the emulator "
            '(backend="emulator"), or let ranks share a GPU: ep_lib.spawn(..., gpus=1), or EP_LIB_GPUS=1.'
        )
    return local_rank


def identify(device: int) -> DeviceIdentity:
    """The identity of this process's GPU number ``device``."""
    runtime = import_cupy().cuda.runtime
    name = runtime.getDeviceProperties(device)["name"]
    return DeviceIdentity(
        host=_boot_id(),
        host_name=socket.gethostname(),
        device=device,
        pci_bus_id=runtime.deviceGetPCIBusId(device),
        name=name.decode() if isinstance(name, bytes) else str(name),
    )


def peer_problems(
    rank: int, identities: list[DeviceIdentity], can_access: Callable[[int, int], bool] | None = None
) -> list[str]:
    """Why ``rank``'s GPU cannot write to another rank's: one sentence per pair, none if all can.

    ``can_access(mine, theirs)``: whether one GPU of this process reaches another; by default CUDA's answer.
    """
    runtime = import_cupy().cuda.runtime
    can_access = can_access or runtime.deviceCanAccessPeer
    mine = identities[rank]
    problems = []
    for peer, theirs in enumerate(identities):
        if theirs.host != mine.host:
            problems.append(f"rank {rank} is on {mine.host_name}, rank {peer} on {theirs.host_name}")
        elif theirs.pci_bus_id != mine.pci_bus_id:
            device = -1
            with contextlib.suppress(runtime.CUDARuntimeError):
                device = int(runtime.deviceGetByPCIBusId(theirs.pci_bus_id))
            if device < 0:
                problems.append(
                    f"rank {rank} does not see rank {peer}'s GPU {theirs.pci_bus_id}: give all ranks the same "
                    "CUDA_VISIBLE_DEVICES (srun: --gpu-bind=none)"
                )
            elif not can_access(mine.device, device):
                problems.append(
                    f"rank {rank} (GPU {mine.device}, {mine.name}) cannot access rank {peer} (GPU {theirs.device}, "
                    f"{theirs.name}) directly"
                )
    return problems


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
