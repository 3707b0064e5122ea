// Low-latency dispatch: a token crosses once to each rank that holds its experts, and is spread to them there.
//
// Sender, a block a token: first the token's expert ids go to all ranks in packets (<ep/packet.cuh>: no order needed),
// then the row, cast to FP8 on its way, to slot (this rank, token) of each rank that needs it, then one flag a row.
//
// Receiver, the same blocks: from the ids of all tokens, which arrive first, every block works out the places of a few
// rows, while these are still on their way: the rows of an expert are sorted by source rank, then by token, so places
// are the same on every run. An atomic counter would be simpler, but the order, and with it the bits of any later sum,
// would change from run to run. Then warps wait for one row's flag each and copy the row to its experts.
//
// DeepEP's low-latency kernels send a token once for each expert; with 8 experts on 4 ranks that is 2.2 times the bytes.
#pragma once
#include <moe/low_latency/scatter.cuh>

namespace ep {

// Any grid whose blocks all run at once, any whole number of warps; dynamic shared memory as above. kHalves: kSends,
// kReceives or both.
//   x         [num_tokens, row_vectors]   bfloat16; kFp8: hidden is a multiple of 128
//   topk_idx  [num_tokens, top_k]         global expert ids; everything else means "not routed"
//   topk_weights  [num_tokens, top_k] or null   given here, the combine need not send them first
template <bool kFp8, int kHalves, typename Index>
EP_DEVICE void low_latency_dispatch(const LowLatencyDispatchArgs& args, const LowLatencyArrivals& arrivals,
                                    const int4* x, const Index* topk_idx, const float* topk_weights) {
    const LowLatencyArgs& common = args.common;
    const Share sending = sending_share<kHalves>(common.role_blocks, common.send_blocks);
    const Share receiving = receiving_share<kHalves>(common.role_blocks, common.send_blocks);
    const Share routing = kHalves == kReceives ? Share{0, 0} : receiving.count ? receiving : sending;
    // What is needed first is asked for all at once: a trip to memory takes as long as a tenth of the rows.
    int expert = -1, first_expert = -1;
    detail::Piece<kFp8> piece;
    if (sending.count) {
        first_expert = load_choice(common, topk_idx, sending.index);
        if (sending.index < common.num_tokens) {
            piece.load(x + static_cast<int64_t>(sending.index) * common.row_vectors, thread_in_block(),
                       kFp8 ? common.row_vectors / 2 : common.row_vectors);
        }
    }
    if (routing.count) expert = load_choice(common, topk_idx, routing.index + warp_id() * routing.count);
    const uint64_t operation = operation_number(common, kLowLatencyDispatch, kHalves & kSends ? kSends : kReceives);
    const FirstLook look = look_at_credits(common, kLowLatencyDispatch);
    const int turn = static_cast<int>(operation % kTurns);
    __shared__ uint8_t masked[kMaxRanks];
    give_credits(common);
    if (kHalves & kSends) {
        if (!wait_for_credits(common, kLowLatencyDispatch, operation, look, masked)) return;
    } else {
        note_masks(common, masked);
    }
    // Ids are from those who have time: where some blocks only receive, from them.
    if (routing.count) {
        detail::send_routes(args, topk_idx, topk_weights, expert, routing, operation, turn, masked);
    }
    if (sending.count) {
        detail::send_rows<kFp8>(args, x, topk_idx, first_expert, piece, sending, operation, turn, masked);
    }
    if (receiving.count && !detail::receive_rows<kFp8>(args, arrivals, receiving, operation, turn, masked)) return;
    if (thread_in_block() == 0) finish_operation(common, kLowLatencyDispatch, kHalves);
}

}  // namespace ep
