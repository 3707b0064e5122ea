"""A kernel with many blocks on the emulator: sums of 1M numbers, one thread each, 256 threads per block.

    python benchmarks/emulator_blocks.py [--threads 1048576] [--block 256] [--repeats 3] [--json]

Each block adds its numbers in shared memory, with a barrier after each of the 8 halvings and one before them. Prints
microseconds of CPU time per thread (the best run), the peak memory of the process, and how many blocks were resident at
one time. Targets: 0.8 us per thread and 80 MB.
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import numpy as np

import ep_lib
from ep_lib.emulator.fabric import Fabric
from ep_lib.runtime.emulated import make_machine, run_program

SOURCE = """
extern "C" __global__ void block_sums(const float* x, float* sums) {
    extern __shared__ float part[];
    part[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}
"""


def measure(threads: int, block: int, repeats: int) -> dict[str, float]:
    """Microseconds per thread, megabytes of the process, resident blocks. Fails if a sum is wrong."""
    kernel = ep_lib.Kernel.from_source(SOURCE, "block_sums")
    kernel.compile("emulator")
    grid = threads // block
    x = np.arange(threads, dtype=np.float32) % 7
    machine = make_machine(1, seed=0, fabric=Fabric())

    def main(rank: ep_lib.Rank) -> float:
        numbers, sums = rank.to_device(x), rank.to_device(np.zeros(grid, np.float32))
        seconds = []
        for _ in range(repeats):
            begin = time.process_time()
            kernel.launch(rank, grid, block, numbers, sums, shared_bytes=4 * block)
            rank.synchronize()
            seconds.append(time.process_time() - begin)
        assert np.array_equal(np.asarray(sums), x.reshape(grid, block).sum(axis=1)), "a block's sum is wrong"
        return min(seconds)

    (seconds,) = run_program(main, machine)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"us_per_thread": seconds / threads * 1e6, "peak_mb": peak, "blocks": machine.most_resident_blocks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1 << 20)
    parser.add_argument("--block", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    result = measure(options.threads, options.block, options.repeats)
    if options.json:
        print(json.dumps(result))
    else:
        print(
            f"block reduction of {options.threads} threads, {options.block} per block: "
            f"{result['us_per_thread']:.2f} us per thread; {result['peak_mb']:.0f} MB; "
            f"at most {result['blocks']} blocks resident"
        )


if __name__ == "__main__":
    main()
