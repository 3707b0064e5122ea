"""How long a kernel takes to compile for the emulator, and to load from the cache.

    python benchmarks/compile.py [--lines 300] [--json]

Every measurement has a new kernel, so nothing of it is in the cache, but the precompiled header is. "cached" is the
first use, in a new process, of a kernel that an earlier process compiled: reading and hashing the source and all its
headers, and loading the result. The figures are medians; to reach: 1 s and 20 ms.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import ep_lib

REPEATS = 5
HEAD = """#include <cuda_bf16.h>
#include <ep/put.cuh>
#include <ep/signal.cuh>
"""
# A step of 10 lines, with what kernels of this library use.
STEP = """
__device__ float step_{i}(float* x, const __nv_bfloat16* y, int n) {{
    __shared__ float part[32];
    float sum = {i};
    for (int k = threadIdx.x; k < n; k += blockDim.x) sum += x[k] * __bfloat162float(y[k]);
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    return part[0] + part[n % 32];
}}
"""
FROM_CACHE = """
import sys, time, ep_lib
begin = time.perf_counter()
ep_lib.Kernel.from_file(sys.argv[1], "run").compile("emulator")
print(time.perf_counter() - begin)
"""


def source(lines: int) -> str:
    """A kernel of about this many lines that was never compiled before."""
    steps = max(1, (lines - 10) // len(STEP.splitlines()))
    calls = "\n".join(f"    sum += step_{i}(x, y, n);" for i in range(steps))
    body = "".join(STEP.format(i=i) for i in range(steps))
    entry = f'extern "C" __global__ void run(float* x, const __nv_bfloat16* y, int n) {{\n    float sum = 0;\n{calls}\n'
    return f"// {uuid.uuid4()}\n{HEAD}{body}{entry}    x[0] = sum;\n}}\n"


def measure(lines: int) -> dict[str, float]:
    """Seconds to compile, and to load from the cache."""
    ep_lib.Kernel.from_source(source(1), "run").compile("emulator")  # the runtime and the precompiled header
    compiled, cached = [], []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(REPEATS):
            path = Path(folder) / f"kernel{i}.cu"
            path.write_text(source(lines))
            begin = time.perf_counter()
            ep_lib.Kernel.from_file(path, "run").compile("emulator")
            compiled.append(time.perf_counter() - begin)
            again = subprocess.run(
                [sys.executable, "-c", FROM_CACHE, str(path)], capture_output=True, text=True, check=True
            )
            cached.append(float(again.stdout))
        count = len(path.read_text().splitlines())
    return {"lines": count, "compile_s": statistics.median(compiled), "cached_s": statistics.median(cached)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=300)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    result = measure(options.lines)
    if options.json:
        print(json.dumps(result))
    else:
        print(
            f"{result['lines']} lines: compiled in {result['compile_s']:.2f} s, "
            f"from the cache in {1e3 * result['cached_s']:.1f} ms"
        )


if __name__ == "__main__":
    main()
