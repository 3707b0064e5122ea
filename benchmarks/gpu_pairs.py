"""A pytest plugin (``-p gpu_pairs``): workers of pytest-xdist share the GPUs of a host evenly.

Most tests use the first two GPUs. Each worker sees all GPUs, but in another order: with 4 GPUs, worker 1 sees 2, 3, 0,
1. So tests that need more than two run too.
"""

from __future__ import annotations

import os


def rotated(devices: list[str], worker: int) -> list[str]:
    """The same devices, beginning two further on for each worker."""
    first = 2 * worker % max(1, len(devices))
    return devices[first:] + devices[:first]


def pytest_configure() -> None:
    """Sets the order before anything loads CUDA in this worker."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    devices = [device for device in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device]
    if worker.startswith("gw") and devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(rotated(devices, int(worker.removeprefix("gw"))))
