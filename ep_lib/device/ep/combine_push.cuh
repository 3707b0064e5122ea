// Combine by pushing: the ranks that hold the experts send rows back while the tokens' owners already add them up.
//
// <ep/combine.cuh> first copies all rows to symmetric memory, meets, and then reads them over the links. Here rows go
// from wherever the experts left them: no copy before. Rows of one source lie together on this rank, in the source's
// own order, so what goes back is cut into groups of consecutive rows. Some warps of each block push: the copy engine
// loads rows (<ep/bulk.cuh>), lanes store them to their owner's `returned` area, then the group is signalled. The other
// warps add up: each takes a token, waits for the groups with the token's rows, and sums them in ascending order of
// ranks in float32, so the result does not depend on who came first. It is that of <ep/combine.cuh>, bit for bit.
//
// Every byte is stored twice, so this wants 16 multiprocessors or more; <ep/combine_pull.cuh> does with 8 what rows in
// symmetric memory allow. Storing by the engine was no quicker, and larger groups or cheaper signals made it slower
// (benchmarks/NOTES.md): what is under way must not outrun those who add up.
//
// `arrived` needs no clearing, as numbers of operations only grow; `returned` no credits: see <ep/operation.cuh>.
// All blocks must be resident at once, as blocks wait for what blocks of other ranks push: no more than the GPU has
// multiprocessors.
#pragma once
#include <ep/bulk.cuh>
#include <ep/combine.cuh>
#include <ep/dispatch_bulk.cuh>

namespace ep {

struct PushCombineArgs {
    Board board;
    int4* returned;     // symmetric [ranks, max_tokens, row_vectors]
    uint64_t* arrived;  // symmetric [ranks, max_groups]: the last operation whose group has come
    uint64_t note;      // must be the same on all ranks: names the handle
    Bias bias;
    int num_tokens;
    int max_tokens;
    int max_groups;  // max_tokens / group_rows, rounded up
    int group_rows;
    int row_vectors;
    int top_k;
    int experts_per_rank;
    int push_warps;  // of each block
    int stages;      // rows that such a warp has under way, at least 2
};

namespace detail {

// A row on its way back. In shared memory, one a stage.
struct Outgoing {
    int owner;  // whose token it is; -1: there are no more
    int slot;   // of the row among the owner's on this rank
    int group;  // that is complete with this row; -1: there is more of it
    int unused;
};

}  // namespace detail

// Bytes of dynamic shared memory: the pushing warps' rows, a barrier and an Outgoing a row, a Place a warp and rank.
EP_HOST_DEVICE size_t push_combine_shared(int warps, int push_warps, int stages, int row_vectors, int ranks) {
    const size_t row = row_vectors * sizeof(int4) + sizeof(uint64_t) + sizeof(detail::Outgoing);
    return static_cast<size_t>(push_warps) * stages * row + static_cast<size_t>(warps) * ranks * sizeof(Place);
}

namespace detail {

// Hands out rows to one pushing warp, group by group, as warps come for them. Consecutive groups go to different
// owners, so all links are busy all the time. All lanes call together and know the same.
class Groups {
  public:
    EP_DEVICE Groups(uint32_t* next_group, int group_rows, const int* received)
        : next_group_(next_group), group_rows_(group_rows), received_(load_per_rank(received)) {
        int most = 0, before = 0;
        for (int r = 0; r < num_ranks(); ++r) {
            const int rows = of(received_, r);
            if (r != rank()) most = max(most, rows);
            if (r % kWarpSize == lane_id()) first_y_.of[r / kWarpSize] = before;
            before += rows;
        }
        num_groups_ = (most + group_rows - 1) / group_rows * (num_ranks() - 1);
        take();
    }

    // The next row, and where it is in y.
    EP_DEVICE Outgoing next(int64_t* y_row) {
        while (row_ == end_) {
            const int item = static_cast<int>(__shfl_sync(kFullWarp, ahead_, 0));
            if (item >= num_groups_) return {-1, 0, -1, 0};
            take();
            const int others = num_ranks() - 1;
            group_ = item / others;
            owner_ = (rank() + 1 + (item + group_) % others) % num_ranks();
            row_ = group_ * group_rows_;
            end_ = max(row_, min(row_ + group_rows_, of(received_, owner_)));
        }
        *y_row = of(first_y_, owner_) + row_;
        const int slot = row_++;
        return {owner_, slot, row_ == end_ ? group_ : -1, 0};
    }

  private:
    EP_DEVICE void take() {
        if (lane_id() == 0) ahead_ = atom_add_relaxed_gpu_u32(next_group_, 1);
    }
    EP_DEVICE static int of(const PerRank& values, int r) {
        int value = 0;
#pragma unroll
        for (int i = 0; i < kRanksALane; ++i) {
            const int here = __shfl_sync(kFullWarp, values.of[i], r % kWarpSize);
            if (i == r / kWarpSize) value = here;
        }
        return value;
    }

    uint32_t* const next_group_;
    const int group_rows_;
    PerRank received_, first_y_;  // of each owner: rows of its tokens here, and where in y they begin
    uint32_t ahead_ = 0;          // the next group, asked for in advance; lane 0 knows
    int num_groups_;
    int owner_ = 0, group_ = 0, row_ = 0, end_ = 0;
};

// One warp: pushes rows of `y` until all are gone.
EP_DEVICE void push_rows(const PushCombineArgs& args, uint64_t operation, int4* rows, uint64_t* barriers,
                         Outgoing* outgoing, const int4* y, const int* received) {
    if (num_ranks() == 1) return;
    const int row_vectors = args.row_vectors;
    const uint32_t row_bytes = row_vectors * sizeof(int4);
    BulkRing ring(barriers, args.stages);
    Groups groups(&args.board.state->next_item, args.group_rows, received);
    const auto fill = [&](int stage) {
        int64_t y_row = 0;
        const Outgoing next = groups.next(&y_row);
        if (lane_id() == 0) outgoing[stage] = next;
        if (next.owner >= 0) {
            bulk_load(rows + stage * row_vectors, y + y_row * row_vectors, row_bytes, barriers + stage);
            bulk_arrive(barriers + stage, row_bytes);
        }
        __syncwarp();
    };
    for (int stage = 0; stage < args.stages; ++stage) fill(stage);

    for (;; ring.next()) {
        const Outgoing out = outgoing[ring.stage];
        if (out.owner < 0) break;
        const int64_t place = static_cast<int64_t>(rank()) * args.max_tokens + out.slot;
        int4* const target = peer_ptr(args.returned + place * row_vectors, out.owner);
        int4* const targets[kStoreRanks] = {target, target, target, target};
        ring.wait();
        store_row_to(targets, 1, rows + ring.stage * row_vectors, row_vectors);
        __syncwarp();  // all lanes have read and stored the row
        if (out.group >= 0 && lane_id() == 0) {
            uint64_t* const flag = args.arrived + static_cast<int64_t>(rank()) * args.max_groups + out.group;
            st_release_sys_u64(peer_ptr(flag, out.owner), operation);
        }
        fill(ring.stage);
    }
}

// Where a token's rows are on this rank, in ascending order of the ranks that sent them; waits until they are there.
// -1 if they did not come in time.
EP_DEVICE int find_returned(const PushCombineArgs& args, uint64_t operation, Place* places, int token, const int* slot,
                            const int* first_row, const int4* y) {
    __syncwarp();  // nobody reads the previous token's places any more
    int found = 0;
    bool failed = false;
    for (int base = 0; base < num_ranks(); base += kWarpSize) {
        const int r = base + lane_id();
        const int s = r < num_ranks() ? slot[static_cast<int64_t>(token) * num_ranks() + r] : -1;
        const unsigned votes = __ballot_sync(kFullWarp, s >= 0);
        if (s >= 0) {
            const int64_t index = r == rank() ? first_row[r] + s : static_cast<int64_t>(r) * args.max_tokens + s;
            int4* const area = r == rank() ? const_cast<int4*>(y) : args.returned;
            places[found + __popc(votes & ((1u << lane_id()) - 1))] = {area + index * args.row_vectors, r, s, 1.0f};
            if (r != rank()) {
                const int group = s / args.group_rows;
                failed |= !wait_until_ge(args.arrived + static_cast<int64_t>(r) * args.max_groups + group, operation,
                                         {kPhaseCombine, r, group});
            }
        }
        found += __popc(votes);
    }
    const bool any_failed = __any_sync(kFullWarp, failed);
    __syncwarp();
    return any_failed ? -1 : found;
}

// One warp: target[i] = bias[i] + sum over the places of weight * row[i]; kCombineVectors of each row in flight a lane.
template <typename T, bool kBiased>
EP_DEVICE void sum_places(const Place* places, int found, const Bias& bias, int64_t first_vector, int4* target,
                          int row_vectors) {
    for (int first = lane_id(); first < row_vectors; first += kCombineVectors * kWarpSize) {
        Sums<T> sums[kCombineVectors];
        if (kBiased) {
#pragma unroll
            for (int u = 0; u < kCombineVectors; ++u) {
                const int i = first + u * kWarpSize;
                if (i < row_vectors) add_bias(sums[u], bias, first_vector + i);
            }
        }
        for (int p = 0; p < found; p += kCombineRanks) {
            int4 vectors[kCombineRanks][kCombineVectors];
#pragma unroll
            for (int q = 0; q < kCombineRanks; ++q) {
#pragma unroll
                for (int u = 0; u < kCombineVectors; ++u) {
                    const int i = first + u * kWarpSize;
                    if (p + q < found && i < row_vectors) vectors[q][u] = ld_na_v4(places[p + q].row + i);
                }
            }
#pragma unroll
            for (int q = 0; q < kCombineRanks; ++q) {
                if (p + q >= found) break;
                const float weight = places[p + q].weight;
#pragma unroll
                for (int u = 0; u < kCombineVectors; ++u) sums[u].add(vectors[q][u], weight);
            }
        }
#pragma unroll
        for (int u = 0; u < kCombineVectors; ++u) {
            const int i = first + u * kWarpSize;
            if (i < row_vectors) st_na_v4(target + i, sums[u].rounded());
        }
    }
}

// One warp: waits until all ranks are here, and tells whether they passed the same note. If they did not, they push
// other rows than others wait for.
EP_DEVICE bool same_note_warp(const Signals& signals, SignalKind kind, uint64_t note) {
    bool same = true;
    for (int r = lane_id(); r < num_ranks(); r += kWarpSize) {
        const int entry = kind * num_ranks() + r;
        same &= wait_until_ge(signals.flags + entry, signals.operation, {kPhaseCombine, r, kind}) &&
                signals.notes[entry] == note;
    }
    return __all_sync(kFullWarp, same) != 0;
}

// The tokens of one warp, until all are done or a group does not come.
template <typename T>
EP_DEVICE void add_up(const PushCombineArgs& args, uint64_t operation, Place* places, int4* out, const int4* y,
                      const int* topk_idx, const float* topk_weights, const int* slot, const int* first_row) {
    const int adders = gridDim.x * (warps_in_block() - args.push_warps);
    for (int token = (warp_id() - args.push_warps) * gridDim.x + blockIdx.x; token < args.num_tokens; token += adders) {
        const int found = find_returned(args, operation, places, token, slot, first_row, y);
        if (found < 0) return;
        if (topk_weights) {
            for (int p = lane_id(); p < found; p += kWarpSize) {
                places[p].weight =
                    weight_on(args.top_k, args.experts_per_rank, places[p].rank, token, topk_idx, topk_weights);
            }
            __syncwarp();
        }
        const int64_t first_vector = static_cast<int64_t>(token) * args.row_vectors;
        int4* const target = out + first_vector;
        if (args.bias.first) {
            sum_places<T, true>(places, found, args.bias, first_vector, target, args.row_vectors);
        } else {
            sum_places<T, false>(places, found, args.bias, first_vector, target, args.row_vectors);
        }
    }
}

}  // namespace detail

// At most as many blocks as multiprocessors, any whole number of warps above push_warps; shared memory as above.
//   out           [num_tokens, row_vectors]
//   y             [rows that this rank received, row_vectors], in any of this GPU's memory
//   topk_weights  [num_tokens, top_k] or null: all weights are 1
//   slot, plan                           from `route`
//   differs       [ranks]                as in compare_notes
template <typename T>
EP_DEVICE void combine_push(const PushCombineArgs& args, int4* out, const int4* y, const int* topk_idx,
                            const float* topk_weights, const int* slot, const int* plan, int* differs) {
    extern __shared__ __align__(kBulkSharedAlignment) int4 bulk_shared[];
    const int warp = warp_id(), num_stages = args.push_warps * args.stages;
    uint64_t* const barriers =
        reinterpret_cast<uint64_t*>(bulk_shared + static_cast<size_t>(num_stages) * args.row_vectors);
    detail::Outgoing* const outgoing = reinterpret_cast<detail::Outgoing*>(barriers + num_stages);
    Place* const places = reinterpret_cast<Place*>(outgoing + num_stages) + static_cast<size_t>(warp) * num_ranks();
    if (block_has_fault()) return;
    const Signals signals = this_operation(args.board);
    if (!meet_again(signals, args.board.state->last_combine, kPhaseCombine)) return;
    if (blockIdx.x == 0) signal_all(signals, kSignalStaged, args.note);

    if (warp < args.push_warps) {
        const int first = warp * args.stages;
        detail::push_rows(args, signals.operation, bulk_shared + static_cast<size_t>(first) * args.row_vectors,
                          barriers + first, outgoing + first, y, plan + num_ranks());
    } else if (detail::same_note_warp(signals, kSignalStaged, args.note)) {
        detail::add_up<T>(args, signals.operation, places, out, y, topk_idx, topk_weights, slot, plan);
    }
    if (!is_last_block(&args.board.state->finished_blocks)) return;
    if (!wait_for_all(signals, kSignalStaged, signals.operation, kPhaseCombine)) return;
    compare_notes(signals, kSignalStaged, args.note, differs);
    if (thread_in_block() == 0) args.board.state->last_combine = signals.operation;
    complete_operation(args.board, signals);
}

}  // namespace ep
