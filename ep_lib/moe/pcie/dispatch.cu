// Dispatch in PCIe mode: tokens leave through the rings of their channel and are copied to their final rows on arrival.
//
// A packet is one token for one rank: its row, the scales of an FP8 row, expert ids, weights, and its number at the
// source. Each channel sends a contiguous range of tokens to each destination in token order, and the receiver knows
// from exchange_counts.cu where its rows begin, so rows end up sorted by source, then by token, whatever the timing.
#include <moe/pcie/rings.cuh>

namespace ep::pcie {

struct DispatchArgs {
    Rings rings;
    int num_tokens;
    int row_bytes;     // a multiple of 16
    int scale_bytes;   // of one row; 0: no scales
    int packet_bytes;  // of the whole packet, rounded up to a multiple of 16
    int top_k;         // 0: the receiver has ids and numbers from an earlier dispatch, and no weights travel
    int experts_per_rank;
};

// Where a packet's parts are: at the sender in staging, at the receiver in a slot.
struct Packet {
    char* row;
    float* scales;
    int* topk;       // the destination's local expert ids, or -1
    float* weights;  // 0 where topk is -1
    int* token;
};

EP_DEVICE Packet packet_at(const DispatchArgs& args, char* begin) {
    char* const scales = begin + args.row_bytes;
    int* const topk = reinterpret_cast<int*>(scales + args.scale_bytes);
    return {begin, reinterpret_cast<float*>(scales), topk, reinterpret_cast<float*>(topk + args.top_k),
            topk + 2 * args.top_k};
}

// One rank's tokens.
struct Tokens {
    const char* rows;      // [num_tokens, row_bytes]
    const float* scales;   // [num_tokens, scale_bytes / 4] or null
    const int* topk_idx;   // [num_tokens, top_k]   global expert ids or -1
    const float* weights;  // [num_tokens, top_k] or null
};

// The arrays for N arriving rows. Null: not wanted.
struct Arrivals {
    char* rows;      // [N, row_bytes]
    float* scales;   // [N, scale_bytes / 4]
    int* topk;       // [N, top_k]
    float* weights;  // [N, top_k]
    int2* source;    // [N]   rank, token
};

// A warp writes one token's packet for `destination`.
EP_DEVICE void pack_warp(const DispatchArgs& args, const Packet& packet, const Tokens& tokens, int token,
                         int destination) {
    const int num_scales = args.scale_bytes / 4, lane = lane_id();
    const int64_t t = token;
    copy_row_warp(packet.row, tokens.rows + t * args.row_bytes, args.row_bytes);
    for (int i = lane; i < num_scales; i += kWarpSize) packet.scales[i] = tokens.scales[t * num_scales + i];
    for (int k = lane; k < args.top_k; k += kWarpSize) {
        const int local = tokens.topk_idx[t * args.top_k + k] - destination * args.experts_per_rank;
        const bool here = local >= 0 && local < args.experts_per_rank;
        packet.topk[k] = here ? local : -1;
        packet.weights[k] = here && tokens.weights ? tokens.weights[t * args.top_k + k] : 0.0f;
    }
    if (lane == 0 && args.top_k > 0) *packet.token = token;
}

// A warp copies one packet to its final row.
EP_DEVICE void copy_out_warp(const DispatchArgs& args, const Packet& packet, const Arrivals& arrivals, int source,
                             int row) {
    const int num_scales = args.scale_bytes / 4, lane = lane_id();
    const int64_t r = row;
    copy_row_warp(arrivals.rows + r * args.row_bytes, packet.row, args.row_bytes);
    for (int i = lane; i < num_scales; i += kWarpSize) arrivals.scales[r * num_scales + i] = packet.scales[i];
    for (int k = lane; k < args.top_k; k += kWarpSize) {
        if (arrivals.topk) arrivals.topk[r * args.top_k + k] = packet.topk[k];
        if (arrivals.weights) arrivals.weights[r * args.top_k + k] = packet.weights[k];
    }
    if (lane == 0 && arrivals.source) arrivals.source[row] = make_int2(source, *packet.token);
}

// Fills messages with a channel's tokens for the ring's destination; the cursor is a token.
struct TokenFiller {
    const DispatchArgs& args;
    const Tokens& tokens;
    const int* send_index;  // [num_tokens, ranks]
    const int* sends;       // [ranks, channels + 1]
    int channel;

    EP_DEVICE int rows(int k) const {
        const int* const counts = sends + receiver_at(args.rings, k) * (args.rings.channels + 1) + channel;
        return counts[1] - counts[0];
    }
    EP_DEVICE int first_cursor(int) const { return channel_begin(args.num_tokens, channel, args.rings.channels); }

    EP_DEVICE int fill_warp(char* to, int k, int cursor, int rows) const {
        const int destination = receiver_at(args.rings, k);
        for (int filled = 0; filled < rows;) {  // the counts guarantee that all are before the channel's end
            const int t = cursor + lane_id();
            const bool goes =
                t < args.num_tokens && send_index[static_cast<int64_t>(t) * num_ranks() + destination] >= 0;
            unsigned votes = __ballot_sync(kFullWarp, goes);
            for (; votes && filled < rows; votes &= votes - 1, ++filled) {
                const int token = cursor + __ffs(votes) - 1;
                const Packet packet = packet_at(args, to + static_cast<size_t>(filled) * args.packet_bytes);
                pack_warp(args, packet, tokens, token, destination);
                if (filled + 1 == rows) return token + 1;
            }
            cursor += kWarpSize;
        }
        return cursor;
    }
};

// Copies rows out of the messages of one source; its rows of this channel begin at `first_row`.
struct RowTaker {
    const DispatchArgs& args;
    const Arrivals& arrivals;
    int source;
    int first_row;

    EP_DEVICE void take_warp(char* from, int first, int rows) const {
        for (int i = 0; i < rows; ++i) {
            const Packet packet = packet_at(args, from + static_cast<size_t>(i) * args.packet_bytes);
            copy_out_warp(args, packet, arrivals, source, first_row + first + i);
        }
    }
};

// A rank's own tokens go to their rows directly: that is a copy, not communication. Sending warps share the work.
EP_DEVICE void copy_own_rows(const DispatchArgs& args, const Role& role, const Tokens& tokens, const Arrivals& arrivals,
                             const int* send_index, const int* first_row) {
    const int me = rank(), end = channel_begin(args.num_tokens, role.channel + 1, args.rings.channels);
    int token = channel_begin(args.num_tokens, role.channel, args.rings.channels) + role.warp;
    for (; token < end; token += role.warps) {
        const int s = send_index[static_cast<int64_t>(token) * num_ranks() + me];
        if (s < 0) continue;
        const int64_t row = first_row[me] + s, t = token;
        const int num_scales = args.scale_bytes / 4, lane = lane_id();
        copy_row_warp(arrivals.rows + row * args.row_bytes, tokens.rows + t * args.row_bytes, args.row_bytes);
        for (int i = lane; i < num_scales; i += kWarpSize) {
            arrivals.scales[row * num_scales + i] = tokens.scales[t * num_scales + i];
        }
        for (int k = lane; k < args.top_k; k += kWarpSize) {
            const int local = tokens.topk_idx[t * args.top_k + k] - me * args.experts_per_rank;
            const bool here = local >= 0 && local < args.experts_per_rank;
            if (arrivals.topk) arrivals.topk[row * args.top_k + k] = here ? local : -1;
            if (arrivals.weights) {
                arrivals.weights[row * args.top_k + k] = here ? tokens.weights[t * args.top_k + k] : 0.0f;
            }
        }
        if (lane == 0 && arrivals.source) arrivals.source[row] = make_int2(me, token);
    }
}

// Blocks: 2 per channel, or 1 if merged. A whole number of warps, an even one if merged. `send_index` is from
// <moe/common/layout.cuh>, the others from exchange_counts: sends and receives [ranks, channels + 1], first_row [ranks].
EP_DEVICE void dispatch(const DispatchArgs& args, const Tokens& tokens, const Arrivals& arrivals, const int* send_index,
                        const int* sends, const int* receives, const int* first_row) {
    __shared__ SendShared shared;
    if (block_has_fault()) return;
    const Role role = role_of_warp(args.rings);
    if (role.sends) {
        const TokenFiller filler = {args, tokens, send_index, sends, role.channel};
        if (!send_all_warp(args.rings, role, args.packet_bytes, shared.outgoing, shared.chunks + warp_id(), filler))
            return;
        copy_own_rows(args, role, tokens, arrivals, send_index, first_row);
        return;
    }
    for (int k = 1 + role.warp; k < num_ranks(); k += role.warps) {
        const int source = sender_at(args.rings, k);
        const int* const counts = receives + source * (args.rings.channels + 1) + role.channel;
        const RowTaker taker = {args, arrivals, source, first_row[source] + counts[0]};
        if (!receive_all_warp(args.rings, role.channel, k, args.packet_bytes, counts[1] - counts[0], kPhaseDispatch,
                              taker)) {
            return;
        }
    }
}

}  // namespace ep::pcie

extern "C" __global__ void __launch_bounds__(512)
    ep_pcie_dispatch(ep::pcie::DispatchArgs args, ep::pcie::Tokens tokens, ep::pcie::Arrivals arrivals,
                     const int* send_index, const int* sends, const int* receives, const int* first_row) {
    ep::pcie::dispatch(args, tokens, arrivals, send_index, sends, receives, first_row);
}
