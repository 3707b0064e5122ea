#include <moe/direct/route.cuh>

template <typename Index>
__global__ void __launch_bounds__(1024)
    ep_route(ep::RouteArgs args, const Index* topk_idx, const float* topk_weights, int* topk_copy, int* slot,
             int* rank_counts, int* choice_counts, int* plan) {
    ep::route<Index>(args, topk_idx, topk_weights, topk_copy, slot, rank_counts, choice_counts, plan);
}
