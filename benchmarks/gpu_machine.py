"""What figures from GPUs depend on: the machine, its software, and the commit of this tree."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

import ep_lib


def machine(rank: ep_lib.Rank) -> dict[str, Any]:
    """GPU, driver and versions, as a rank on a GPU sees them."""
    import numpy
    import torch

    from ep_lib.jit import nvrtc

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split("\n")[0]
    runtime = rank.xp.cuda.runtime
    versions = {"CUDA of the driver": runtime.driverGetVersion(), "CUDA runtime of CuPy": runtime.runtimeGetVersion()}
    nccl = ".".join(str(part) for part in torch.cuda.nccl.version())
    return {
        "gpu": torch.cuda.get_device_name(),
        "gpus_present": runtime.getDeviceCount(),
        "driver": driver,
        **{name: f"{number // 1000}.{number % 1000 // 10}" for name, number in versions.items()},
        "CUDA of torch": torch.version.cuda,
        "CuPy": rank.xp.__version__,
        "torch": torch.__version__,
        "NCCL": nccl,
        "NVRTC": nvrtc.version(),
        "NumPy": numpy.__version__,
        "Python": platform.python_version(),
        "kernel": platform.release(),
    }


def git_commit() -> str:
    """This tree's commit, with a plus if files differ from it; "unknown" outside of git."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+" if changed.stdout else "")
