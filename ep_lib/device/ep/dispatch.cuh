// Dispatch: every token straight into its final rows, on all the ranks that hold its experts.
//
// The counts are known first (<ep/layout.cuh>, <ep/notify.cuh>), so nothing is queued, bounced or sorted on arrival: a
// warp loads a token once and stores it to each destination's row in 16-byte vectors, then every source sends one
// signal to every rank. DeepEP V1 copies through a ring on the peer instead; DeepEP V2 and HybridEP write directly as
// well.
#pragma once
#include <ep/layout.cuh>
#include <ep/notify.cuh>

namespace ep {

struct DispatchArgs {
    Signals signals;
    int4* rows;           // symmetric [ranks * max_tokens, row_vectors]: the receive area
    int* recv_topk;       // symmetric [ranks * max_tokens, top_k]: expert ids as the destination numbers its own, or -1
    float* recv_weights;  // symmetric [ranks * max_tokens, top_k]: 0 where recv_topk is -1
    int2* recv_source;    // symmetric [ranks * max_tokens]: source rank, index of the token there
    uint32_t* finished_blocks;
    int num_tokens;
    int row_vectors;  // 16-byte vectors a row
    int top_k;
    int experts_per_rank;
    int send_routing;  // 0: the receivers have recv_topk and recv_source from an earlier dispatch
};

constexpr int kDispatchVectors = 7;  // in flight a lane: 7 * 32 * 16 bytes = half of a row of 7168 bytes

// What travels beside the row: a few numbers, by the lanes of one warp.
EP_DEVICE void send_routing(const DispatchArgs& args, const Place& place, int token, const int* topk_idx,
                            const float* topk_weights) {
    const int64_t out = static_cast<int64_t>(place.index) * args.top_k, in = static_cast<int64_t>(token) * args.top_k;
    for (int k = lane_id(); k < args.top_k; k += kWarpSize) {
        const int local = topk_idx[in + k] - place.rank * args.experts_per_rank;
        const bool here = local >= 0 && local < args.experts_per_rank;
        if (args.send_routing) peer_ptr(args.recv_topk, place.rank)[out + k] = here ? local : -1;
        if (topk_weights) peer_ptr(args.recv_weights, place.rank)[out + k] = here ? topk_weights[in + k] : 0.0f;
    }
    if (args.send_routing && lane_id() == 0) {
        peer_ptr(args.recv_source, place.rank)[place.index] = make_int2(rank(), token);
    }
}

// Any grid, any whole number of warps; dynamic shared memory: one Place a warp and rank.
//   x             [num_tokens, row_vectors]
//   topk_idx      [num_tokens, top_k]   global expert ids or -1
//   topk_weights  [num_tokens, top_k] or null
//   slot, first_row                     from `layout` and `notify`
EP_DEVICE void dispatch(const DispatchArgs& args, const int4* x, const int* topk_idx, const float* topk_weights,
                        const int* slot, const int* first_row) {
    extern __shared__ Place dispatch_places[];
    Place* const places = dispatch_places + warp_id() * num_ranks();
    if (block_has_fault()) return;

    const int row_vectors = args.row_vectors, num_warps = gridDim.x * warps_in_block();
    for (int token = blockIdx.x * warps_in_block() + warp_id(); token < args.num_tokens; token += num_warps) {
        const int found = find_places(places, token, slot, first_row, args.rows, row_vectors);
        for (int p = 0; p < found; ++p) send_routing(args, places[p], token, topk_idx, topk_weights);

        const int4* const source = x + static_cast<int64_t>(token) * row_vectors;
        for (int first = lane_id(); first < row_vectors; first += kDispatchVectors * kWarpSize) {
            int4 vectors[kDispatchVectors];
#pragma unroll
            for (int u = 0; u < kDispatchVectors; ++u) {
                const int i = first + u * kWarpSize;
                if (i < row_vectors) vectors[u] = ld_nc_v4(source + i);
            }
            for (int p = 0; p < found; ++p) {
                int4* const row = places[p].row;
#pragma unroll
                for (int u = 0; u < kDispatchVectors; ++u) {
                    const int i = first + u * kWarpSize;
                    if (i < row_vectors) st_na_v4(row + i, vectors[u]);
                }
            }
        }
    }

    // Data, then signal. Only the last block waits: all others have left the GPU, so it keeps nobody from running.
    if (!is_last_block(args.finished_blocks)) return;
    signal_all(args.signals, kSignalRows);
    wait_for_all(args.signals, kSignalRows, args.signals.operation, kPhaseDispatch);
}

}  // namespace ep
