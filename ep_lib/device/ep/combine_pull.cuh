// Combine by pulling, at full speed: for experts that write into symmetric memory, so that nothing is copied first.
//
// As in <ep/combine.cuh> a token's owner reads its rows from the ranks that hold them, and adds them up in ascending
// order of ranks in float32; the result is the same, bit for bit. The copy engine reads (<ep/bulk.cuh>): pieces of all
// rows of a token come to shared memory while the lanes add up what came before. So bytes in flight need no registers,
// and 8 multiprocessors keep the links as busy as 24. Warps take tokens as they come, as in <ep/dispatch_bulk.cuh>.
//
// Reading carries requests one way and data the other: 328 GB/s where stores reach 355. <ep/combine_push.cuh> stores,
// but every byte twice, which only many multiprocessors can.
#pragma once
#include <ep/combine.cuh>
#include <ep/dispatch_bulk.cuh>

namespace ep {

struct PullCombineArgs {
    Board board;
    int4* rows;     // symmetric [ranks * max_tokens, row_vectors]: the experts' rows
    uint64_t note;  // must be the same on all ranks: names the handle
    Bias bias;
    int num_tokens;
    int row_vectors;
    int top_k;
    int experts_per_rank;
    int piece_vectors;  // of a row, that come together
    int most_ranks;     // that a token can go to: the smaller of top_k and ranks
    int stages;         // pieces under way a warp, at least 2
};

namespace detail {

// A piece of a token, in shared memory, one a stage.
struct Incoming {
    int token;  // num_tokens or more: there are no more
    int found;  // rows
    int begin;  // vectors of the row before this piece
    int count;  // vectors of this piece
};

}  // namespace detail

// Bytes of dynamic shared memory: for each warp its pieces with a barrier, an Incoming and the weights each, and a Place
// a rank.
EP_HOST_DEVICE size_t pull_combine_shared(int warps, int stages, int piece_vectors, int most_ranks, int ranks) {
    const size_t stage = static_cast<size_t>(most_ranks) * (piece_vectors * sizeof(int4) + sizeof(int4)) +
                         sizeof(uint64_t) + sizeof(detail::Incoming);
    return warps * (stages * stage + ranks * sizeof(Place));
}

namespace detail {

// One warp: out[i] = bias[i] + sum over rows of weight * piece of the row. kPlain: no weights, no bias, and none of their
// time, which 8 multiprocessors do not have.
template <typename T, bool kPlain>
EP_DEVICE void add_pieces(const int4* pieces, int piece_vectors, const float* weights, const Incoming& in,
                          const Bias& bias, int64_t first_vector, int4* out) {
    constexpr int kVectors = 4;  // of one row, all asked for before the first is added: waiting for them takes the time
#pragma unroll 1
    for (int first = lane_id(); first < in.count; first += kVectors * kWarpSize) {
        Sums<T> sums[kVectors];
        if (!kPlain && bias.first) {
#pragma unroll
            for (int u = 0; u < kVectors; ++u) {
                const int i = first + u * kWarpSize;
                if (i < in.count) add_bias(sums[u], bias, first_vector + i);
            }
        }
#pragma unroll 1
        for (int p = 0; p < in.found; ++p) {
            int4 vectors[kVectors];  // beyond the piece's end they hold nothing, and the sums go nowhere
#pragma unroll
            for (int u = 0; u < kVectors; ++u) {
                const int i = first + u * kWarpSize;
                if (i < in.count) vectors[u] = pieces[p * piece_vectors + i];
            }
            const float weight = kPlain ? 1.0f : weights[p];
#pragma unroll
            for (int u = 0; u < kVectors; ++u) {
                kPlain ? sums[u].add(vectors[u]) : sums[u].add(vectors[u], weight);
            }
        }
#pragma unroll
        for (int u = 0; u < kVectors; ++u) {
            const int i = first + u * kWarpSize;
            if (i < in.count) st_na_v4(out + i, sums[u].rounded());
        }
    }
}

}  // namespace detail

// Any grid, any whole number of warps; dynamic shared memory as above.
//   out           [num_tokens, row_vectors]
//   topk_weights  [num_tokens, top_k] or null: all weights are 1
//   slot, plan                          from `route`
//   differs       [ranks]               as in compare_notes
template <typename T>
EP_DEVICE void combine_pull(const PullCombineArgs& args, int4* out, const int* topk_idx, const float* topk_weights,
                            const int* slot, const int* plan, int* differs) {
    extern __shared__ __align__(kBulkSharedAlignment) int4 bulk_shared[];
    const int row_vectors = args.row_vectors, warps = warps_in_block(), warp = warp_id(),
              num_stages = warps * args.stages;
    const int stage_vectors = args.most_ranks * args.piece_vectors;
    int4* const pieces = bulk_shared + static_cast<size_t>(warp) * args.stages * stage_vectors;  // this warp's
    float* const all_weights = reinterpret_cast<float*>(bulk_shared + static_cast<size_t>(num_stages) * stage_vectors);
    float* const weights = all_weights + warp * args.stages * args.most_ranks;
    detail::Incoming* const all_incoming =
        reinterpret_cast<detail::Incoming*>(all_weights + 4 * num_stages * args.most_ranks);
    detail::Incoming* const incoming = all_incoming + warp * args.stages;
    uint64_t* const barriers = reinterpret_cast<uint64_t*>(all_incoming + num_stages);
    Place* const places = reinterpret_cast<Place*>(barriers + num_stages) + warp * num_ranks();
    BulkRing ring(barriers + warp * args.stages, args.stages);
    if (block_has_fault()) return;
    const Signals signals = this_operation(args.board);
    if (blockIdx.x == 0) signal_all(signals, kSignalStaged, args.note);

    const detail::PerRank begins = detail::load_per_rank(plan);
    uint32_t ahead = 0;  // the token after the next; lane 0 knows
    detail::OnItsWay next = {0, {}};
    const auto take = [&] {  // the token taken last becomes the next one, and another is asked for
        next.token = static_cast<int>(__shfl_sync(kFullWarp, ahead, 0));
        if (next.token >= args.num_tokens) return;
        if (lane_id() == 0) ahead = atom_add_relaxed_gpu_u32(&args.board.state->next_item, 1);
        next.slots = detail::load_per_rank(slot + static_cast<int64_t>(next.token) * num_ranks());
    };
    if (lane_id() == 0) ahead = atom_add_relaxed_gpu_u32(&args.board.state->next_item, 1);
    take();
    if (!wait_for_all(signals, kSignalStaged, signals.operation, kPhaseCombine)) return;
    bulk_fence();  // what the peers' threads wrote is read by the copy engine

    const bool is_plain = !topk_weights && !args.bias.first;
    int token = 0, found = 0, begin = row_vectors;  // of the next piece
    const auto fill = [&](int stage) {
        if (begin == row_vectors) {
            token = next.token;
            if (token < args.num_tokens) {
                found = detail::list_places(places, next.slots, begins, args.rows, row_vectors);
                take();
                begin = 0;
                if (topk_weights) {
                    for (int p = lane_id(); p < found; p += kWarpSize) {
                        places[p].weight =
                            weight_on(args.top_k, args.experts_per_rank, places[p].rank, token, topk_idx, topk_weights);
                    }
                    __syncwarp();
                }
            }
        }
        const int count = min(args.piece_vectors, row_vectors - begin);
        if (lane_id() == 0) incoming[stage] = {token, found, begin, count};
        if (token < args.num_tokens) {
            const uint32_t bytes = count * sizeof(int4);
            for (int p = lane_id(); p < found; p += kWarpSize) {
                weights[stage * args.most_ranks + p] = places[p].weight;
            }
            for (int p = 0; p < found; ++p) {
                bulk_load(pieces + stage * stage_vectors + p * args.piece_vectors, places[p].row + begin, bytes,
                          ring.barriers + stage);
            }
            bulk_arrive(ring.barriers + stage, found * bytes);
            begin += count;
        }
        __syncwarp();
    };
    for (int stage = 0; stage < args.stages; ++stage) fill(stage);
    for (;; ring.next()) {
        const detail::Incoming in = incoming[ring.stage];
        if (in.token >= args.num_tokens) break;
        ring.wait();
        const int4* const here = pieces + ring.stage * stage_vectors;
        const float* const weights_here = weights + ring.stage * args.most_ranks;
        const int64_t first_vector = static_cast<int64_t>(in.token) * row_vectors + in.begin;
        if (is_plain) {
            detail::add_pieces<T, true>(here, args.piece_vectors, weights_here, in, args.bias, first_vector,
                                        out + first_vector);
        } else {
            detail::add_pieces<T, false>(here, args.piece_vectors, weights_here, in, args.bias, first_vector,
                                         out + first_vector);
        }
        __syncwarp();  // all lanes have read the pieces
        fill(ring.stage);
    }

    if (!is_last_block(&args.board.state->finished_blocks)) return;
    compare_notes(signals, kSignalStaged, args.note, differs);
    signal_all(signals, kSignalPulled);  // experts may write into `rows` again once all have read theirs
    if (wait_for_all(signals, kSignalPulled, signals.operation, kPhaseCombine)) complete_operation(args.board, signals);
}

}  // namespace ep
