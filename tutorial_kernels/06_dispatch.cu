// Dispatch: every token to all ranks that hold one of its experts. A ladder with one idea per rung.
//
//     sender                                                 receiver
//     which row of the receiver's memory is mine?      <-->  [ counts ]
//     writes the token there, and who it is            --->  [ rows, recv_topk, recv_weights, recv_source ]
//     when all its blocks have written, signals        --->  [ flags ]    waits for all ranks, and only then reads
//
// Rung  Kernels                                  Idea
// 0     dispatch_atomics                         ask the receiver for a row, token by token
// 1     count_choices, dispatch_counted          counts first: one question per rank, not one per token
// 2     dispatch_exact                           prefix sums: every row has one exact place
// 3     dispatch_warp                            a warp per token: neighbours write neighbouring bytes
// 4     dispatch                                 a token is loaded once, and several loads are under way
// 5     dispatch_tma                             TMA brings the next token while this one leaves
//
// From rung 1 on `exchange_counts` runs in between, and from rung 2 on ep_get_dispatch_layout of <moe/common/layout.cuh>
// counts in place of count_choices. ep_lib.Buffer does the same as rungs 4 and 5, bit for bit, with fewer launches:
// <moe/direct/notify_dispatch.cu> is layout and counts in one, <moe/direct/dispatch_bulk.cu> is rung 5 and more.
//
// 06_dispatch_broken.cu has the classic mistakes. `enter` at the end replaces the counts where those of an earlier
// dispatch still hold.
#include <ep/tma.cuh>
#include <moe/common/dispatch.cuh>
#include <moe/common/layout.cuh>
#include <moe/common/notify.cuh>

using namespace ep;

namespace {

// Whether one of the token's experts lives on `rank`.
EP_DEVICE bool goes_to(const DispatchArgs& args, const int* topk_idx, int token, int rank) {
    for (int k = 0; k < args.top_k; ++k) {
        const int local = topk_idx[token * args.top_k + k] - rank * args.experts_per_rank;
        if (local >= 0 && local < args.experts_per_rank) return true;
    }
    return false;
}

// Row `index` of the receive area of rank `to`, as this rank addresses it.
EP_DEVICE RowPtr row_ptr(const DispatchArgs& args, int to, int index) {
    return {row_at(args.rows, to, index, args.row_vectors), to, index, 1.0f};
}

// One thread: the token itself, 16 bytes at a time.
EP_DEVICE void copy_token(const DispatchArgs& args, const RowPtr& to, const int4* x, int token) {
    const int4* const source = x + static_cast<int64_t>(token) * args.row_vectors;
    for (int i = 0; i < args.row_vectors; ++i) st_na_v4(to.row + i, ld_nc_v4(source + i));
}

// One thread: what travels beside the token. The experts as the receiver numbers its own (-1: not one of its), their
// weights, and whose token it is. From rung 3 on the lanes of a warp do it: send_routing of <moe/common/dispatch.cuh>.
EP_DEVICE void tell_routing(const DispatchArgs& args, const RowPtr& to, int token, const int* topk_idx,
                            const float* topk_weights) {
    int* const ids = peer_ptr(args.recv_topk, to.rank) + to.index * args.top_k;
    float* const weights = peer_ptr(args.recv_weights, to.rank) + to.index * args.top_k;
    for (int k = 0; k < args.top_k; ++k) {
        const int local = topk_idx[token * args.top_k + k] - to.rank * args.experts_per_rank;
        const bool here = local >= 0 && local < args.experts_per_rank;
        ids[k] = here ? local : -1;
        weights[k] = here ? topk_weights[token * args.top_k + k] : 0.0f;
    }
    peer_ptr(args.recv_source, to.rank)[to.index] = make_int2(rank(), token);
}

EP_DEVICE int thread_in_grid() { return static_cast<int>(blockIdx.x) * threads_in_block() + thread_in_block(); }
EP_DEVICE int threads_in_grid() { return static_cast<int>(gridDim.x) * threads_in_block(); }

}  // namespace

// All rungs end like this. Data, then signal: the last block of the grid signals, since it sees what all the others
// wrote. It waits alone; the others have left the GPU and block nothing.
EP_DEVICE void finish_dispatch(const Signals& signals, uint32_t* finished_blocks) {
    if (!is_last_block(finished_blocks)) return;
    signal_all(signals, kSignalRows);
    wait_for_all(signals, kSignalRows, signals.epoch, kPhaseDispatch);
}

// ---- Rung 0: ask for every row --------------------------------------------------------------------------------------
// The receiver has a counter, `next_row`, symmetric and 0 at the start. A sender adds 1 to it and owns the row that the
// counter showed. Right, and without preparation; but every row begins with a question that crosses the link and back,
// and the rows lie in the order in which the questions arrived.
// All the kernels here take any grid of whole warps.
//   x             [num_tokens, row_vectors]
//   topk_idx      [num_tokens, top_k]   global expert ids or -1
//   topk_weights  [num_tokens, top_k]
//   finished_blocks   0; how many blocks have sent their rows
extern "C" __global__ void dispatch_atomics(DispatchArgs args, Signals signals, uint32_t* finished_blocks,
                                            const int4* x, const int* topk_idx, const float* topk_weights,
                                            uint32_t* next_row) {
    for (int token = thread_in_grid(); token < args.num_tokens; token += threads_in_grid()) {
        for (int to = 0; to < num_ranks(); ++to) {
            if (!goes_to(args, topk_idx, token, to)) continue;
            const int index = static_cast<int>(atom_add_relaxed_sys_u32(peer_ptr(next_row, to), 1));
            const RowPtr at = row_ptr(args, to, index);
            copy_token(args, at, x, token);
            tell_routing(args, at, token, topk_idx, topk_weights);
        }
    }
    finish_dispatch(signals, finished_blocks);
}

// ---- Rung 1: counts first -------------------------------------------------------------------------------------------
// How many rows will I send to each rank? That is counted in my own memory. Then all ranks tell each other their counts,
// once, and each knows where its rows begin everywhere: behind those of the ranks before it (`first_row`, an exclusive
// prefix sum). What is left to ask for is a place among my own rows: an atomic that stays at home.
//   rank_counts [ranks], expert_counts [ranks * experts_per_rank]   0 at the start
extern "C" __global__ void count_choices(DispatchArgs args, const int* topk_idx, int* rank_counts, int* expert_counts) {
    for (int token = thread_in_grid(); token < args.num_tokens; token += threads_in_grid()) {
        for (int to = 0; to < num_ranks(); ++to) {
            if (goes_to(args, topk_idx, token, to)) atomicAdd(rank_counts + to, 1);
        }
        for (int k = 0; k < args.top_k; ++k) {
            const int expert = topk_idx[token * args.top_k + k];
            if (expert >= 0) atomicAdd(expert_counts + expert, 1);
        }
    }
}

// One block. The exchange, and the sums over all ranks' counts: `plan` begins with first_row [ranks].
extern "C" __global__ void exchange_counts(NotifyArgs args, const int* rank_counts, const int* expert_counts,
                                           int* plan) {
    notify(args, rank_counts, expert_counts, plan);
}

//   next_of_mine  [ranks]   0 at the start; this rank's own
extern "C" __global__ void dispatch_counted(DispatchArgs args, Signals signals, uint32_t* finished_blocks,
                                            const int4* x, const int* topk_idx, const float* topk_weights,
                                            int* next_of_mine, const int* first_row) {
    for (int token = thread_in_grid(); token < args.num_tokens; token += threads_in_grid()) {
        for (int to = 0; to < num_ranks(); ++to) {
            if (!goes_to(args, topk_idx, token, to)) continue;
            const RowPtr at = row_ptr(args, to, first_row[to] + atomicAdd(next_of_mine + to, 1));
            copy_token(args, at, x, token);
            tell_routing(args, at, token, topk_idx, topk_weights);
        }
    }
    finish_dispatch(signals, finished_blocks);
}

// ---- Rung 2: exact slots --------------------------------------------------------------------------------------------
// How many of my EARLIER tokens go to that rank? This number is a row's place among mine, and no counter is asked for
// it. With it the whole receive area is decided before the first byte moves: sorted by source, then by token, the
// same on every run. No atomics are left.
//   send_index   [num_tokens, ranks]   from ep_get_dispatch_layout; -1: the token does not go there
extern "C" __global__ void dispatch_exact(DispatchArgs args, Signals signals, uint32_t* finished_blocks, const int4* x,
                                          const int* topk_idx, const float* topk_weights, const int* send_index,
                                          const int* first_row) {
    for (int token = thread_in_grid(); token < args.num_tokens; token += threads_in_grid()) {
        for (int to = 0; to < num_ranks(); ++to) {
            const int place = send_index[token * num_ranks() + to];
            if (place < 0) continue;
            const RowPtr at = row_ptr(args, to, first_row[to] + place);
            copy_token(args, at, x, token);
            tell_routing(args, at, token, topk_idx, topk_weights);
        }
    }
    finish_dispatch(signals, finished_blocks);
}

// ---- Rung 3: a warp per token ---------------------------------------------------------------------------------------
// Until now a thread copied a token alone: at any moment the 32 threads of a warp wrote into 32 distant rows. Now they
// write 512 neighbouring bytes of one row, which leave the SM as four full lines.
// A token that goes to several ranks is loaded once for each of them.
// Dynamic shared memory: one RowPtr per warp and rank.
extern "C" __global__ void dispatch_warp(DispatchArgs args, Signals signals, uint32_t* finished_blocks, const int4* x,
                                         const int* topk_idx, const float* topk_weights, const int* send_index,
                                         const int* first_row) {
    extern __shared__ RowPtr dispatch_row_ptrs[];
    RowPtr* const row_ptrs = dispatch_row_ptrs + warp_id() * num_ranks();
    const int row_vectors = args.row_vectors, num_warps = static_cast<int>(gridDim.x) * warps_in_block();
    for (int token = blockIdx.x * warps_in_block() + warp_id(); token < args.num_tokens; token += num_warps) {
        const int found = find_row_ptrs(row_ptrs, token, send_index, first_row, args.rows, row_vectors);
        const int4* const source = x + static_cast<int64_t>(token) * row_vectors;
        for (int p = 0; p < found; ++p) {
            send_routing(args, row_ptrs[p], token, topk_idx, topk_weights);
            for (int i = lane_id(); i < row_vectors; i += kWarpSize) {
                st_na_v4(row_ptrs[p].row + i, ld_nc_v4(source + i));
            }
        }
    }
    finish_dispatch(signals, finished_blocks);
}

constexpr int kDispatchVectors = 7;  // in flight per lane: 7 * 32 * 16 bytes = half of a row of 7168 bytes

// ---- Rung 4: loaded once, and many loads under way ------------------------------------------------------------------
// A warp loads a token once and stores it to all of its rows. A load takes hundreds of cycles: a lane that asks for one
// vector and waits for it keeps 16 bytes under way, one that asks for seven keeps 112.
EP_DEVICE void copy_to_all(const RowPtr* row_ptrs, int found, const int4* token, int row_vectors) {
    for (int first = lane_id(); first < row_vectors; first += kDispatchVectors * kWarpSize) {
        int4 vectors[kDispatchVectors];
#pragma unroll
        for (int u = 0; u < kDispatchVectors; ++u) {
            const int i = first + u * kWarpSize;
            if (i < row_vectors) vectors[u] = ld_nc_v4(token + i);
        }
        for (int p = 0; p < found; ++p) {
#pragma unroll
            for (int u = 0; u < kDispatchVectors; ++u) {
                const int i = first + u * kWarpSize;
                if (i < row_vectors) st_na_v4(row_ptrs[p].row + i, vectors[u]);
            }
        }
    }
}

// This is the kernel that every rung above was on the way to. `topk_weights` may be null: then no weights travel.
extern "C" __global__ void dispatch(DispatchArgs args, Signals signals, uint32_t* finished_blocks, const int4* x,
                                    const int* topk_idx, const float* topk_weights, const int* send_index,
                                    const int* first_row) {
    extern __shared__ RowPtr dispatch_row_ptrs[];
    RowPtr* const row_ptrs = dispatch_row_ptrs + warp_id() * num_ranks();
    if (block_has_fault()) return;

    const int row_vectors = args.row_vectors, num_warps = gridDim.x * warps_in_block();
    for (int token = blockIdx.x * warps_in_block() + warp_id(); token < args.num_tokens; token += num_warps) {
        const int found = find_row_ptrs(row_ptrs, token, send_index, first_row, args.rows, row_vectors);
        for (int p = 0; p < found; ++p) send_routing(args, row_ptrs[p], token, topk_idx, topk_weights);
        copy_to_all(row_ptrs, found, x + static_cast<int64_t>(token) * row_vectors, row_vectors);
    }
    finish_dispatch(signals, finished_blocks);
}

constexpr int kTmaStages = 2;

// ---- Rung 5: TMA ----------------------------------------------------------------------------------------------------
// The Tensor Memory Accelerator moves a whole row between global and shared memory, while the lanes do something else and
// no register holds any of it. A warp has two rows in shared memory: the next token arrives in one while TMA stores this
// one from the other, to all its ranks. Before a stage is filled again, the stores out of it must have been read.
// Dynamic shared memory, at a multiple of kTmaSharedAlignment: for each warp two rows; then two barriers, and one RowPtr
// for each rank.
extern "C" __global__ void dispatch_tma(DispatchArgs args, Signals signals, uint32_t* finished_blocks, const int4* x,
                                        const int* topk_idx, const float* topk_weights, const int* send_index,
                                        const int* first_row) {
    extern __shared__ __align__(kTmaSharedAlignment) int4 tma_rows[];
    const int row_vectors = args.row_vectors, num_warps = static_cast<int>(gridDim.x) * warps_in_block();
    const uint32_t row_bytes = row_vectors * sizeof(int4);
    const int stages_of_block = kTmaStages * warps_in_block();
    int4* const stages = tma_rows + warp_id() * kTmaStages * row_vectors;
    uint64_t* const barriers = reinterpret_cast<uint64_t*>(tma_rows + stages_of_block * row_vectors);
    RowPtr* const row_ptrs = reinterpret_cast<RowPtr*>(barriers + stages_of_block) + warp_id() * num_ranks();

    TmaRing ring(barriers + warp_id() * kTmaStages, kTmaStages);
    const int first_token = static_cast<int>(blockIdx.x) * warps_in_block() + warp_id();
    const auto fetch = [&](int token, int stage) {
        if (token >= args.num_tokens) return;
        uint64_t* const barrier = ring.barriers + stage;
        tma_load(stages + stage * row_vectors, x + static_cast<int64_t>(token) * row_vectors, row_bytes, barrier);
        tma_arrive(barrier, row_bytes);
    };
    fetch(first_token, 0);
    for (int token = first_token; token < args.num_tokens; token += num_warps) {
        tma_wait_read<0>();  // the row before has left the other stage
        __syncwarp();
        fetch(token + num_warps, (ring.stage + 1) % kTmaStages);
        const int found = find_row_ptrs(row_ptrs, token, send_index, first_row, args.rows, row_vectors);
        for (int p = 0; p < found; ++p) send_routing(args, row_ptrs[p], token, topk_idx, topk_weights);
        ring.wait();  // this row is there
        for (int p = 0; p < found; ++p) tma_store(row_ptrs[p].row, stages + ring.stage * row_vectors, row_bytes);
        tma_commit();
        ring.next();
    }
    tma_wait_written<0>();
    finish_dispatch(signals, finished_blocks);
}

// Stands for an expert's kernel, which first reads the rows that have come. It is launched behind a dispatch.
extern "C" __global__ void read_rows(const int4* rows, int num_vectors, int4* out) {
    for (int i = thread_in_grid(); i < num_vectors; i += threads_in_grid()) out[i] = ld_nc_v4(rows + i);
}

// ---- Beside the ladder ----------------------------------------------------------------------------------------------
// One block. The barrier of a dispatch whose handle knows all counts already: `tag` names the handle.
extern "C" __global__ void enter(Signals signals, uint64_t tag, int* differs) {
    signal_all(signals, kSignalEnter, tag);
    if (wait_for_all(signals, kSignalEnter, signals.epoch, kPhaseLayout)) {
        compare_tags(signals, kSignalEnter, tag, differs);
    }
}
