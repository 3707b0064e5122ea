// 07_combine.cu with its classic mistakes, one each.
#include <moe/common/layout.cuh>
#include <moe/common/notify.cuh>
#include <moe/common/sums.cuh>

#include "07_combine.cuh"

struct CombineArgs {  // as in 07_combine.cu
    Signals signals;
    int4* rows;
    uint32_t* finished_blocks;
    int num_tokens;
    int row_vectors;
    int top_k;
    int experts_per_rank;
};

// Rung 1 with a fused multiply-add, as compilers like to make it of sum + weight * value: it rounds once and not twice.
// More exact, but the last bit differs from every other kernel's.
extern "C" __global__ void combine_fused(CombineArgs args, int4* out, const int* topk_idx, const float* topk_weights,
                                         const int* send_index, const int* first_row) {
    const int hidden = 4 * args.row_vectors, stride = static_cast<int>(gridDim.x) * threads_in_block();
    float* const sums = reinterpret_cast<float*>(out);
    for (int token = blockIdx.x * threads_in_block() + thread_in_block(); token < args.num_tokens; token += stride) {
        for (int i = 0; i < hidden; ++i) {
            float sum = 0.0f;
            for (int r = 0; r < num_ranks(); ++r) {
                const int place = send_index[token * num_ranks() + r];
                if (place < 0) continue;
                const float weight = weight_on(args.top_k, args.experts_per_rank, r, token, topk_idx, topk_weights);
                const int4* const row = row_at(args.rows, r, first_row[r] + place, args.row_vectors);
                sum = fmaf(weight, reinterpret_cast<const float*>(row)[i], sum);
            }
            sums[token * hidden + i] = sum;
        }
    }
    if (is_last_block(args.finished_blocks)) signal_all(args.signals, kSignalPulled);
}

// Rung 4 in which lane 0 announces a group without waiting for the other lanes.
EP_DEVICE void send_groups(const Experts& experts, const Overlap& args) {
    const int groups = num_groups(experts.max_tokens, kGroupRows), warps = args.expert_blocks * warps_in_block();
    int4* const mine = row_of(args.returned, rank() * experts.max_tokens, experts.row_vectors);
    for (int item = warp_in_grid(); item < num_ranks() * groups; item += warps) {
        const int group = item / num_ranks();
        const int owner = (rank() + 1 + item) % num_ranks();
        int4* const rows = row_of(mine, group * kGroupRows, experts.row_vectors);
        if (do_group(experts, owner, group, peer_ptr(rows, owner)) == 0) continue;
        if (lane_id() == 0) signal_group(args.arrived, groups, group, owner, args.epoch);
    }
}

extern "C" __global__ void hurried_signal(Experts experts, Overlap args, int4* out, const int* topk_idx,
                                          const float* topk_weights, const int* send_index) {
    if (static_cast<int>(blockIdx.x) < args.expert_blocks) {
        send_groups(experts, args);
    } else {
        add_up(experts, args, out, topk_idx, topk_weights, send_index);
    }
}
