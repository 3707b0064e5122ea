"""The CPU proxy's ring and threads, without a GPU: how soon a push is seen, and commands per second of one thread.

    python benchmarks/proxy.py [--runs 5] [--seconds 2] [--json]

A process pushes into a ring in shared memory, and a native proxy thread of another one takes the commands; then one
thread pushes as fast as it can to an executor that does nothing. Other work on the same cores only makes it slower: so
all runs are printed, and of the delays also the best 64 pushes in a row, which met idle cores. To reach: 1 us (median)
and 3 M commands/s. It takes two cores.
"""

from __future__ import annotations

import argparse
import json
import os

from ep_lib.commands.bench.local import measure_delay, measure_rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run of the rate")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    delays = [measure_delay() for _ in range(args.runs)]
    rates = [measure_rate(seconds=args.seconds) for _ in range(args.runs)]
    report = {
        "load_average": os.getloadavg()[0],
        "push_seen_ns": delays,
        "commands_per_s": rates,
    }
    if args.json:
        print(json.dumps(report))
        return
    for what, name in (("all pushes", "median"), ("the best 64 in a row", "median_of_best")):
        medians = ", ".join(f"{delay[name]:.0f}" for delay in delays)
        print(f"push seen by the proxy, medians of {what}: {medians} ns (to reach: 1000)")
    print(f"commands per second, one thread: {', '.join(f'{rate / 1e6:.2f}' for rate in rates)} M (to reach: 3)")
    print(f"load of the machine meanwhile: {report['load_average']:.1f}")


if __name__ == "__main__":
    main()
