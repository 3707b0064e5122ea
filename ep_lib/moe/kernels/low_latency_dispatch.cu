#include <moe/low_latency/dispatch.cuh>

template <bool kFp8, int kHalves, typename Index>
__global__ void __launch_bounds__(896, 1)
    ep_low_latency_dispatch(ep::LowLatencyDispatchArgs args, ep::LowLatencyArrivals arrivals, const int4* x,
                            const Index* topk_idx, const float* topk_weights) {
    ep::low_latency_dispatch<kFp8, kHalves, Index>(args, arrivals, x, topk_idx, topk_weights);
}
