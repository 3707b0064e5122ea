// Dispatch: every row straight to its final place on all ranks that hold its experts. The tutorial's kernel
// (tutorial_kernels/06_dispatch.cu) does the same, bit for bit; this one is faster for three reasons.
//
// 1. Each warp has a few rows in shared memory. TMA brings a token's row there (<ep/tma.cuh>) while the row before it goes
//    to all its ranks: loads take no registers and none of the warp's time.
// 2. Warps take tokens as they come. SMs do not get equal shares of the links, so with equal numbers of tokens some SMs
//    end late: on 4 H200 that cost 6 % of the bandwidth, in plain copies too.
// 3. A warp loads the number and the destinations of its next token one token ahead.
//
// Either lanes or TMA store: lanes reach 350 of the links' 355 GB/s and TMA 343, but on 8 SMs, of which each has to
// store 49 GB/s, TMA is 5 to 10 % faster (benchmarks/NOTES.md).
//
// A rank may have several receive areas, so that rows can stay where they arrived: its signal at the start of the
// dispatch carries the area's number (ep_lib/moe/direct/areas.py).
//
// Rows of few bits travel with side rows, their scales: `row_scales` numbers of type Rows::Side each, 0 for other rows.
// <moe/direct/side_rows.cuh> defines the types `Rows`.
#include <ep/tma.cuh>
#include <moe/common/dispatch.cuh>
#include <moe/common/epoch.cuh>
#include <moe/direct/side_rows.cuh>
#include <moe/direct/tokens.cuh>

namespace ep::direct {

struct BulkDispatchArgs {
    Workspace workspace;
    DispatchArgs to;
    float* recv_scales;  // symmetric [ranks * max_tokens, row_scales], numbers of Rows::Side
    uint64_t tag;        // must be the same on all ranks: names the handle
    int row_scales;
    int max_rows;          // of a receive area: ranks * max_tokens
    int64_t area_vectors;  // of a receive area
    int areas;             // receive areas of each rank; 0: the area that combine_push.cu uses, too
    int area;              // this rank's receive area for this dispatch, sent to all ranks if there are several
};

// How rows are stored once TMA has brought them to shared memory.
enum DispatchWay { kByLanes, kByTma };

constexpr int kStoreRanks = 4;    // ranks that a vector read from shared memory is stored to at once,
constexpr int kStoreVectors = 4;  // and vectors that a lane reads before it stores them

// Bytes of dynamic shared memory: the rows, one barrier per row, one RowPtr per warp and rank. A row that is cast there
// takes side_vectors more vectors than are loaded.
EP_HOST_DEVICE size_t bulk_dispatch_shared(int warps, int stages, int stage_vectors, int ranks) {
    const size_t row = static_cast<size_t>(stage_vectors) * sizeof(int4) + sizeof(uint64_t);
    return warps * (stages * row + ranks * sizeof(RowPtr));
}

namespace detail {

// A warp stores a row in shared memory to up to kStoreRanks targets.
EP_DEVICE void store_row_to(int4* const (&targets)[kStoreRanks], int found, const int4* row, int row_vectors) {
#pragma unroll 1
    for (int first = lane_id(); first < row_vectors; first += kStoreVectors * kWarpSize) {
        int4 vectors[kStoreVectors];
#pragma unroll
        for (int u = 0; u < kStoreVectors; ++u) {
            const int i = first + u * kWarpSize;
            if (i < row_vectors) vectors[u] = row[i];
        }
#pragma unroll
        for (int q = 0; q < kStoreRanks; ++q) {
            if (q >= found) continue;
            int4* const target = targets[q];
#pragma unroll
            for (int u = 0; u < kStoreVectors; ++u) {
                const int i = first + u * kWarpSize;
                if (i < row_vectors) st_na_v4(target + i, vectors[u]);
            }
        }
    }
}

EP_DEVICE void store_row(const int4* row, const RowPtr* row_ptrs, int found, int row_vectors) {
#pragma unroll 1
    for (int p = 0; p < found; p += kStoreRanks) {
        int4* targets[kStoreRanks];
#pragma unroll
        for (int q = 0; q < kStoreRanks; ++q) targets[q] = row_ptrs[min(p + q, found - 1)].row;
        store_row_to(targets, found - p, row, row_vectors);
    }
}

// TMA stores the row to peers while the lanes store it to this GPU's own memory. One bulk group.
EP_DEVICE void bulk_store_row(const int4* row, const RowPtr* row_ptrs, int found, int row_vectors) {
    for (int p = 0; p < found; ++p) {
        if (row_ptrs[p].rank != rank()) tma_store(row_ptrs[p].row, row, row_vectors * sizeof(int4));
    }
    tma_commit();
    for (int p = 0; p < found; ++p) {
        if (row_ptrs[p].rank == rank()) store_row(row, row_ptrs + p, 1, row_vectors);
    }
}

// Where the side row of row `index` begins, in numbers from the first side row of a receive area.
template <typename Rows>
EP_DEVICE int64_t side_row(const BulkDispatchArgs& args, int area, int index) {
    if constexpr (Rows::kApart) {
        return (static_cast<int64_t>(area) * args.max_rows + index) * args.row_scales;
    } else {
        constexpr int kNumbers = sizeof(int4) / sizeof(typename Rows::Side);
        return area * args.area_vectors * kNumbers + static_cast<int64_t>(index) * args.row_scales;
    }
}

template <typename Rows>
EP_DEVICE typename Rows::Side* side_rows(const BulkDispatchArgs& args) {
    return reinterpret_cast<typename Rows::Side*>(args.recv_scales);
}

//   scale(i)   number i of the token's side row
template <typename Rows, typename Scale>
EP_DEVICE void send_side_row(const BulkDispatchArgs& args, const RowPtr* row_ptrs, int found, const Scale& scale) {
    for (int i = lane_id(); i < args.row_scales; i += kWarpSize) {
        const typename Rows::Side number = scale(i);
        for (int p = 0; p < found; ++p) {
            const int64_t row = side_row<Rows>(args, row_ptrs[p].area, row_ptrs[p].index);
            peer_ptr(side_rows<Rows>(args), row_ptrs[p].rank)[row + i] = number;
        }
    }
}

// The side row of a token as the caller gave it.
template <typename Rows>
EP_DEVICE void send_given_scales(const BulkDispatchArgs& args, const RowPtr* row_ptrs, int found, int token,
                                 const float* all_scales, const float* row_scales) {
    using Side = typename Rows::Side;
    const Side* const given = reinterpret_cast<const Side*>(all_scales);
    if constexpr (Rows::kHasRowScale) {
        const int count = args.to.row_vectors * sizeof(int4) / kNvfp4BytesPerScale / sizeof(Side);
        const Side* const scales = given + static_cast<int64_t>(token) * count;
        send_side_row<Rows>(args, row_ptrs, found,
                            [=](int i) { return with_row_scale(i, row_scales + token, scales, count); });
    } else {
        const Side* const scales = given + static_cast<int64_t>(token) * args.row_scales;
        send_side_row<Rows>(args, row_ptrs, found, [=](int i) { return scales[i]; });
    }
}

// Casts a row in shared memory and sends its scales, which are left in the vectors before the row.
template <typename Rows>
EP_DEVICE void cast_and_send_scales(const BulkDispatchArgs& args, const RowPtr* row_ptrs, int found, int4* row,
                                    int before_row, int loaded) {
    using Side = typename Rows::Side;
    const Side* const side = reinterpret_cast<const Side*>(row - before_row);
    const int side_bytes = args.row_scales * static_cast<int>(sizeof(Side));
    cast_row_warp<Rows::kTo>(row, row - before_row, side_bytes, loaded * static_cast<int>(sizeof(int4)) / 32);
    tma_fence();  // TMA reads what lanes wrote, and later loads another row there
    __syncwarp();
    send_side_row<Rows>(args, row_ptrs, found, [=](int i) { return side[i]; });
}

// One block of a failed dispatch: fills the receive area with NaN.
template <typename Rows>
EP_DEVICE void spoil_arrivals(const BulkDispatchArgs& args, bool with_weights) {
    using Side = typename Rows::Side;
    constexpr int kSpare = sizeof(int) - sizeof(Side);  // bytes: whole words are filled
    const int64_t rows = args.max_rows;
    const Fillers fillers = fillers_of_block();
    int4* const first = args.to.rows + args.area * args.area_vectors;
    Side* const first_scale = side_rows<Rows>(args) + side_row<Rows>(args, args.area, 0);
    fill_with_nan(first, rows * args.to.row_vectors * sizeof(int4), fillers);
    fill_with_nan(first_scale, rows * args.row_scales * sizeof(Side) + kSpare, fillers);
    if (with_weights) fill_with_nan(args.to.recv_weights, rows * args.to.top_k * sizeof(float), fillers);
}

// All blocks send this rank's tokens. Their stores may still be in flight when they return.
template <DispatchWay kWay, int kStages, typename Rows>
EP_DEVICE void send_tokens(const BulkDispatchArgs& args, const int4* x, const float* scales, const int* topk_idx,
                           const float* topk_weights, const int* send_index, const int* plan, const float* row_scales,
                           const uint64_t* said_areas) {
    extern __shared__ __align__(kTmaSharedAlignment) int4 tma_shared[];
    const DispatchArgs& to = args.to;
    const int row_vectors = to.row_vectors, warps = warps_in_block(), warp = warp_id();
    const int loaded = loaded_vectors<Rows>(row_vectors), before_row = side_vectors<Rows>(args.row_scales);
    const int stage_vectors = before_row + loaded;
    const uint32_t loaded_bytes = loaded * sizeof(int4);
    int4* const stages = tma_shared + static_cast<size_t>(warp) * kStages * stage_vectors;  // this warp's
    uint64_t* const barriers =
        reinterpret_cast<uint64_t*>(tma_shared + static_cast<size_t>(warps) * kStages * stage_vectors);
    RowPtr* const row_ptrs = reinterpret_cast<RowPtr*>(barriers + warps * kStages) + warp * num_ranks();
    TmaRing ring(barriers + warp * kStages, kStages);

    const PerRank begins = load_per_rank(plan);
    const PerRank areas = args.areas > 1 ? load_per_rank(said_areas) : PerRank{};
    uint32_t ahead = 0;  // the token after those that are on their way; only in lane 0
    const auto take = [&] {
        if (lane_id() == 0) ahead = atom_add_relaxed_gpu_u32(&args.workspace.state->next_item, 1);
    };
    const auto fill = [&](int stage) {
        OnItsWay next;
        next.token = static_cast<int>(__shfl_sync(kFullWarp, ahead, 0));
        if (next.token >= to.num_tokens) return next;
        take();
        tma_load(stages + stage * stage_vectors + before_row, x + static_cast<int64_t>(next.token) * loaded,
                 loaded_bytes, ring.barriers + stage);
        tma_arrive(ring.barriers + stage, loaded_bytes);
        next.send_indices = load_per_rank(send_index + static_cast<int64_t>(next.token) * num_ranks());
        return next;
    };
    const auto send = [&](int stage, const OnItsWay& here) {
        const int found =
            list_row_ptrs(row_ptrs, here.send_indices, begins, to.rows, row_vectors, areas, args.area_vectors);
        if (lane_id() == 0) count_piece(kCountDispatchRows, found);
        if (to.send_routing || topk_weights) {
            for (int p = 0; p < found; ++p) send_routing(to, row_ptrs[p], here.token, topk_idx, topk_weights);
        }
        if (!Rows::kCasts && args.row_scales) {
            send_given_scales<Rows>(args, row_ptrs, found, here.token, scales, row_scales);
        }
        int4* const row = stages + stage * stage_vectors + before_row;
        ring.wait();
        ring.next();
        if constexpr (Rows::kCasts) cast_and_send_scales<Rows>(args, row_ptrs, found, row, before_row, loaded);
        if (kWay == kByTma) {
            bulk_store_row(row, row_ptrs, found, row_vectors);
        } else {
            store_row(row, row_ptrs, found, row_vectors);
        }
        __syncwarp();  // all lanes have read the row
    };
    // TMA may still be reading the row that it stores, so the stage of the row before is filled again.
    constexpr int kLag = kWay == kByTma ? 1 : 0;
    OnItsWay on_its_way[kStages];
    take();
#pragma unroll
    for (int stage = 0; stage < kStages - kLag; ++stage) on_its_way[stage] = fill(stage);
    const auto send_some = [&] {
#pragma unroll
        for (int stage = 0; stage < kStages; ++stage) {
            // Once a token's number is too large, so are all later ones.
            if (on_its_way[stage].token >= to.num_tokens) return false;
            send(stage, on_its_way[stage]);
            constexpr int kOthers = kStages - kLag;
            if (kWay == kByTma) tma_wait_read<1>();
            on_its_way[(stage + kOthers) % kStages] = fill((stage + kOthers) % kStages);
        }
        return true;
    };
    while (send_some()) {
    }
    if (kWay == kByTma) tma_wait_written<0>();
}

}  // namespace detail

// Any grid, any whole number of warps; dynamic shared memory as above.
//   x             [num_tokens, row_vectors]
//   scales        [num_tokens, row_scales] of Rows::Side, or null where row_scales is 0
//   topk_idx      [num_tokens, top_k]   global expert ids or -1
//   topk_weights  [num_tokens, top_k] or null
//   send_index, plan                     from `notify_dispatch`
//   differs       [ranks]               as in compare_tags
//   row_scales    [num_tokens]          only with Rows::kHasRowScale
template <DispatchWay kWay, int kStages, typename Rows = Apart>
EP_DEVICE void dispatch_bulk(const BulkDispatchArgs& args, const int4* x, const float* scales, const int* topk_idx,
                             const float* topk_weights, const int* send_index, const int* plan, int* differs,
                             const float* row_scales = nullptr) {
    const bool is_void = plan[3 * num_ranks() + args.to.experts_per_rank] != 0;
    bool ok = !operation_is_failing(args.workspace) && !is_void;
    const Signals signals = this_epoch(args.workspace);
    if (args.areas > 1) {
        ok = ok && enter_together(signals, args.area, kPhaseDispatch);
    } else {
        ok = ok && barrier_before_reuse(signals, args.workspace.state->last_dispatch, kPhaseDispatch);
    }
    const uint64_t* const said = signals.tags + kSignalEnter * num_ranks();
    if (ok) {
        detail::send_tokens<kWay, kStages, Rows>(args, x, scales, topk_idx, topk_weights, send_index, plan, row_scales,
                                                 said);
    }

    // Data, then the signal: the last block publishes what all blocks stored, and waits for the other ranks.
    const LastBlock last = last_block(&args.workspace.state->finished_blocks, gridDim.x, ok);
    if (last == LastBlock::kNo) return;
    ok = last == LastBlock::kYes;
    if (ok) {
        signal_all(signals, kSignalRows, args.tag);
        ok = wait_for_all(signals, kSignalRows, signals.epoch, kPhaseDispatch);
    }
    if (!ok || !compare_tags(signals, kSignalRows, args.tag, differs)) {
        detail::spoil_arrivals<Rows>(args, topk_weights != nullptr);
    }
    if (ok) {
        if (thread_in_block() == 0) args.workspace.state->last_dispatch = signals.epoch;
        if (thread_in_block() == 0 && args.areas == 0) args.workspace.state->last_combine = signals.epoch;
        complete_epoch(args.workspace, signals);
    } else if (!is_void) {
        break_off(args.workspace);
    }
}

}  // namespace ep::direct

template <ep::direct::DispatchWay kWay, int kStages, typename Rows = ep::direct::Apart>
__global__ void __launch_bounds__(512)
    ep_dispatch_bulk(ep::direct::BulkDispatchArgs args, const int4* x, const float* scales, const int* topk_idx,
                     const float* topk_weights, const int* send_index, const int* plan, int* differs,
                     const float* row_scales) {
    ep::direct::dispatch_bulk<kWay, kStages, Rows>(args, x, scales, topk_idx, topk_weights, send_index, plan, differs,
                                                   row_scales);
}
