#include <ep/combine.cuh>

template <typename T>
__global__ void __launch_bounds__(512) ep_combine(ep::CombineArgs args, int4* out, const int* topk_idx,
                                                  const float* topk_weights, const int* slot, const int* first_row) {
    ep::combine<T>(args, out, topk_idx, topk_weights, slot, first_row);
}
