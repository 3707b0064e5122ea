#include <moe/direct/combine_pull.cuh>

template <typename T, bool kStaged>
__global__ void __launch_bounds__(512)
    ep_combine_pull(ep::PullCombineArgs args, int4* out, const int4* y, const int* topk_idx, const float* topk_weights,
                    const int* slot, const int* plan, int* differs) {
    ep::combine_pull<T, kStaged>(args, out, y, topk_idx, topk_weights, slot, plan, differs);
}
