// The kernels of 09_own_dispatch.cu with their classic mistakes. DELIBERATELY WRONG: for notebooks, tests, the checker.
//
// signal_before_row   says that a row is there, and then sends it
// shuffle_only        tells the other lanes by a shuffle that a row has come, which hands over no memory
#include <09_own_dispatch.cuh>

using namespace ep;

EP_DEVICE void tell_all(const own::Dispatch& my, const int* topk_idx) {
    const int first_warp = blockIdx.x * warps_in_block() + warp_id(), all_warps = gridDim.x * warps_in_block();
    for (int token = first_warp; token < my.max_tokens; token += all_warps) {
        own::tell_warp(my, topk_idx + static_cast<int64_t>(token) * my.top_k, token < my.num_tokens ? my.top_k : 0,
                       token);
    }
    __syncwarp();  // every lane has sent its packets before one lane signals below
}

extern "C" __global__ void signal_before_row(own::Dispatch my, const int4* x, const int* topk_idx) {
    const int first_warp = blockIdx.x * warps_in_block() + warp_id(), all_warps = gridDim.x * warps_in_block();
    tell_all(my, topk_idx);
    for (int token = first_warp; token < my.num_tokens; token += all_warps) {
        const int* const choices = topk_idx + static_cast<int64_t>(token) * my.top_k;
        const int64_t slot = own::slot_of(my, rank(), token);
        for (int r = 0; r < num_ranks(); ++r) {
            if (own::wanted_on(my, choices, my.top_k, r) == 0) continue;
            if (lane_id() == 0) signal_set(my.arrived + slot, my.epoch, r);
            put_warp(my.rows + slot * my.row_vectors, x + static_cast<int64_t>(token) * my.row_vectors,
                     my.row_vectors * sizeof(int4), r);
        }
    }
    for (int i = first_warp; i < num_ranks() * my.max_tokens; i += all_warps) {
        uint64_t bits = 0;
        if (!own::receive_warp(my, i / my.max_tokens, i % my.max_tokens, &bits)) return;
        if (lane_id() == 0) my.wanted[i] = bits;
    }
}

extern "C" __global__ void shuffle_only(own::Dispatch my, const int4* x, const int* topk_idx) {
    const int first_warp = blockIdx.x * warps_in_block() + warp_id(), all_warps = gridDim.x * warps_in_block();
    tell_all(my, topk_idx);
    for (int token = first_warp; token < my.num_tokens; token += all_warps) {
        const int* const choices = topk_idx + static_cast<int64_t>(token) * my.top_k;
        own::send_row_warp(my, x + static_cast<int64_t>(token) * my.row_vectors, choices, my.top_k, token);
    }
    for (int slot = first_warp; slot < num_ranks() * my.max_tokens; slot += all_warps) {
        uint64_t bits = 0;
        int ok = 1;
        if (lane_id() == 0) {
            const int source = slot / my.max_tokens, token = slot % my.max_tokens;
            ok = wait_packet(my.routes + slot, my.epoch, &bits, {kPhaseLayout, source, token});
            if (ok && bits) ok = wait_until_ge(my.arrived + slot, my.epoch, {kPhaseDispatch, source, token});
        }
        if (!__shfl_sync(kFullWarp, ok, 0)) return;
        bits = __shfl_sync(kFullWarp, bits, 0);
        for (uint64_t left = bits; left != 0; left &= left - 1) {
            const int64_t row = (__ffsll(left) - 1) * static_cast<int64_t>(num_ranks()) * my.max_tokens + slot;
            copy_bytes<kWarpUnroll>(my.out + row * my.row_vectors, my.rows + slot * my.row_vectors,
                                    my.row_vectors * sizeof(int4), lane_id(), kWarpSize);
        }
        if (lane_id() == 0) my.wanted[slot] = bits;
    }
}
