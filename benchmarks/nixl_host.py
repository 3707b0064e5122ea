"""What ep_lib.nixl adds to NIXL: WRITEs between two processes of this host, by our API and by NIXL's own, in turns.

    python benchmarks/nixl_host.py [--seconds 3] [--json]

Each transfer is a WRITE of DRAM with a notification, posted and waited for. Both ways use the same agents and the same
registered memory and take turns, transfer by transfer, so that what differs is the API. Printed are the medians. To
reach: 64 bytes in at most 1.15 times NIXL's time, 64 MB at no less than 0.97 of its rate. The target only takes
notifications in.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

import numpy as np

from ep_lib.nixl import DeviceHost

SIZES = (64, 4096, 1 << 20, 64 << 20)  # bytes
WARM_UP = 10  # transfers, of each way and size


def serve(pipe: Connection) -> None:
    """The target's process: takes notifications until it is told to stop."""
    data = np.zeros(max(SIZES), np.uint8)
    with DeviceHost("target") as host:
        host.register(data)
        descs = {size: host.serialize_xfer_descs(data.ctypes.data, size) for size in SIZES}
        pipe.send((host.get_metadata(), descs))
        host.add_remote_agent(pipe.recv())
        while not pipe.poll(0.0002):  # leaves the core to the other process, as far as UCX needs it
            host.notifications()


def medians_us(ways: Sequence[Callable[[], None]], limit: float) -> list[float]:
    """Of each way, called in turns for ``limit`` seconds."""
    times: list[list[int]] = [[] for _ in ways]
    deadline = time.perf_counter() + limit
    while time.perf_counter() < deadline:
        for way, taken in zip(ways, times, strict=True):
            begin = time.perf_counter_ns()
            way()
            taken.append(time.perf_counter_ns() - begin)
    return [statistics.median(taken[WARM_UP:]) / 1000 for taken in times]


def measure(limit: float) -> list[dict[str, float]]:
    """A row for each size."""
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,))
    child.start()
    data = np.ones(max(SIZES), np.uint8)
    rows = []
    with DeviceHost("initiator") as host:
        host.register(data)
        metadata, descs = ours.recv()
        ours.send(host.get_metadata())
        peer = host.add_remote_agent(metadata)
        agent = host._agent("measuring")._api  # NIXL's own nixl_agent
        for size in SIZES:
            request = host.create_write_req(data.ctypes.data, size, 0, descs[size], peer)
            remote = request.remote
            sides = [
                agent.get_xfer_descs([(address, size, 0)], mem_type="DRAM")
                for address in (data.ctypes.data, remote.address)
            ]
            handle = agent.initialize_xfer("WRITE", *sides, peer, b"")

            def bare(handle: object = handle) -> None:
                state = agent.transfer(handle, b"go")
                while state == "PROC":
                    state = agent.check_xfer_state(handle)
                assert state == "DONE"

            def through_us(request: object = request) -> None:
                host.transfer(request, b"go")

            nixl, ep_lib = medians_us((bare, through_us), limit)
            rows.append({"bytes": size, "nixl_us": nixl, "ep_lib_us": ep_lib, "ratio": ep_lib / nixl})
            handle.release()
        ours.send("stop")
        child.join()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each size")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = measure(options.seconds)
    if options.json:
        print(json.dumps(rows))
        return
    print("| bytes | NIXL, us | ep_lib, us | ep_lib's time / NIXL's | ep_lib's rate / NIXL's | ep_lib, GB/s |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        ratio, rate = row["ratio"], row["bytes"] / row["ep_lib_us"] / 1000
        times = f"{row['nixl_us']:.1f} | {row['ep_lib_us']:.1f}"
        print(f"| {row['bytes']:.0f} | {times} | {ratio:.2f} | {1 / ratio:.2f} | {rate:.1f} |")


if __name__ == "__main__":
    main()
