#include <ep/combine_push.cuh>

// With fewer vectors in flight a lane, registers are left for more warps.
template <typename T, int kVectors>
__global__ void __launch_bounds__(kVectors > 2 ? 512 : 768)
    ep_combine_push(ep::PushCombineArgs args, int4* out, const int4* y, const int* topk_idx, const float* topk_weights,
                    const int* slot, const int* plan, int* differs) {
    ep::combine_push<T, kVectors>(args, out, y, topk_idx, topk_weights, slot, plan, differs);
}
