// Combine in PCIe mode: rows come back along the channels of their dispatch, and are added up straight out of the rings.
//
// The ranks that hold experts send the rows of each (source, channel) back in the order in which they came. On the
// source, the receiving warps of a channel walk its tokens in that order together, each with a part of the columns; lane
// r keeps its position in the ring from rank r. Sums are float32 in ascending order of ranks, rounded once: the same bits
// as in <moe/common/sums.cuh> and in the oracle.
//
// A slot may be filled again when all warps have read it. Each warp counts itself in; the last one returns the credit.
// Warps that are ahead may return the credit of a later message first: when all warps have read a message, they have
// read every earlier one, too, so the count of credits still equals the number of free slots.
#include <moe/common/sums.cuh>
#include <moe/pcie/rings.cuh>

namespace ep::pcie {

struct CombineArgs {
    Rings rings;
    int num_tokens;
    int row_vectors;  // 16-byte vectors per row
    int top_k;
    int experts_per_rank;
};

// Fills messages with the rows that one source sent in this channel; the cursor is a row.
struct RowFiller {
    const CombineArgs& args;
    const int4* y;
    const int* receives;   // [ranks, channels + 1], of the dispatch
    const int* first_row;  // [ranks]
    int channel;

    EP_DEVICE const int* counts(int k) const {
        return receives + receiver_at(args.rings, k) * (args.rings.channels + 1) + channel;
    }
    EP_DEVICE int rows(int k) const { return counts(k)[1] - counts(k)[0]; }
    EP_DEVICE int first_cursor(int k) const { return first_row[receiver_at(args.rings, k)] + counts(k)[0]; }

    EP_DEVICE int fill_warp(char* to, int, int cursor, int rows) const {
        copy_row_warp(to, y + static_cast<int64_t>(cursor) * args.row_vectors, rows * args.row_vectors * 16);
        return cursor + rows;
    }
};

EP_DEVICE Incoming incoming_from(const CombineArgs& args, int channel, int source, const int* sends) {
    const int k = (rank() + num_ranks() - source) % num_ranks();
    const int* const counts = sends + source * (args.rings.channels + 1) + channel;
    return incoming_at(args.rings, channel, k, counts[1] - counts[0]);
}

// A lane goes on to the next row of its ring. At the end of a message its warp is counted in, and the last warp returns
// the credit. Call it behind a __syncwarp after the reads.
EP_DEVICE void next_row(const Rings& rings, const Role& role, Incoming& in, int rows_per_message, int k) {
    --in.left;
    if (++in.row < rows_per_message && in.left > 0) return;
    uint32_t* const readers =
        rings.readers + ring_index(rings, role.channel, k) * rings.num_slots + ring_slot(in.ring, in.message);
    if (atom_add_acq_rel_gpu_u32(readers, 1) + 1 == static_cast<uint32_t>(role.warps)) {
        st_relaxed_gpu_u32(readers, 0);  // for the slot's next message, which the credit permits
        ring_return_credit(in.ring);
    }
    in.row = 0;
    ++in.message;
}

// A receiving warp: all tokens of its channel, its part of the columns.
template <typename T>
EP_DEVICE void receive_sums_warp(const CombineArgs& args, const Role& role, Incoming in, RowPtr* row_ptrs, int4* out,
                                 const int4* own_rows, const int* topk_idx, const float* topk_weights,
                                 const int* send_index) {
    const int me = rank(), ranks = num_ranks(), source = lane_id();
    const int k = (me + ranks - source) % ranks;
    const int row_bytes = args.row_vectors * 16, rows_per_message = args.rings.slot_bytes / row_bytes;
    const int end = channel_begin(args.num_tokens, role.channel + 1, args.rings.channels);
    for (int token = channel_begin(args.num_tokens, role.channel, args.rings.channels); token < end; ++token) {
        const int s = source < ranks ? send_index[static_cast<int64_t>(token) * ranks + source] : -1;
        const bool from_ring = s >= 0 && source != me;
        int failed = 0;
        if (from_ring && in.row == 0) failed = !ring_wait_for_message(in.ring, in.message, kPhaseCombine);
        if (__any_sync(kFullWarp, failed)) return;

        const unsigned votes = __ballot_sync(kFullWarp, s >= 0);
        if (s >= 0) {
            const int64_t own = static_cast<int64_t>(s) * args.row_vectors;
            const char* const slot_row = from_ring ? ring_received(in.ring, in.message) + in.row * row_bytes : nullptr;
            const int4* const row = from_ring ? reinterpret_cast<const int4*>(slot_row) : own_rows + own;
            const float weight =
                topk_weights ? weight_on(args.top_k, args.experts_per_rank, source, token, topk_idx, topk_weights)
                             : 1.0f;
            row_ptrs[__popc(votes & ((1u << source) - 1))] = {const_cast<int4*>(row), source, s, weight};
        }
        __syncwarp();  // all lanes may read the pointers, and the messages that one lane acquired
        add_rows<T>(out + static_cast<int64_t>(token) * args.row_vectors, row_ptrs, __popc(votes), args.row_vectors,
                    role.warp * kWarpSize + lane_id(), role.warps * kWarpSize);
        __syncwarp();  // all lanes have read: slots may be given back, and pointers written again
        if (from_ring) next_row(args.rings, role, in, rows_per_message, k);
    }
    if (role.warp == 0 && source < ranks && source != me) {
        args.rings.taken[ring_index(args.rings, role.channel, k)] = in.message;
    }
}

// Blocks as in dispatch; dynamic shared memory: kMaxPcieRanks Places per warp.
//   out  [num_tokens, row_vectors]; y  [rows received by the dispatch, row_vectors]
//   topk_weights  [num_tokens, top_k] or null: all weights are 1
template <typename T>
EP_DEVICE void combine(const CombineArgs& args, int4* out, const int4* y, const int* topk_idx,
                       const float* topk_weights, const int* send_index, const int* sends, const int* receives,
                       const int* first_row) {
    extern __shared__ RowPtr pcie_row_ptrs[];
    __shared__ SendShared shared;
    if (block_has_fault()) return;
    const Role role = role_of_warp(args.rings);
    Incoming in = {};
    const bool has_ring = lane_id() < num_ranks() && lane_id() != rank();
    if (!role.sends && has_ring) in = incoming_from(args, role.channel, lane_id(), sends);
    __syncthreads();  // all warps have read `taken`, which the first one overwrites at the end
    if (role.sends) {
        send_all_warp(args.rings, role, args.row_vectors * 16, shared.outgoing, shared.chunks + warp_id(),
                      RowFiller{args, y, receives, first_row, role.channel});
        return;
    }
    const int4* const own_rows = y + static_cast<int64_t>(first_row[rank()]) * args.row_vectors;
    receive_sums_warp<T>(args, role, in, pcie_row_ptrs + warp_id() * kMaxPcieRanks, out, own_rows, topk_idx,
                         topk_weights, send_index);
}

}  // namespace ep::pcie

template <typename T>
__global__ void __launch_bounds__(512)
    ep_pcie_combine(ep::pcie::CombineArgs args, int4* out, const int4* y, const int* topk_idx,
                    const float* topk_weights, const int* send_index, const int* sends, const int* receives,
                    const int* first_row) {
    ep::pcie::combine<T>(args, out, y, topk_idx, topk_weights, send_index, sends, receives, first_row);
}
