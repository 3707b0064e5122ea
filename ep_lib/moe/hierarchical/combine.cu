// Combine in hierarchical mode: for each of its partners' tokens, a rank sums its node's rows and sends the sum back; a
// token's rank adds these sums to the rows of its own node.
//
// Sums are float32, and rounded to the rows' type before they are sent, so a token costs a NIC one row for each node.
// The order is fixed, and therefore the bits: within a node in ascending order of ranks, then in ascending order of
// nodes.
//
// With weights of this rank's own tokens, send_weights comes first: it sends a token's weights on the ranks of a node
// through the same rings.
#include <moe/common/sums.cuh>
#include <moe/hierarchical/nodes.cuh>

namespace ep::hierarchical {

struct CombineArgs {
    Rings rings;
    int4* rows;  // symmetric [all ranks' tokens, row_vectors]: a rank's rows of the dispatch, in its order
    int num_tokens;
    int row_vectors;  // 16-byte vectors per row
    int top_k;
    int experts_per_rank;
    int weight_bytes;  // of a token's weights on a node: a multiple of 16
};

// The routing of a dispatch, from exchange_nodes and from the dispatch.
struct NodeRouting {
    const int* topk_idx;       // [num_tokens, top_k]
    const int* send_index;     // [num_tokens, ranks]
    const int* node_index;     // [num_tokens, nodes]
    const int* sends;          // [nodes, channels + 1]
    const int* receives;       // [nodes, channels + 1]
    const int* first_forward;  // [nodes]
    const int* first_rows;     // [ranks of the node, ranks]
    const int* forwards;       // [tokens from partners, ranks of the node]
};

// The tokens that came from one partner in one channel: [begin, end) among the tokens from all partners.
struct Forwarded {
    int begin, end;
};

EP_DEVICE Forwarded forwarded_from(const CombineArgs& args, const NodeRouting& routing, int node, int channel) {
    const int* const counts = routing.receives + node * (args.rings.channels + 1) + channel;
    return {routing.first_forward[node] + counts[0], routing.first_forward[node] + counts[1]};
}

// A row of a rank of this node, as an entry of a list.
EP_DEVICE RowPtr row_of_mate(const CombineArgs& args, int mate, int index, float weight) {
    int4* const row = peer_ptr(args.rows, first_rank_of_node(args.rings) + mate);
    return {row + static_cast<int64_t>(index) * args.row_vectors, mate, index, weight};
}

// Fills messages with sums for one partner; the cursor counts tokens that came from partners.
template <typename T>
struct SumFiller {
    const CombineArgs& args;
    const NodeRouting& routing;
    const float* weights;  // [tokens from partners, weight_bytes / 4] or null
    RowPtr* row_ptrs;
    int channel;

    EP_DEVICE Forwarded tokens(int k) const {
        return forwarded_from(args, routing, node_of(args.rings, receiver_at(args.rings, k)), channel);
    }
    EP_DEVICE int rows(int k) const { return tokens(k).end - tokens(k).begin; }
    EP_DEVICE int first_cursor(int k) const { return tokens(k).begin; }

    EP_DEVICE int fill_warp(char* to, int, int cursor, int rows) const {
        const int lane = lane_id(), mates = ranks_per_node(args.rings);
        for (int i = 0; i < rows; ++i) {
            const int64_t token = cursor + i;
            const int index = lane < mates ? routing.forwards[token * mates + lane] : -1;
            const unsigned votes = __ballot_sync(kFullWarp, index >= 0);
            __syncwarp();  // all lanes have read the previous token's pointers
            if (index >= 0) {
                const float weight = weights ? weights[token * (args.weight_bytes / 4) + lane] : 1.0f;
                row_ptrs[__popc(votes & ((1u << lane) - 1))] = row_of_mate(args, lane, index, weight);
            }
            __syncwarp();  // all lanes may read the pointers
            int4* const sum = reinterpret_cast<int4*>(to) + static_cast<int64_t>(i) * args.row_vectors;
            if (lane == 0) count_piece(kCountCombineRows, __popc(votes));
            add_rows<T>(sum, row_ptrs, __popc(votes), args.row_vectors, lane, kWarpSize);
        }
        return cursor + rows;
    }
};

// A warp adds up all tokens of its channel. Lane n keeps its position in the ring from node n; lane i also looks after the
// row on rank i of this node.
template <typename T>
EP_DEVICE void receive_sums_warp(const CombineArgs& args, const NodeRouting& routing, int channel, RowPtr* row_ptrs,
                                 int4* out, const float* topk_weights) {
    const int me = rank(), nodes = num_nodes(args.rings), mates = ranks_per_node(args.rings), lane = lane_id();
    const int here = node_of(args.rings, me), first = first_rank_of_node(args.rings);
    const int row_bytes = args.row_vectors * 16, rows_per_message = args.rings.slot_bytes / row_bytes;
    const unsigned lanes_below = (1u << lane) - 1, nodes_below = (1u << here) - 1;
    const bool has_ring = lane < nodes && lane != here;
    const int k = (here + nodes - lane) % nodes;
    Incoming in = {};
    if (has_ring) {
        const int* const counts = routing.sends + lane * (args.rings.channels + 1) + channel;
        in = incoming_at(args.rings, channel, k, counts[1] - counts[0]);
    }
    const int end = channel_begin(args.num_tokens, channel + 1, args.rings.channels);
    for (int token = channel_begin(args.num_tokens, channel, args.rings.channels); token < end; ++token) {
        const int64_t t = token;
        const bool from_ring = has_ring && routing.node_index[t * nodes + lane] >= 0;
        int failed = 0;
        if (from_ring && in.row == 0) failed = !ring_wait_for_message(in.ring, in.message, kPhaseCombine);
        if (__any_sync(kFullWarp, failed)) return;

        const int s = lane < mates ? routing.send_index[t * num_ranks() + first + lane] : -1;
        const unsigned others = __ballot_sync(kFullWarp, from_ring), rows_here = __ballot_sync(kFullWarp, s >= 0);
        if (s >= 0) {
            const float weight = topk_weights ? weight_on(args.top_k, args.experts_per_rank, first + lane, token,
                                                          routing.topk_idx, topk_weights)
                                              : 1.0f;
            row_ptrs[__popc(others & nodes_below) + __popc(rows_here & lanes_below)] =
                row_of_mate(args, lane, routing.first_rows[lane * num_ranks() + me] + s, weight);
        }
        if (from_ring) {
            const int before = __popc(others & lanes_below) + (lane > here ? __popc(rows_here) : 0);
            char* const row = ring_received(in.ring, in.message) + static_cast<size_t>(in.row) * row_bytes;
            row_ptrs[before] = {reinterpret_cast<int4*>(row), lane, token, 1.0f};
        }
        __syncwarp();  // all lanes may read the pointers, and the messages that one lane acquired
        const int found = __popc(others) + __popc(rows_here);
        if (lane == 0) count_piece(kCountCombineRows, found);
        add_rows<T>(out + t * args.row_vectors, row_ptrs, found, args.row_vectors, lane, kWarpSize);
        __syncwarp();  // all lanes have read: slots may be given back, and pointers written again
        if (from_ring) {
            --in.left;
            if (++in.row == rows_per_message || in.left == 0) {
                ring_return_credit(in.ring);
                in.row = 0;
                ++in.message;
            }
        }
    }
    if (has_ring) args.rings.taken[ring_index(args.rings, channel, k)] = in.message;
}

// Blocks: those of work_of_warp that send and receive; up to kWarps warps. Behind a `node_barrier`: the rows of all ranks
// of the node are there.
//   weights       [tokens from partners, weight_bytes / 4], from send_weights, or null: all are 1
//   topk_weights  [num_tokens, top_k], the same of this rank's own tokens
template <typename T>
EP_DEVICE void combine(const CombineArgs& args, const NodeRouting& routing, int4* out, const float* weights,
                       const float* topk_weights) {
    __shared__ SendState shared;
    __shared__ RowPtr pointers[kWarps][kMaxRanksPerNode + kMaxNodes - 1];
    if (block_has_fault()) return;
    const Work work = work_of_warp(args.rings);
    const int channel = work.role.channel;
    RowPtr* const row_ptrs = pointers[warp_id()];
    if (work.task == Task::kSend) {
        const SumFiller<T> filler = {args, routing, weights, row_ptrs, channel};
        send_all(args.rings, work.role, args.row_vectors * 16, &shared, filler);
    } else if (work.task == Task::kReceive) {
        receive_sums_warp<T>(args, routing, channel, row_ptrs, out, topk_weights);
    }
}

// ---- Weights of the tokens on the ranks of other nodes ---------------------------------------------------------------

// Fills messages with the weights of a channel's tokens on the ranks of the ring's node; the cursor is a token.
struct WeightFiller {
    const CombineArgs& args;
    const NodeRouting& routing;
    const float* topk_weights;
    int channel;

    EP_DEVICE int node(int k) const { return node_of(args.rings, receiver_at(args.rings, k)); }
    EP_DEVICE int rows(int k) const {
        const int* const counts = routing.sends + node(k) * (args.rings.channels + 1) + channel;
        return counts[1] - counts[0];
    }
    EP_DEVICE int first_cursor(int) const { return channel_begin(args.num_tokens, channel, args.rings.channels); }

    EP_DEVICE int fill_warp(char* to, int k, int cursor, int rows) const {
        const int to_node = node(k), nodes = num_nodes(args.rings), mates = ranks_per_node(args.rings);
        for (int filled = 0; filled < rows; ++cursor) {
            if (routing.node_index[static_cast<int64_t>(cursor) * nodes + to_node] < 0) continue;
            float* const weights = reinterpret_cast<float*>(to + static_cast<size_t>(filled++) * args.weight_bytes);
            for (int i = lane_id(); i < mates; i += kWarpSize) {
                weights[i] = weight_on(args.top_k, args.experts_per_rank, to_node * mates + i, cursor, routing.topk_idx,
                                       topk_weights);
            }
        }
        return cursor;
    }
};

struct WeightTaker {
    const CombineArgs& args;
    char* weights;
    int first_token;

    EP_DEVICE void take_warp(char* from, int first, int rows) const {
        copy_row_warp(weights + static_cast<int64_t>(first_token + first) * args.weight_bytes, from,
                      rows * args.weight_bytes);
    }
};

// Blocks as in combine.
//   weights  [tokens from partners, weight_bytes / 4]   out
EP_DEVICE void send_weights(const CombineArgs& args, const NodeRouting& routing, float* weights,
                            const float* topk_weights) {
    __shared__ SendState shared;
    if (block_has_fault()) return;
    const Work work = work_of_warp(args.rings);
    const int channel = work.role.channel;
    if (work.task == Task::kSend) {
        send_all(args.rings, work.role, args.weight_bytes, &shared, WeightFiller{args, routing, topk_weights, channel});
        return;
    }
    for (int k = 1; work.task == Task::kReceive && k < num_nodes(args.rings); ++k) {
        const int node = node_of(args.rings, sender_at(args.rings, k));
        const Forwarded tokens = forwarded_from(args, routing, node, channel);
        const WeightTaker taker = {args, reinterpret_cast<char*>(weights), tokens.begin};
        if (!receive_all_warp(args.rings, channel, k, args.weight_bytes, tokens.end - tokens.begin, kPhaseCombine,
                              taker)) {
            return;
        }
    }
}

}  // namespace ep::hierarchical

template <typename T>
__global__ void __launch_bounds__(256)
    ep_hierarchical_combine(ep::hierarchical::CombineArgs args, ep::hierarchical::NodeRouting routing, int4* out,
                            const float* weights, const float* topk_weights) {
    ep::hierarchical::combine<T>(args, routing, out, weights, topk_weights);
}

extern "C" __global__ void __launch_bounds__(256)
    ep_hierarchical_send_weights(ep::hierarchical::CombineArgs args, ep::hierarchical::NodeRouting routing,
                                 float* weights, const float* topk_weights) {
    ep::hierarchical::send_weights(args, routing, weights, topk_weights);
}
