#include <moe/direct/copy_epilogue.cuh>

template <typename Index>
__global__ void __launch_bounds__(512) ep_unpack(ep::UnpackArgs args, const int* plan, int4* x, float* scales,
                                                 Index* topk, float* weights, int* src_rank, int* src_token) {
    ep::unpack<Index>(args, plan, x, scales, topk, weights, src_rank, src_token);
}
