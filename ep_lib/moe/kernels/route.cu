#include <ep/route.cuh>

template <typename Index>
__global__ void __launch_bounds__(1024)
    ep_route(ep::RouteArgs args, const Index* topk_idx, int* slot, int* rank_counts, int* expert_counts, int* plan) {
    ep::route(args, topk_idx, slot, rank_counts, expert_counts, plan);
}
