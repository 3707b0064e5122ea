"""How much the constants of the virtual clock matter for PCIe mode's published table at EP8, as JSON.

    python benchmarks/pcie_sensitivity.py [TOKENS]

Each run has one constant of ``ep_lib/emulator/hardware.py`` doubled, halved or replaced by a figure from another
source; 4096 tokens take 4 minutes. What the sources leave uncertain should change the rows little. Then come rings of
other lengths, with the constants unchanged: what keeps ranks in step through a combine (ep_lib/moe/pcie/memory.py).
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

from ep_lib.emulator.hardware import HARDWARE, Hardware
from ep_lib.moe.pcie import memory as pcie_config
from ep_lib.workshop import pcie_model

RANKS, BASE = 8, "h20-cx7"
RINGS = (4, 8, 16, 32)


def changed(part: str, **factors: float) -> Hardware:
    """BASE, with some numbers of its ``part`` multiplied by ``factors``."""
    base = HARDWARE[BASE]
    old: Any = getattr(base, part)
    new = dataclasses.replace(old, **{name: factor * getattr(old, name) for name, factor in factors.items()})
    return dataclasses.replace(base, **{part: new})


def variants() -> dict[str, Hardware]:
    base = HARDWARE[BASE]
    slow_polls = dataclasses.replace(changed("gpu", poll_ns=2), nic=changed("nic", overhead_ns=2).nic)
    return {
        "as it is": base,
        "NIC and switch latency x 2": changed("nic", latency_ns=2),
        "NIC and switch latency / 2": changed("nic", latency_ns=0.5),
        "NIC messages per second / 2": changed("nic", gap_ns=2),
        "NIC messages per second x 2": changed("nic", gap_ns=0.5),
        "PCIe latency x 2": changed("pcie", latency_ns=2),
        "PCIe headers x 2": changed("pcie", header_bytes=2),
        "L2 latency (polls, posting) x 2": slow_polls,
        "launches x 2": changed("gpu", launch_ns=2, launch_gap_ns=2),
        "bytes per clock of an SM / 2": changed("gpu", sm_gbytes_per_s=0.5),
        "memory bandwidth / 2": changed("gpu", memory_gbytes_per_s=0.5),
        "MTU 1024 instead of 4096": changed("nic", mtu_bytes=0.25),
    }


def measured(name: str, hardware: str, tokens: int) -> dict[str, Any]:
    setting = pcie_model.Setting(RANKS, tokens, hardware=hardware)
    rows = pcie_model.rows_of(pcie_model.simulate_operations(setting), setting)
    fields = ("logical_gbps", "wire_gbps", "us", "first_rank_us", "last_rank_us")
    found = {row.what: {field: round(getattr(row, field), 2) for field in fields} for row in rows}
    print(name, found, file=sys.stderr)
    return found


def main() -> None:
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else pcie_model.TOKENS
    constants = {}
    for name, hardware in variants().items():
        HARDWARE[name] = hardware
        constants[name] = measured(name, name, tokens)
    rings = {}
    for messages in RINGS:
        pcie_config.MESSAGES_PER_RING = pcie_model.MESSAGES_PER_RING = messages
        rings[messages] = measured(f"{messages} messages per ring", BASE, tokens)
    report = {"benchmark": "pcie_sensitivity", "ranks": RANKS, "tokens": tokens}
    print(json.dumps(report | {"constants": constants, "messages_a_ring": rings}, indent=1))


if __name__ == "__main__":
    main()
