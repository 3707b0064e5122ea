#include <moe/direct/dispatch_bulk.cuh>

template <ep::DispatchWay kWay, int kStages>
__global__ void __launch_bounds__(512)
    ep_dispatch_bulk(ep::BulkDispatchArgs args, const int4* x, const float* scales, const int* topk_idx,
                     const float* topk_weights, const int* slot, const int* plan, int* differs) {
    ep::dispatch_bulk<kWay, kStages>(args, x, scales, topk_idx, topk_weights, slot, plan, differs);
}
