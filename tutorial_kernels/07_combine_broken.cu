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
// More exact, and in the last bit another result than everybody else's.
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

// Rung 4 in which a group is announced before it is there.
extern "C" __global__ void signal_before_rows(Experts experts, Overlap args, int4* out, const int* topk_idx,
                                              const float* topk_weights, const int* send_index) {
    const int me = rank(), ranks = num_ranks(), groups = num_groups(experts.max_tokens, kGroupRows);
    const int vectors = experts.row_vectors;
    if (static_cast<int>(blockIdx.x) < args.expert_blocks) {
        const int warps = args.expert_blocks * warps_in_block();
        for (int item = warp_in_grid(); item < ranks * groups; item += warps) {
            const int owner = (me + 1 + item) % ranks, group = item / ranks;
            const int64_t place = static_cast<int64_t>(me) * experts.max_tokens + group * kGroupRows;
            if (lane_id() == 0) signal_group(args.arrived, groups, group, owner, args.epoch);
            do_group(experts, owner, group, peer_ptr(row_of(args.returned, place, vectors), owner));
        }
        return;
    }
    const int first = warp_in_grid() - args.expert_blocks * warps_in_block();
    const int warps = warps_in_grid() - args.expert_blocks * warps_in_block();
    for (int token = first; token < args.num_tokens; token += warps) {
        for (int r = 0; r < ranks; ++r) {
            const int place = send_index[token * ranks + r];
            if (place < 0) continue;
            const int group = place / kGroupRows;
            if (!wait_until_ge_warp(args.arrived + r * groups + group, args.epoch, {kPhaseCombine, r, group})) return;
            const int4* const row =
                row_of(args.returned, static_cast<int64_t>(r) * experts.max_tokens + place, vectors);
            for (int i = lane_id(); i < vectors; i += kWarpSize) {
                Sums<float> sums;
                sums.add(row_of(out, token, vectors)[i]);
                sums.add(row[i], weight_on(args.top_k, args.experts_per_rank, r, token, topk_idx, topk_weights));
                row_of(out, token, vectors)[i] = sums.rounded();
            }
        }
    }
}
