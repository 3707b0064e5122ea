"""Exhausts the smallest shapes of what everything is built of, and prints what was proved to what bound.

    python benchmarks/prove.py [--seconds 300] [--only ring] [--jobs 2]

The table in docs/checker.md is from here; `make prove` runs it. The exit code is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import sys
from typing import NamedTuple

import numpy as np

import ep_lib

SOURCE = """
#include <ep/net.cuh>
#include <ep/packet.cuh>
#include <ep/ring.cuh>
#include <ep/write_signal.cuh>
using namespace ep;

// Both ranks write 64 bytes to each other, and signal.
extern "C" __global__ void write_signal(uint64_t* data, uint64_t* flags, uint64_t* out) {
    const int peer = 1 - rank();
    for (int i = 0; i < 8; i++) data[i] = 100 * rank() + i;
    if (reachable(peer)) {
        write_and_signal_thread(data + 8, data, 64, flags, 1, peer);
    } else {
        net_put_signal_nbi(data + 8, data, 64, flags, 1, peer);
    }
    if (!wait_for_signal(flags, 1, peer)) return;
    for (int i = 0; i < 8; i++) out[i] = data[8 + i];
    net_quiet();
}

// Rank 0 sends three messages through a ring of two slots; the flags are credits and arrivals.
extern "C" __global__ void ring(uint64_t* data, uint64_t* flags, uint64_t* out) {
    char* const slots = reinterpret_cast<char*>(data);
    const Ring to_peer = {1 - rank(), 0, 2, 16, slots, slots + 32, flags + 1, flags};
    for (uint64_t message = 0; message < 3; message++) {
        if (rank() == 0) {
            if (!ring_send_warp(to_peer, out + 2 * message, 16, message)) return;
        } else {
            if (!ring_receive_warp(to_peer, out + 2 * message, 16, message)) return;
        }
    }
    net_quiet();
}

// Two packets each way, one after the other.
extern "C" __global__ void packets(TaggedWord* data, uint64_t* flags, uint64_t* out) {
    const int peer = 1 - rank();
    for (int i = 0; i < 2; i++) send_packet(data + i, 100 * rank() + i, 1, peer);
    for (int i = 0; i < 2; i++)
        if (!wait_packet(data + i, 1, out + i, {kPhaseSignal, peer, i})) return;
}

// Two barriers: what was written before the first is read after it, and written again after the second.
extern "C" __global__ void barrier(uint64_t* data, uint64_t* flags, uint64_t* out) {
    const int peer = 1 - rank();
    for (int round = 1; round <= 2; round++) {
        data[0] = 10 * round + rank();
        if (reachable(peer)) {
            *peer_ptr(data + round, peer) = data[0];
            signal_add(flags, 1, peer);
        } else {
            net_put_signal_nbi(data + round, data, 8, flags, 1, peer);
            net_quiet();
        }
        if (!wait_for_signal(flags, round, peer)) return;
        out[round] = data[round];
    }
}
"""

MEMORIES = {"sc": "one for all", "ptx": "PTX's"}
THREADS = {"write_signal": 1, "ring": 32, "packets": 1, "barrier": 1}
FABRICS = ("p2p", "rc", "srd")


class Row(NamedTuple):
    """What was found of a program on a fabric."""

    program: str
    fabric: str
    report: ep_lib.CheckReport


def run(rank: ep_lib.Rank, name: str) -> list[int]:
    """One of the programs, and what it has got."""
    data, flags = rank.symmetric(16, np.uint64), rank.symmetric(4, np.uint64)
    out = rank.to_device(np.arange(8, dtype=np.uint64) if rank.rank == 0 else np.zeros(8, np.uint64))
    ep_lib.Kernel.from_source(SOURCE, name, filename="prove.cu").launch(rank, 1, THREADS[name], data, flags, out)
    return [int(value) for value in rank.to_host(out)]


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="for each row (default: %(default)g)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--memory", choices=list(MEMORIES), help="one of the kinds of memory")
    parser.add_argument("--only", choices=list(THREADS), help="one of the programs")
    args = parser.parse_args()
    rows = []
    print("| program, 2 ranks | memory | fabric | covered | s |\n| --- | --- | --- | --- | --- |")
    for memory in [args.memory] if args.memory else MEMORIES:
        for name in [args.only] if args.only else THREADS:
            for fabric in FABRICS if name != "packets" else FABRICS[:1]:  # a packet is one store
                report = ep_lib.check(
                    run,
                    2,
                    fabric,
                    args=(name,),
                    memory=memory,
                    exhaustive=True,
                    seconds=args.seconds,
                    jobs=args.jobs,
                    heap_bytes=1 << 16,
                )
                rows.append(Row(name, fabric, report))
                wrong = "" if report.ok else f"**{report.findings[0].kind}**, in "
                told = f"{wrong}{report.coverage} | {report.seconds:.1f}"
                print(f"| {name} | {MEMORIES[memory]} | {fabric} | {told} |", flush=True)
                if not report.ok:
                    print(report, file=sys.stderr)
    return 0 if all(row.report.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
