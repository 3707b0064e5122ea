#include <moe/low_latency/combine.cuh>

template <int kHalves, typename Index>
__global__ void __launch_bounds__(896, 1)
    ep_low_latency_combine(ep::LowLatencyCombineArgs args, int4* out, const int4* rows, const Index* topk_idx,
                           const float* topk_weights) {
    ep::low_latency_combine<kHalves, Index>(args, out, rows, topk_idx, topk_weights);
}
