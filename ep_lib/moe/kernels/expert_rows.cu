#include <moe/direct/expert_rows.cuh>

template <typename Index>
__global__ void __launch_bounds__(512)
    ep_place_choices(ep::ExpertRowsArgs args, const Index* topk, const float* topk_weights) {
    ep::place_choices<Index>(args, topk, topk_weights);
}

extern "C" __global__ void __launch_bounds__(512)
    ep_expand_rows(ep::ExpertRowsArgs args, const int4* source, int4* target, int row_vectors, const float* scales,
                   float* target_scales, int row_scales) {
    ep::expand_rows(args, source, target, row_vectors, scales, target_scales, row_scales);
}

template <typename T>
__global__ void __launch_bounds__(512)
    ep_reduce_choices(ep::ExpertRowsArgs args, const int4* y, int4* out, int row_vectors) {
    ep::reduce_choices<T>(args, y, out, row_vectors);
}
