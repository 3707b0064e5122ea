#include <moe/common/layout.cuh>

extern "C" __global__ void ep_layout(ep::LayoutArgs args, const int* topk_idx, int* slot, int* rank_counts,
                                     int* expert_counts) {
    ep::layout(args, topk_idx, slot, rank_counts, expert_counts);
}
