// Dispatch in hierarchical mode: a token is sent once to the partner in each node that it goes to, which stores it to its
// final rows there; on its own node its rank does that.
//
// A packet is one token for one node: its row, the scales of an FP8 row, then for each rank of that node how many
// earlier tokens of the source go there (or -1), expert ids, weights, and the token's number at the source. The partner
// knows where the source's rows begin on each rank of its node (exchange_nodes.cu), so rows end up sorted by source,
// then by token. It remembers the rows of each token, for combines and for dispatches by handle, whose packets are
// shorter.
#include <moe/hierarchical/nodes.cuh>

namespace ep::hierarchical {

// Where rows arrive: symmetric, [all ranks' tokens, ...]. Null: not wanted.
struct ReceiveArea {
    char* rows;
    float* scales;
    int* topk;  // experts as their rank numbers them, or -1
    float* weights;
    int2* source;  // rank, token
};

struct DispatchArgs {
    Rings rings;
    ReceiveArea area;
    int num_tokens;
    int row_bytes;     // a multiple of 16
    int scale_bytes;   // of one row; 0: no scales
    int packet_bytes;  // of the whole packet, rounded up to a multiple of 16
    int top_k;         // 0: the receiver has ids and numbers from an earlier dispatch, and no weights travel
    int experts_per_rank;
    int with_routing;  // 1: the partner learns which rows each token has. Only with top_k
    int with_weights;  // 1: weights travel. A rank without tokens has no array of its own, but passes on other ranks'
};

// One token, wherever it lies: in the caller's arrays, or in a packet.
struct Token {
    char* row;
    float* scales;
    int* topk;       // global expert ids or -1
    float* weights;  // or null
    int number;      // its index at its source
};

// One rank's tokens.
struct Tokens {
    char* rows;      // [num_tokens, row_bytes]
    float* scales;   // [num_tokens, scale_bytes / 4] or null
    int* topk_idx;   // [num_tokens, top_k]
    float* weights;  // [num_tokens, top_k], with args.with_weights
};

struct Packet {
    Token token;
    int* send_index;  // [ranks of the node]
    int* number;
};

EP_DEVICE Packet packet_at(const DispatchArgs& args, char* begin) {
    char* const scales = begin + args.row_bytes;
    int* const send_index = reinterpret_cast<int*>(scales + args.scale_bytes);
    int* const topk = send_index + (args.with_routing ? ranks_per_node(args.rings) : 0);
    float* const weights = reinterpret_cast<float*>(topk + args.top_k);
    int* const number = topk + (args.with_weights ? 2 : 1) * args.top_k;
    return {
        {begin, reinterpret_cast<float*>(scales), topk, args.with_weights ? weights : nullptr, 0}, send_index, number};
}

EP_DEVICE Token token_at(const DispatchArgs& args, const Tokens& tokens, int token) {
    const int64_t t = token;
    return {tokens.rows + t * args.row_bytes, tokens.scales + t * (args.scale_bytes / 4),
            tokens.topk_idx + t * args.top_k, args.with_weights ? tokens.weights + t * args.top_k : nullptr, token};
}

// A warp stores one token of `source` to its rows in this node: the row is loaded once. Lane i has the row on rank i of
// the node, or -1. `row_ptrs` is the warp's own, with room for a node.
EP_DEVICE void store_token_warp(const DispatchArgs& args, const Token& token, int source, int my_row,
                                RowPtr* row_ptrs) {
    const int lane = lane_id(), first = first_rank_of_node(args.rings), vectors = args.row_bytes / 16;
    const unsigned votes = __ballot_sync(kFullWarp, my_row >= 0);
    const int found = __popc(votes);
    __syncwarp();  // all lanes have read the previous token's pointers
    if (my_row >= 0) {
        char* const row = peer_ptr(args.area.rows, first + lane) + static_cast<int64_t>(my_row) * args.row_bytes;
        row_ptrs[__popc(votes & ((1u << lane) - 1))] = {reinterpret_cast<int4*>(row), first + lane, my_row, 1.0f};
    }
    __syncwarp();  // all lanes may read the pointers
    if (lane == 0) count_piece(kCountDispatchRows, found);

    const int4* const from = reinterpret_cast<const int4*>(token.row);
    for (int i = lane; i < vectors; i += kWarpSize * kWarpUnroll) {
        int4 loaded[kWarpUnroll];
#pragma unroll
        for (int u = 0; u < kWarpUnroll; ++u) {
            if (i + u * kWarpSize < vectors) loaded[u] = ld_na_v4(from + i + u * kWarpSize);
        }
        for (int p = 0; p < found; ++p) {
            int4* const row = row_ptrs[p].row;
#pragma unroll
            for (int u = 0; u < kWarpUnroll; ++u) {
                if (i + u * kWarpSize < vectors) st_na_v4(row + i + u * kWarpSize, loaded[u]);
            }
        }
    }
    const int num_scales = args.scale_bytes / 4;
    for (int p = 0; p < found; ++p) {
        const RowPtr to = row_ptrs[p];
        const int64_t row = to.index;
        for (int i = lane; i < num_scales; i += kWarpSize) {
            peer_ptr(args.area.scales, to.rank)[row * num_scales + i] = token.scales[i];
        }
        for (int k = lane; k < args.top_k; k += kWarpSize) {
            const int local = token.topk[k] - to.rank * args.experts_per_rank;
            const bool here = local >= 0 && local < args.experts_per_rank;
            if (args.with_routing) peer_ptr(args.area.topk, to.rank)[row * args.top_k + k] = here ? local : -1;
            if (token.weights) {
                peer_ptr(args.area.weights, to.rank)[row * args.top_k + k] = here ? token.weights[k] : 0.0f;
            }
        }
        if (lane == 0 && args.with_routing) peer_ptr(args.area.source, to.rank)[row] = make_int2(source, token.number);
    }
}

// Fills messages with a channel's tokens for the ring's node; the cursor is a token.
struct TokenFiller {
    const DispatchArgs& args;
    const Tokens& tokens;
    const int* send_index;  // [num_tokens, ranks]
    const int* node_index;  // [num_tokens, nodes]
    const int* sends;       // [nodes, channels + 1]
    int channel;

    EP_DEVICE int node(int k) const { return node_of(args.rings, receiver_at(args.rings, k)); }
    EP_DEVICE int rows(int k) const {
        const int* const counts = sends + node(k) * (args.rings.channels + 1) + channel;
        return counts[1] - counts[0];
    }
    EP_DEVICE int first_cursor(int) const { return channel_begin(args.num_tokens, channel, args.rings.channels); }

    EP_DEVICE void pack_warp(char* to, int number, int node) const {
        const Token token = token_at(args, tokens, number);
        const Packet packet = packet_at(args, to);
        const int num_scales = args.scale_bytes / 4, lane = lane_id(), mates = ranks_per_node(args.rings);
        copy_row_warp(packet.token.row, token.row, args.row_bytes);
        for (int i = lane; i < num_scales; i += kWarpSize) packet.token.scales[i] = token.scales[i];
        for (int k = lane; k < args.top_k; k += kWarpSize) {
            packet.token.topk[k] = token.topk[k];
            if (token.weights) packet.token.weights[k] = token.weights[k];
        }
        if (args.with_routing && lane < mates) {
            packet.send_index[lane] = send_index[static_cast<int64_t>(number) * num_ranks() + node * mates + lane];
        }
        if (lane == 0 && args.top_k > 0) *packet.number = number;
    }

    EP_DEVICE int fill_warp(char* to, int k, int cursor, int rows) const {
        const int to_node = node(k), nodes = num_nodes(args.rings);
        for (int filled = 0; filled < rows;) {  // the counts guarantee that all are before the channel's end
            const int t = cursor + lane_id();
            const bool goes = t < args.num_tokens && node_index[static_cast<int64_t>(t) * nodes + to_node] >= 0;
            unsigned votes = __ballot_sync(kFullWarp, goes);
            for (; votes && filled < rows; votes &= votes - 1, ++filled) {
                const int token = cursor + __ffs(votes) - 1;
                pack_warp(to + static_cast<size_t>(filled) * args.packet_bytes, token, to_node);
                if (filled + 1 == rows) return token + 1;
            }
            cursor += kWarpSize;
        }
        return cursor;
    }
};

// Stores the tokens of one partner to their rows in this node; those of this channel are number `first_token` and
// following of all that come from partners.
struct TokenTaker {
    const DispatchArgs& args;
    RowPtr* row_ptrs;
    int* forwards;          // [tokens from partners, ranks of the node]: their rows, or -1
    const int* first_rows;  // [ranks of the node, ranks]
    int source;
    int first_token;

    EP_DEVICE void take_warp(char* from, int first, int rows) const {
        const int lane = lane_id(), mates = ranks_per_node(args.rings);
        for (int i = 0; i < rows; ++i) {
            Packet packet = packet_at(args, from + static_cast<size_t>(i) * args.packet_bytes);
            int* const forward = forwards + static_cast<int64_t>(first_token + first + i) * mates;
            int row = -1;
            if (lane < mates && args.with_routing) {
                const int s = packet.send_index[lane];
                row = s < 0 ? -1 : first_rows[lane * num_ranks() + source] + s;
                forward[lane] = row;
            } else if (lane < mates) {
                row = forward[lane];
            }
            packet.token.number = args.top_k > 0 ? *packet.number : -1;
            store_token_warp(args, packet.token, source, row, row_ptrs);
        }
    }
};

// Stores this rank's tokens to their rows in its own node.
EP_DEVICE void store_own_tokens_warp(const DispatchArgs& args, const Work& work, const Tokens& tokens,
                                     const int* send_index, const int* first_rows, RowPtr* row_ptrs) {
    const int lane = lane_id(), mates = ranks_per_node(args.rings), first = first_rank_of_node(args.rings);
    for (int t = work.warp; t < args.num_tokens; t += work.warps) {
        int row = -1;
        if (lane < mates) {
            const int s = send_index[static_cast<int64_t>(t) * num_ranks() + first + lane];
            if (s >= 0) row = first_rows[lane * num_ranks() + rank()] + s;
        }
        store_token_warp(args, token_at(args, tokens, t), rank(), row, row_ptrs);
    }
}

// Blocks: see work_of_warp; up to kWarps warps. `send_index` is from <moe/common/layout.cuh>, the others from
// exchange_nodes. `node_barrier` comes behind it: then all rows of this node are there.
EP_DEVICE void dispatch(const DispatchArgs& args, const Tokens& tokens, const int* send_index, const int* node_index,
                        const int* sends, const int* receives, const int* first_forward, const int* first_rows,
                        int* forwards) {
    __shared__ SendState shared;
    __shared__ RowPtr pointers[kWarps][kMaxRanksPerNode];
    if (block_has_fault()) return;
    const Work work = work_of_warp(args.rings);
    RowPtr* const row_ptrs = pointers[warp_id()];
    if (work.task == Task::kSend) {
        const TokenFiller filler = {args, tokens, send_index, node_index, sends, work.role.channel};
        send_all(args.rings, work.role, args.packet_bytes, &shared, filler);
    } else if (work.task == Task::kLocal) {
        store_own_tokens_warp(args, work, tokens, send_index, first_rows, row_ptrs);
    } else {
        const int channel = work.role.channel;
        for (int k = 1; k < num_nodes(args.rings); ++k) {
            const int source = sender_at(args.rings, k), node = node_of(args.rings, source);
            const int* const counts = receives + node * (args.rings.channels + 1) + channel;
            const TokenTaker taker = {args, row_ptrs, forwards, first_rows, source, first_forward[node] + counts[0]};
            if (!receive_all_warp(args.rings, channel, k, args.packet_bytes, counts[1] - counts[0], kPhaseDispatch,
                                  taker)) {
                return;
            }
        }
    }
}

}  // namespace ep::hierarchical

extern "C" __global__ void __launch_bounds__(256)
    ep_hierarchical_dispatch(ep::hierarchical::DispatchArgs args, ep::hierarchical::Tokens tokens,
                             const int* send_index, const int* node_index, const int* sends, const int* receives,
                             const int* first_forward, const int* first_rows, int* forwards) {
    ep::hierarchical::dispatch(args, tokens, send_index, node_index, sends, receives, first_forward, first_rows,
                               forwards);
}
