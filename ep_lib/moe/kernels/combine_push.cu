#include <moe/direct/combine_push.cuh>

template <typename T>
__global__ void __launch_bounds__(512)
    ep_combine_push(ep::PushCombineArgs args, int4* out, const int4* y, const int* topk_idx, const float* topk_weights,
                    const int* slot, const int* plan, int* differs) {
    ep::combine_push<T>(args, out, y, topk_idx, topk_weights, slot, plan, differs);
}
