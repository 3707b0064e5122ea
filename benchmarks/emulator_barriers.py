"""The emulator's cost of a switch: many ranks, many threads, barriers only.

    python benchmarks/emulator_barriers.py [--ranks 32] [--json]

Prints the kernel's seconds (20 barriers in every block), nanoseconds per switch of threads, and the peak memory of the
process. The figure to reach on 2 cores: 32 ranks x 24 blocks x 256 threads in 2 s and under 1 GB.
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import ep_lib

SOURCE = """
extern "C" __global__ void barriers(int count) {
    for (int i = 0; i < count; i++) __syncthreads();
}
"""


def measure(ranks: int, blocks: int, threads: int, barriers: int) -> dict[str, float]:
    """Runs the kernel on every rank at once; seconds, switches and memory."""
    kernel = ep_lib.Kernel.from_source(SOURCE, "barriers")
    kernel.compile("emulator")

    def main(rank: ep_lib.Rank) -> float:
        rank.barrier()
        begin = time.perf_counter()
        kernel.launch(rank, blocks, threads, barriers)
        rank.barrier()
        return time.perf_counter() - begin

    seconds = max(ep_lib.spawn(main, ranks, "emulator"))
    switches = ranks * blocks * threads * (barriers + 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "ns_per_switch": seconds / switches * 1e9, "peak_mb": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--threads", type=int, default=256)
    parser.add_argument("--barriers", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    result = measure(options.ranks, options.blocks, options.threads, options.barriers)
    if options.json:
        print(json.dumps(result))
    else:
        print(
            f"{options.ranks} ranks x {options.blocks} blocks x {options.threads} threads, {options.barriers} barriers"
            f": {result['seconds']:.2f} s, {result['ns_per_switch']:.0f} ns per switch, {result['peak_mb']:.0f} MB peak"
        )


if __name__ == "__main__":
    main()
