#include <moe/common/layout.cuh>

extern "C" __global__ void ep_get_dispatch_layout(ep::LayoutArgs args, const int* topk_idx, int* send_index,
                                                  int* rank_counts, int* expert_counts) {
    ep::get_dispatch_layout(args, topk_idx, send_index, rank_counts, expert_counts);
}
