"""A kernel of your own on what a Buffer received, which writes to where combine fetches it: no copy on the way.

python examples/own_kernel.py                        # two ranks on the emulator
EP_LIB_BACKEND=cuda python examples/own_kernel.py    # two GPUs
"""

import numpy as np

import ep_lib

EXPERTS, TOP_K, HIDDEN, TOKENS = 4, 2, 64, 20
SOURCE = """
#include <ep/platform.cuh>
// One block for each received row: its experts are squares, and their weights are applied on the way.
extern "C" __global__ void expert(float* out, const float* x, const float* weights, int hidden, int top_k) {
    const int row = blockIdx.x;
    float weight = 0;
    for (int k = 0; k < top_k; ++k) weight += weights[row * top_k + k];  // 0 for experts of other ranks
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
        const float value = x[row * hidden + i];
        out[row * hidden + i] = weight * value * value;
    }
}
"""
kernel = ep_lib.Kernel.from_source(SOURCE, "expert")


def main(rank: ep_lib.Rank) -> bool:
    rng = np.random.default_rng(rank.rank)
    x = rng.integers(-8, 8, (TOKENS, HIDDEN)).astype(np.float32)
    chosen = np.argsort(rng.random((TOKENS, EXPERTS)), axis=1)[:, :TOP_K]
    weights = np.full((TOKENS, TOP_K), 1 / TOP_K, np.float32)
    shape = {"num_experts": EXPERTS, "top_k": TOP_K, "hidden": HIDDEN, "max_tokens": TOKENS, "dtype": "float32"}
    with ep_lib.Buffer(rank, **shape) as buffer:
        came = buffer.dispatch(*(rank.to_device(array) for array in (x, chosen, weights)))
        rows = buffer.combine_input(came.handle, came.x)  # symmetric memory: all ranks pass it, or none
        kernel.launch(rank, max(1, len(rows)), 64, rows, came.x, came.topk_weights, HIDDEN, TOP_K)
        out = rank.to_host(buffer.combine(rows, came.handle))
    return np.array_equal(out, x * x)


if __name__ == "__main__":
    assert all(ep_lib.spawn(main, ranks=2))
