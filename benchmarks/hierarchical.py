"""Hierarchical mode on the virtual clock, beside the one-dimensional way: microseconds, and bytes over NICs.

    python benchmarks/hierarchical.py [--nodes 2] [--tokens 4096] [--scale 14] [--hardware h100-cx7] [--json]

Nodes of 8 ranks; every token chooses 8 of 256 experts with equal probability; hidden 7168, 24 SMs. Constants of NVLink
and NIC, with their sources: ep_lib/emulator/hardware.py. Three ways:

    one-dimensional, NICs   PCIe mode: everything that crosses ranks goes through NICs
    one-dimensional         the same rings, whose messages are stores inside a node (transport="by_pair")
    hierarchical            Buffer(hierarchical=True)

Three operations: an FP8 dispatch of a new routing, the same with its handle, a BF16 combine. The least possible bytes:
one row (with its scales) for each token and other node, and nothing else. "payload" counts the bytes that NICs are
given, with ids, weights, counts and credits; "wire" their packets' headers too, and is compared with the least with
headers of full packets. Time is from the first rank's first kernel to the last rank's last. "NIC us" is what the wire's
bytes alone take at line rate, however they are sent: with "by_pair" one thread stores a message, so that the rings
of a node are slower than they could be, and a fair comparison of hierarchical mode's time is with the NIC's there.

As in ep_lib/workshop/pcie_model.py, rows are ``--scale`` times shorter and each byte counts so many times. That would
count ids, which are not shorter, too often: so payload is put together from messages with rows, at the size that they
have in full, and the others as they are. 2 nodes take 4 minutes on 2 cores, 4 nodes 15.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ep_lib import Buffer, Fabric, Kernel, Rank, simulate
from ep_lib.emulator.hardware import HARDWARE
from ep_lib.emulator.timeline import Timeline
from ep_lib.memory.arrays import BFLOAT16
from ep_lib.moe.hierarchical import memory as hierarchical
from ep_lib.moe.pcie import memory as pcie
from ep_lib.reference import quantize_fp8
from ep_lib.workshop import pcie_model
from ep_lib.workshop.pcie_model import COMBINE, DISPATCH, HIDDEN, NUM_EXPERTS, NUM_SMS, TOP_K, Setting

RANKS_PER_NODE = 8
OPERATIONS = ("FP8 dispatch", "FP8 dispatch, handle", "BF16 combine")
WAYS = ("one-dimensional, NICs", "one-dimensional", "hierarchical")
TIMEOUT_S = 7200.0  # of real time


class Row(NamedTuple):
    """One operation, one way. Bytes are of one rank (the mean of all), over NICs, to other ranks."""

    way: str
    operation: str
    us: float
    payload_mb: float
    least_mb: float
    payload_ratio: float
    wire_ratio: float
    nic_us: float  # of the wire's bytes, at the line rate of a NIC


def operations(rank: Rank, setting: Setting, sizes: dict[str, Any]) -> None:
    """The three operations, each after a mark on the timeline."""
    mark = Kernel.from_source(pcie_model._MARK, "phase_begins", filename="hierarchical.cu")
    topk_idx = rank.to_device(pcie_model.routing(setting, rank.rank))
    rows = np.random.default_rng(rank.rank).standard_normal((setting.tokens, setting.hidden), np.float32)
    x = tuple(map(rank.to_device, quantize_fp8(rows)))
    found: dict[str, Any] = {}
    with Buffer(rank, **sizes) as buffer:

        def first() -> None:
            found["handle"] = buffer.dispatch(x, topk_idx).handle
            found["y"] = rank.to_device(np.ones((found["handle"].num_recv_tokens, setting.hidden), BFLOAT16))

        steps: list[Callable[[], object]] = [
            first,
            lambda: buffer.dispatch(x, handle=found["handle"]),
            lambda: buffer.combine(found["y"], found["handle"]),
            lambda: None,
        ]
        for step in steps:
            rank.barrier()
            mark.launch(rank, 1, 1)
            rank.barrier()
            step()


def run(way: str, setting: Setting) -> Timeline:
    """The operations on the virtual clock."""
    sizes: dict[str, Any] = {
        "num_experts": NUM_EXPERTS,
        "top_k": TOP_K,
        "hidden": setting.hidden,
        "max_tokens": setting.tokens,
        "num_sms": NUM_SMS,
    }
    node: dict[str, int] = {}
    if way == "hierarchical":
        sizes |= {"hierarchical": True}
        node = {"ranks_per_node": RANKS_PER_NODE}
    else:
        sizes |= {"allow_nvlink_for_normal_mode": False, "bounce_bytes": pcie_model.bounce_bytes(setting)}
    return simulate(
        operations,
        setting.ranks,
        fabric=Fabric(setting.fabric, ranks_per_node=RANKS_PER_NODE, queue_pairs=NUM_SMS),
        hardware=HARDWARE[setting.hardware].scaled(setting.scale),
        args=(setting, sizes),
        heap_bytes=Buffer.symmetric_bytes(setting.ranks, **sizes, **node) + (4 << 20),
        timeout=TIMEOUT_S,
        transport="by_pair" if way == "one-dimensional" else "emulated",
    )


def packet_of(way: str, operation: str, hidden: int) -> int:
    """Bytes of a token's packet over a NIC, where rows have ``hidden`` elements."""
    what = COMBINE if operation == COMBINE else DISPATCH
    row = pcie_model.row_bytes(what, hidden)
    is_new = operation == OPERATIONS[0]
    if what == COMBINE:
        return row
    if way == "hierarchical":
        return hierarchical.packet_bytes(
            row, 0, TOP_K, ranks_per_node=RANKS_PER_NODE, with_routing=is_new, with_weights=False
        )
    return pcie.packet_bytes(row, 0, TOP_K if is_new else 0)


def rows_of(way: str, timeline: Timeline, setting: Setting) -> list[Row]:
    """Of the table."""
    nodes = setting.ranks // RANKS_PER_NODE
    crossing = 0  # tokens and other nodes that they go to
    for rank in range(setting.ranks):
        goes = pcie_model.ranks_of_tokens(pcie_model.routing(setting, rank), nodes)
        crossing += int(goes.sum()) - int(goes[:, rank // RANKS_PER_NODE].sum())
    nic = HARDWARE[setting.hardware].nic
    header = nic.header_bytes / nic.mtu_bytes  # of each byte in full packets
    rows = []
    for operation, (begin, end) in zip(OPERATIONS, pcie_model._phases(timeline), strict=True):
        spans = [s for s in timeline.spans if s.kind == "kernel" and begin <= s.begin_ns and s.end_ns <= end]
        first, last = min(s.begin_ns for s in spans), max(s.end_ns for s in spans)
        sent = [m for m in timeline.messages if m.source != m.target and first <= m.posted_ns <= last]
        in_run, in_full = (packet_of(way, operation, hidden) for hidden in (setting.hidden, HIDDEN))
        # Rows come in whole packets; counts and credits do not.
        with_rows = [m for m in sent if m.bytes >= in_run and m.bytes % in_run == 0]
        others = [m for m in sent if not (m.bytes >= in_run and m.bytes % in_run == 0)]
        full = [m.bytes // in_run * in_full for m in with_rows]
        payload = sum(full) + sum(m.bytes for m in others)
        wire = sum(map(nic.wire_bytes, full)) + sum(nic.wire_bytes(m.bytes) for m in others)
        least = crossing * pcie_model.row_bytes(COMBINE if operation == COMBINE else DISPATCH)
        rows.append(
            Row(
                way,
                operation,
                (last - first) / 1000,
                payload / setting.ranks / 1e6,
                least / setting.ranks / 1e6,
                payload / least,
                wire / (least * (1 + header)),
                wire / setting.ranks / nic.gbytes_per_s / 1000,
            )
        )
    return rows


def table(rows: list[Row]) -> str:
    """For people."""
    lines = [
        f"{'':22} {'':23} {'us':>9} {'payload MB':>11} {'least MB':>9} {'ratio':>7} {'on the wire':>12} {'NIC us':>7}"
    ]
    for row in rows:
        lines.append(
            f"{row.way:22} {row.operation:23} {row.us:9.0f} {row.payload_mb:11.1f} {row.least_mb:9.1f} "
            f"{row.payload_ratio:7.3f} {row.wire_ratio:12.3f} {row.nic_us:7.0f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table, and how many times as quick hierarchical mode is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--scale", type=int, default=14)
    parser.add_argument("--hardware", default="h100-cx7")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=WAYS)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    setting = Setting(args.nodes * RANKS_PER_NODE, args.tokens, args.scale, hardware=args.hardware)
    setting.check()
    rows = [row for way in args.ways for row in rows_of(way, run(way, setting), setting)]
    if args.json:
        about = {"benchmark": "hierarchical", **vars(args)}
        print(json.dumps(about | {"rows": [row._asdict() for row in rows]}, indent=1))
        return
    print(f"{args.nodes} x {RANKS_PER_NODE} ranks, {args.tokens} tokens, {args.hardware}\n{table(rows)}")
    times = {(row.way, row.operation): row.us for row in rows}
    for way in WAYS[:-1]:
        for operation in OPERATIONS:
            if (way, operation) in times and (WAYS[-1], operation) in times:
                print(f"{operation}: {times[way, operation] / times[WAYS[-1], operation]:.2f} times as quick as {way}")


if __name__ == "__main__":
    main()
