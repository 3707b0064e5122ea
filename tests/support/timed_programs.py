"""The programs of tests/kernels/timed.cu, run in virtual time, and the model's stages in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import ep_lib
from ep_lib import HARDWARE, Fabric, Hardware, Timeline
from support import TESTS

PROGRAMS = ("puts", "incast", "ping_pong", "get", "overtake", "fenced", "adds", "copy", "store", "all_to_all", "sleep")
KERNEL = ep_lib.Kernel.from_file(TESTS / "kernels" / "timed.cu", "timed")
CX7 = HARDWARE["h20-cx7"]


@dataclass(frozen=True)
class Run:
    """``launches``: how often the kernel is launched, one after another."""

    program: str
    nbytes: int = 8
    times: int = 1
    grid: int = 1
    block: int = 32
    launches: int = 1
    heap: int = 1 << 21


def body(rank: ep_lib.Rank, run: Run) -> dict[str, Any]:
    data, source = rank.symmetric((run.heap,), np.uint8), rank.symmetric((run.heap,), np.uint8)
    flag, out = rank.symmetric((1,), np.uint64), rank.symmetric((2,), np.uint64)
    source[:] = rank.rank + 1
    rank.barrier()
    program = PROGRAMS.index(run.program)
    for _ in range(run.launches):
        KERNEL.launch(rank, run.grid, run.block, program, data, source, flag, out, run.nbytes, run.times)
    rank.barrier()
    return {"data": data.copy(), "flag": int(flag[0]), "out": out.copy()}


def simulate(
    run: Run, ranks: int = 2, fabric: Fabric | str | None = "rc", hardware: Hardware | str = CX7, **more: Any
) -> Timeline:
    return ep_lib.simulate(body, ranks, fabric, hardware, args=(run,), **more)


def before_the_wire(hw: Hardware, work_requests: int = 1) -> float:
    """From the call to the NIC's decision to read the source: o, doorbell, fetch of the work request, g."""
    return hw.nic.overhead_ns + 3 * hw.pcie.latency_ns + work_requests * hw.nic.gap_ns


def source_read(hw: Hardware, nbytes: float) -> float:
    """The first packet comes over PCIe; the others come while it is on the wire."""
    first = min(nbytes, hw.nic.mtu_bytes)
    return 2 * hw.pcie.latency_ns + hw.pcie.wire_bytes(first) / hw.pcie.gbytes_per_s


def on_wire(hw: Hardware, nbytes: float) -> float:
    return hw.nic.wire_bytes(nbytes) / hw.nic.gbytes_per_s


def to_target(hw: Hardware) -> float:
    """From the wire of one NIC to the memory behind the other."""
    return hw.nic.latency_ns + hw.pcie.latency_ns


def acknowledged(hw: Hardware) -> float:
    return hw.nic.latency_ns + hw.pcie.latency_ns
