"""The probes of ``ep-lib doctor``, each in a process of its own: ``python -m ep_lib.commands.doctor.probes NAME``.

A probe prints one JSON object and exits with 0. ``{"missing": what}`` means a missing installation. A probe catches no
other errors: if a library raises or crashes while it loads, the doctor shows the last line of the traceback.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

Facts = dict[str, Any]

# Two ranks greet each other: a store to the peer's memory, a release of its flag, an acquire of the rank's own flag.
HELLO_KERNEL = """
#include <ep/memory.cuh>
#include <ep/peer.cuh>

extern "C" __global__ void doctor_hello(uint64_t* box, uint64_t* flag) {
    const int peer = (ep::rank() + 1) % ep::num_ranks();
    ep::peer_ptr(box, peer)[0] = 100 + static_cast<uint64_t>(ep::rank());
    ep::st_release_sys_u64(ep::peer_ptr(flag, peer), 1);
    while (ep::ld_acquire_sys_u64(flag) != 1) {
    }
}
"""


def emulator() -> Facts:
    """Compiles a kernel for the CPU and runs it on two ranks."""
    import numpy as np

    import ep_lib

    kernel = ep_lib.Kernel.from_source(HELLO_KERNEL, "doctor_hello", filename="doctor_hello.cu")

    def main(rank: ep_lib.Rank) -> int:
        box = rank.symmetric((1,), np.uint64)
        flag = rank.symmetric((1,), np.uint64)
        kernel.launch(rank, 1, 1, box, flag)
        return int(rank.to_host(box)[0])

    got = ep_lib.spawn(main, ranks=2, backend="emulator")
    if got != [101, 100]:
        raise RuntimeError(f"two ranks exchanged the values {got} instead of [101, 100]")
    return {"ranks": 2, "values": got}


def nvrtc() -> Facts:
    """Compiles the same kernel for GPUs, which needs no GPU."""
    import ep_lib
    from ep_lib.jit import toolkit

    if (found := toolkit.find_nvrtc()) is None:
        return {"missing": "nvrtc"}
    kernel = ep_lib.Kernel.from_source(HELLO_KERNEL, "doctor_hello", filename="doctor_hello.cu")
    targets = ["sm_80", "sm_90", "sm_100"]
    for target in targets:
        kernel.compile(target)
    return {"version": found.version, "targets": targets}


def cupy() -> Facts:
    """The GPUs that CuPy sees, and which of them can address each other's memory."""
    if importlib.util.find_spec("cupy") is None:
        return {"missing": "cupy"}
    import cupy
    from cupy.cuda import runtime

    facts: Facts = {"version": cupy.__version__, "runtime": _cuda_version(runtime.runtimeGetVersion()), "gpus": []}
    try:
        facts["driver"] = _cuda_version(runtime.driverGetVersion())
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:  # no driver, no GPU, or a driver older than this CUDA
        return facts | {"reason": str(error)}
    for device in range(count):
        properties = runtime.getDeviceProperties(device)
        facts["gpus"].append(
            {
                "name": properties["name"].decode(errors="replace"),
                "compute_capability": f"{properties['major']}.{properties['minor']}",
                "memory_bytes": int(properties["totalGlobalMem"]),
            }
        )
    facts["p2p"] = [[a == b or bool(runtime.deviceCanAccessPeer(a, b)) for b in range(count)] for a in range(count)]
    return facts


def mps() -> Facts:
    """Starts NVIDIA's MPS, as for ranks that share a GPU, and ends it."""
    if importlib.util.find_spec("cupy") is None:
        return {"missing": "CuPy"}
    from cupy.cuda import runtime

    from ep_lib.cuda.mps import CONTROL, service

    try:
        runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        return {"missing": "a GPU", "reason": str(error)}
    if shutil.which(CONTROL) is None:
        return {"missing": CONTROL}
    with service():
        return {"control": shutil.which(CONTROL)}


def torch() -> Facts:
    if importlib.util.find_spec("torch") is None:
        return {"missing": "torch"}
    import torch

    return {"version": torch.__version__, "cuda": torch.version.cuda, "gpus": torch.cuda.device_count()}


def nixl() -> Facts:
    """Loads NIXL as notebook 02 does, and makes an agent without backends, which needs no network."""
    from ep_lib.transports.nixl import agent, build

    if all(importlib.util.find_spec(f"nixl_cu{major}") is None for major in build.CUDA_MAJORS):
        return {"missing": "nixl"}
    wheel = build.find_wheel()
    api = agent.load(wheel).api
    made = api.nixl_agent("ep-lib-doctor", api.nixl_agent_config(enable_prog_thread=False, backends=[]))
    return {"version": wheel.version, "package": wheel.package, "plugins": sorted(made.get_plugin_list())}


def mpi() -> Facts:
    """Counts the ranks that see each other under mpiexec."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    total = world.allreduce(world.Get_rank() + 1)
    if world.Get_rank() != 0:
        sys.exit(0)
    library = " ".join(MPI.Get_library_version().splitlines()[0].replace("\0", "").split())
    return {"ranks": world.Get_size(), "sum": total, "library": library}


def jupyter() -> Facts:
    """Checks the packages for the notebooks, without starting a server; their kernel must run this Python."""
    for package in ("jupyterlab", "ipykernel", "ipywidgets", "matplotlib"):
        if importlib.util.find_spec(package) is None:
            return {"missing": package}
    from jupyter_client.kernelspec import KernelSpecManager

    argv = KernelSpecManager().get_kernel_spec("python3").argv
    return {"version": version("jupyterlab"), "kernel": argv[0], "same_python": _is_this_python(argv[0])}


def _is_this_python(program: str) -> bool:
    return not Path(program).is_absolute() or Path(program).parent == Path(sys.executable).parent


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


PROBES: dict[str, Callable[[], Facts]] = {
    probe.__name__: probe for probe in (emulator, nvrtc, cupy, mps, torch, nixl, mpi, jupyter)
}


if __name__ == "__main__":
    print(json.dumps(PROBES[sys.argv[1]]()))
