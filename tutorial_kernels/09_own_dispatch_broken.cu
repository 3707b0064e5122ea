// The kernels of 09_own_dispatch.cu with their classic mistakes. DELIBERATELY WRONG: for notebooks, tests, the checker.
//
// signal_before_row   says that a row is there, and then sends it
// shuffle_only        tells the other lanes by a shuffle that a row has come, which hands over no memory
#include <09_own_dispatch.cuh>

using namespace ep;

// A warp sends a token to every rank that wants it; below, a warp receives one.
EP_DEVICE void send_signal_first(const own::Dispatch& my, const int4* row, const int* choices, int token) {
    const int64_t slot = own::slot_of(my, rank(), token);
    for (int r = 0; r < num_ranks(); ++r) {
        if (own::wanted_on(my, choices, my.top_k, r) == 0) continue;
        if (lane_id() == 0) signal_set(my.arrived + slot, my.epoch, r);
        put_warp(my.rows + slot * my.row_vectors, row, my.row_vectors * sizeof(int4), r);
    }
}

EP_DEVICE bool receive_by_shuffle(const own::Dispatch& my, int source, int token, uint64_t* bits) {
    const int64_t slot = own::slot_of(my, source, token);
    int ok = 1;
    if (lane_id() == 0) {
        ok = wait_packet(my.routes + slot, my.epoch, bits, {kPhaseLayout, source, token});
        if (ok && *bits) ok = wait_until_ge(my.arrived + slot, my.epoch, {kPhaseDispatch, source, token});
    }
    if (!__shfl_sync(kFullWarp, ok, 0)) return false;
    *bits = __shfl_sync(kFullWarp, *bits, 0);
    for (uint64_t left = *bits; left != 0; left &= left - 1) {
        const int64_t row = (__ffsll(left) - 1) * static_cast<int64_t>(num_ranks()) * my.max_tokens + slot;
        copy_bytes<kWarpUnroll>(my.out + row * my.row_vectors, my.rows + slot * my.row_vectors,
                                my.row_vectors * sizeof(int4), lane_id(), kWarpSize);
    }
    return true;
}

// The dispatch of 09_own_dispatch.cuh with one of the two.
template <bool kSignalFirst>
EP_DEVICE void wrong_dispatch(const own::Dispatch& my, const int4* x, const int* topk_idx) {
    const int first_warp = blockIdx.x * warps_in_block() + warp_id(), all_warps = gridDim.x * warps_in_block();
    const auto choices_of = [&](int token) { return topk_idx + static_cast<int64_t>(token) * my.top_k; };
    for (int token = first_warp; token < my.max_tokens; token += all_warps) {
        own::tell_warp(my, choices_of(token), token < my.num_tokens ? my.top_k : 0, token);
    }
    __syncwarp();  // one lane signals below, and each has told a rank
    for (int token = first_warp; token < my.num_tokens; token += all_warps) {
        const int4* const row = x + static_cast<int64_t>(token) * my.row_vectors;
        if (kSignalFirst) {
            send_signal_first(my, row, choices_of(token), token);
        } else {
            own::send_row_warp(my, row, choices_of(token), my.top_k, token);
        }
    }
    for (int i = first_warp; i < num_ranks() * my.max_tokens; i += all_warps) {
        uint64_t bits = 0;
        const int source = i / my.max_tokens, token = i % my.max_tokens;
        if (!(kSignalFirst ? own::receive_warp(my, source, token, &bits)
                           : receive_by_shuffle(my, source, token, &bits))) {
            return;
        }
        if (lane_id() == 0) my.wanted[i] = bits;
    }
}

extern "C" __global__ void signal_before_row(own::Dispatch my, const int4* x, const int* topk_idx) {
    wrong_dispatch<true>(my, x, topk_idx);
}
extern "C" __global__ void shuffle_only(own::Dispatch my, const int4* x, const int* topk_idx) {
    wrong_dispatch<false>(my, x, topk_idx);
}
