// The metadata that dispatch sends beside rows. <moe/direct/dispatch_bulk.cu> sends the rows;
// tutorial_kernels/06_dispatch.cu has the simple kernels that the course begins with.
#pragma once
#include <moe/common/layout.cuh>

namespace ep {

struct DispatchArgs {
    int4* rows;           // symmetric [ranks * max_tokens, row_vectors]: the receive area
    int* recv_topk;       // symmetric [ranks * max_tokens, top_k]: the destination's local expert ids, or -1
    float* recv_weights;  // symmetric [ranks * max_tokens, top_k]: 0 where recv_topk is -1
    int2* recv_source;    // symmetric [ranks * max_tokens]: source rank, index of the token there
    int num_tokens;
    int row_vectors;  // 16-byte vectors per row
    int top_k;
    int experts_per_rank;
    int send_routing;  // 0: the receivers have recv_topk and recv_source from an earlier dispatch
};

// Sends a row's metadata, a few numbers, by the lanes of one warp.
EP_DEVICE void send_routing(const DispatchArgs& args, const RowPtr& to, int token, const int* topk_idx,
                            const float* topk_weights) {
    const int64_t out = static_cast<int64_t>(to.index) * args.top_k, in = static_cast<int64_t>(token) * args.top_k;
    for (int k = lane_id(); k < args.top_k; k += kWarpSize) {
        const int local = topk_idx[in + k] - to.rank * args.experts_per_rank;
        const bool here = local >= 0 && local < args.experts_per_rank;
        if (args.send_routing) peer_ptr(args.recv_topk, to.rank)[out + k] = here ? local : -1;
        if (topk_weights) peer_ptr(args.recv_weights, to.rank)[out + k] = here ? topk_weights[in + k] : 0.0f;
    }
    if (args.send_routing && lane_id() == 0) {
        peer_ptr(args.recv_source, to.rank)[to.index] = make_int2(rank(), token);
    }
}

}  // namespace ep
