// Rows grouped by expert, as a grouped GEMM wants them, and the way back.
//
// A row that chose several of this rank's experts appears once for each choice. The rows of an expert lie together in
// the order in which they were received, and each expert's part is padded to a multiple of the alignment with rows of
// zeros. `plan` (<moe/direct/notify_dispatch.cu>) has the counts, so the host need not know them.
//
// A row crosses the link once for a rank, not once for each choice, which on two ranks with top-8 would be four times
// the bytes. The kernel that copies rows out of the receive area (<moe/direct/copy_epilogue.cu>) reads each once and
// writes it to all its places; no other kernel is needed. On the way back <moe/direct/combine_pull.cu> sums a row's
// choices while other ranks already read the first sums.
#pragma once
#include <moe/common/layout.cuh>
#include <moe/common/sums.cuh>

namespace ep::direct {

struct ExpertRowsArgs {
    int* slot;       // [capacity, top_k]: where each choice's row is, or -1
    int* row;        // [all]: which received row stands here, or -1
    int* offsets;    // [experts_per_rank + 1]: where each expert's rows begin
    float* weights;  // [all] or null: the choice's weight, 0 where there is none
    int4* x;         // [all, row_vectors]
    void* scales;    // [all, row_scales] or null
    int64_t all;     // the most rows, including rows of zeros
    int experts_per_rank;
    int placed;        // 1: slot, row and offsets are from an earlier dispatch, and only read
    uint32_t padding;  // the bits of the scales of rows of zeros
};

constexpr int kExpertVectors = 4;  // vectors of a row in flight per lane
constexpr int kSumChoices = 2;     // choices of a row loaded together
constexpr int kWarpRounds = 4;     // rows, or parts of rows, per warp at least

// A block's share of the received rows: consecutive ones.
struct BlockRows {
    int first, end;
};
EP_DEVICE BlockRows rows_of_block(int count) {
    const int share = (count + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
    const int first = min(static_cast<int>(blockIdx.x) * share, count);
    return {first, min(first + share, count)};
}

// Bytes of dynamic shared memory: the place of each expert's next row, and a choice for each thread.
EP_HOST_DEVICE size_t expert_rows_shared(int experts, int threads) { return (experts + 1 + threads) * sizeof(int); }

namespace detail {

// One block: begins[e] becomes the first row of expert e; begins[experts] the end of all. Ends with __syncthreads.
EP_DEVICE void find_begins(int* begins, const int* tokens, int experts) {
    if (warp_id() == 0) {
        int before = 0;
        for (int base = 0; base < experts; base += kWarpSize) {
            const int e = base + lane_id(), mine = e < experts ? tokens[e] : 0;
            int sum = mine;
#pragma unroll
            for (int distance = 1; distance < kWarpSize; distance *= 2) {
                const int below = __shfl_up_sync(kFullWarp, sum, distance);
                if (lane_id() >= distance) sum += below;
            }
            if (e < experts) begins[e] = before + sum - mine;
            before += __shfl_sync(kFullWarp, sum, kWarpSize - 1);
        }
        if (lane_id() == 0) begins[experts] = before;
    }
    __syncthreads();
}

// The grid writes rows of zeros behind each expert's rows, and the offsets. If there are more blocks than experts,
// several share an expert.
template <typename Side>
EP_DEVICE void pad_experts(const ExpertRowsArgs& by, const int* begins, const int* choices, int row_vectors,
                           int row_scales) {
    Side padding;
    if constexpr (sizeof(Side) == sizeof(float)) {
        padding = __int_as_float(by.padding);
    } else {
        padding = static_cast<Side>(by.padding);
    }
    const int experts = by.experts_per_rank, blocks = gridDim.x, parts = max(1, blocks / experts);
    if (blockIdx.x == 0 && !by.placed) {
        for (int e = thread_in_block(); e <= experts; e += threads_in_block()) by.offsets[e] = begins[e];
    }
    for (int item = blockIdx.x; item < experts * parts; item += blocks) {
        const int e = item % experts, first = begins[e] + choices[e] + item / experts * warps_in_block() + warp_id();
        for (int i = first; i < begins[e + 1]; i += parts * warps_in_block()) {
            if (lane_id() == 0 && !by.placed) by.row[i] = -1;
            if (lane_id() == 0 && by.weights) by.weights[i] = 0.0f;
            int4* const to = by.x + static_cast<int64_t>(i) * row_vectors;
            for (int v = lane_id(); v < row_vectors; v += kWarpSize) st_na_v4(to + v, make_int4(0, 0, 0, 0));
            Side* const scales = static_cast<Side*>(by.scales) + static_cast<int64_t>(i) * row_scales;
            for (int s = lane_id(); s < row_scales; s += kWarpSize) scales[s] = padding;
        }
    }
}

// One block: where the choices of its rows go. next[e] is the first row of expert e, and becomes the place of its next
// row. Each block counts the choices of all rows before its own, so that blocks need not wait for each other.
//   topk     [rows received, top_k]   this rank's experts or -1, as received
//   weights  likewise, or null
EP_DEVICE void place_choices(const ExpertRowsArgs& by, const int* topk, const float* weights, int top_k,
                             const BlockRows& rows, int* next, int* of_thread) {
    const int thread = thread_in_block(), threads = threads_in_block();
    const int first = rows.first * top_k, end = rows.end * top_k;
    if (!by.placed) {
        if (first < end) {
            const int4* const before = reinterpret_cast<const int4*>(topk);
            const auto count = [&](int expert) {
                if (expert >= 0) atomicAdd(&next[expert], 1);
            };
#pragma unroll 4
            for (int i = thread; i < first / 4; i += threads) {
                const int4 experts = before[i];
                count(experts.x), count(experts.y), count(experts.z), count(experts.w);
            }
            if (thread < first % 4) count(topk[first / 4 * 4 + thread]);
        }
        __syncthreads();
    }
    for (int base = first; base < end; base += threads) {
        const int choice = base + thread;
        if (!by.placed) {
            of_thread[thread] = choice < end ? topk[choice] : -1;
            __syncthreads();
            // One warp places the choices in order, since an expert's rows keep the order of arrival.
            for (int i = lane_id(); warp_id() == 0 && i < threads; i += kWarpSize) {
                const int expert = of_thread[i];
                const unsigned same = __match_any_sync(kFullWarp, expert);
                const int below = __popc(same & ((1u << lane_id()) - 1));
                if (expert >= 0) of_thread[i] = next[expert] + below;
                __syncwarp();  // all lanes have read `next`
                if (expert >= 0 && below == 0) next[expert] += __popc(same);
                __syncwarp();
            }
            __syncthreads();
            if (choice < end) by.slot[choice] = of_thread[thread];
        }
        const int slot = choice < end ? by.slot[choice] : -1;
        if (slot < 0) continue;
        if (!by.placed) by.row[slot] = choice / top_k;
        if (by.weights) by.weights[slot] = weights[choice];
    }
    __syncthreads();  // slots are read by all warps; of_thread is written again
}

// Iterates over the places of a row: `while (places.next()) ... places.to`.
//   slots  [top_k]   -1 for none
struct Places {
    const int* slots;
    int top_k, base, slot;
    unsigned left;
    int64_t to;

    EP_DEVICE Places(const int* slots_of_row, int choices)
        : slots(slots_of_row), top_k(choices), base(-kWarpSize), slot(-1), left(0), to(0) {}
    EP_DEVICE bool next() {
        while (left == 0) {
            base += kWarpSize;
            if (base >= top_k) return false;
            slot = base + lane_id() < top_k ? slots[base + lane_id()] : -1;
            left = __ballot_sync(kFullWarp, slot >= 0);
        }
        to = __shfl_sync(kFullWarp, slot, __ffs(left) - 1);
        left &= left - 1;
        return true;
    }
};

// A warp stores its vectors of a row from `begin` on.
EP_DEVICE void store_vectors(int4* row, const int4 (&vectors)[kExpertVectors], int begin, int row_vectors) {
#pragma unroll
    for (int u = 0; u < kExpertVectors; ++u) {
        const int v = begin + u * kWarpSize + lane_id();
        if (v < row_vectors) st_na_v4(row + v, vectors[u]);
    }
}

// One block copies its rows to their places, and to `x` if that is not null. Warps share rows if there are few, since
// otherwise some warps would end much later than others.
template <typename Side>
EP_DEVICE void scatter_rows(const ExpertRowsArgs& by, const BlockRows& rows, const int4* source, const Side* side,
                            int4* x, Side* scales, int row_vectors, int row_scales, int top_k) {
    const int warps = warps_in_block(), lane = lane_id();
    const int count = rows.end - rows.first, parts = max(1, kWarpRounds * warps / max(1, count));
    Side* const by_scales = static_cast<Side*>(by.scales);
    for (int item = warp_id(); item < count * parts; item += warps) {
        const int64_t row = rows.first + item / parts;
        const int part = item % parts;
        const int* const slots = by.slot + row * top_k;
        const int step = kExpertVectors * kWarpSize;
        for (int begin = part * step; begin < row_vectors; begin += parts * step) {
            int4 vectors[kExpertVectors];
#pragma unroll
            for (int u = 0; u < kExpertVectors; ++u) {
                const int v = begin + u * kWarpSize + lane;
                if (v < row_vectors) vectors[u] = ld_nc_v4(source + row * row_vectors + v);
            }
            if (x) store_vectors(x + row * row_vectors, vectors, begin, row_vectors);
            Places places(slots, top_k);
            while (places.next()) store_vectors(by.x + places.to * row_vectors, vectors, begin, row_vectors);
        }
        for (int base = part * kWarpSize; base < row_scales; base += parts * kWarpSize) {
            const int s = base + lane;
            const Side scale = s < row_scales ? side[row * row_scales + s] : Side{};
            if (scales && s < row_scales) scales[row * row_scales + s] = scale;
            Places places(slots, top_k);
            while (places.next()) {
                if (s < row_scales) by_scales[places.to * row_scales + s] = scale;
            }
        }
    }
}

}  // namespace detail

// One warp, on the way back: sums the experts' results for a received row's choices, in the order of k, in float32.
//   slots  [top_k]   the places of the row's choices
//   y      [all, row_vectors]
template <typename T>
EP_DEVICE void sum_choices(int4* out, const int4* y, const int* slots, int top_k, int row_vectors) {
    for (int begin = 0; begin < row_vectors; begin += kExpertVectors * kWarpSize) {
        Sums<T> sums[kExpertVectors];
        for (int base = 0; base < top_k; base += kWarpSize) {
            const int slot = base + lane_id() < top_k ? slots[base + lane_id()] : -1;
            for (unsigned left = __ballot_sync(kFullWarp, slot >= 0); left;) {
                int4 vectors[kSumChoices][kExpertVectors];
                int found = 0;
#pragma unroll
                for (int c = 0; c < kSumChoices; ++c, left &= left - 1) {
                    if (!left) continue;
                    ++found;
                    const int64_t from = __shfl_sync(kFullWarp, slot, __ffs(left) - 1);
#pragma unroll
                    for (int u = 0; u < kExpertVectors; ++u) {
                        const int v = begin + u * kWarpSize + lane_id();
                        if (v < row_vectors) vectors[c][u] = ld_nc_v4(y + from * row_vectors + v);
                    }
                }
#pragma unroll
                for (int c = 0; c < kSumChoices; ++c) {
#pragma unroll
                    for (int u = 0; u < kExpertVectors && c < found; ++u) sums[u].add(vectors[c][u]);
                }
            }
        }
#pragma unroll
        for (int u = 0; u < kExpertVectors; ++u) {
            const int v = begin + u * kWarpSize + lane_id();
            if (v < row_vectors) st_na_v4(out + v, sums[u].rounded());
        }
    }
}

}  // namespace ep::direct
