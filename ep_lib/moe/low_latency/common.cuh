// Low-latency mode: what dispatch.cu and combine.cu share.
//
// In a decode batch the bytes take less time than launches, counting and barriers. So each operation is ONE kernel (or
// two, one that sends and one that receives, with work of the caller's between), without a barrier of the grid or
// between ranks. Nothing is counted first: a row's slot on the receiver is (source rank, token), which the sender knows
// by itself, and each row has its own flag, so that a receiver works on what has come while the rest is on its way.
//
// Epochs. Flags carry the number of the operation, 1, 2, 3, ..., the same on all ranks. The device counts it, since a
// CUDA graph repeats its arguments: every block adds its share when it ends, and the shares of a launch add up to
// kEpochUnit, so the count divided by it is the number of launches that have ended, whatever the size of the grid.
//
// The double buffer. Odd and even epochs use different halves of the slots (`buffer` is 0 or 1). Before a rank writes
// into a half again, the receiver must have read it: the receiver's next kernel starts by storing a credit, the number
// of epochs received. In a loop of dispatches and combines a credit arrives long before it is needed.
//
// Nothing is sent to a masked rank or expected from it; it counts as having no tokens, and its experts add nothing.
// Each rank has masks of its own. With mask_on_timeout, a wait that runs into its limit masks the rank instead of
// failing. That is for dead ranks: if a rank comes back at that very moment, some of its rows may be lost.
//
// If a block gives up, or finds at its start that an earlier operation failed, all outputs of its kernel become NaN
// (<moe/common/failure.cuh>): see `give_up`.
#pragma once
#include <ep/memory.cuh>
#include <ep/packet.cuh>
#include <ep/peer.cuh>
#include <ep/pieces.cuh>
#include <ep/wait.cuh>
#include <moe/common/failure.cuh>

namespace ep::low_latency {

enum Kind { kDispatch, kCombine, kNumKinds };

// The halves of an operation. A whole kernel, compiled as such, does both. With a hook, another kernel is launched once
// for each half, which `Args::halves` names; so a profiler shows one kernel name per operation.
enum Half { kSends = 1, kReceives = 2 };

constexpr int kNumBuffers = 2;  // halves of the slots, used in turn
constexpr uint64_t kEpochUnit = 1 << 20;
constexpr int kMaxTopK = kWarpSize;  // one lane per choice

struct Args {
    uint64_t* finished;  // [kNumKinds, 2]   number of launches that sent, and that received, times kEpochUnit
    uint32_t* mask;      // [ranks]   1: that rank is left out
    Broken broken;
    uint64_t* credits;  // symmetric [kNumKinds + 1, ranks]   epochs that each rank has received; last row: it has ended
    int halves;         // of a kernel that is not whole: kSends or kReceives
    int num_tokens;     // of this rank
    int max_tokens;     // of any rank
    int top_k;
    int experts_per_rank;
    int row_vectors;  // 16-byte vectors of a bfloat16 row
    int role_blocks;  // whole kernels: blocks per group of consecutive ones, a divisor of the grid
    int send_blocks;  // of each group, the first blocks that only send; the others only receive. 0: all do both in turn
    int mask_on_timeout;
};

// A block's part of the work: number `index` of `count` blocks that share it; count 0: no part.
struct Share {
    int index;
    int count;
};

// An SM's loads queue up behind its stores to peers, so blocks that send see arrivals late. Therefore in a whole kernel
// some SMs only send, and the others only receive. (Blocks go to the SMs in turn, so if role_blocks is the number of
// SMs, an SM's second block has the same role as its first.)
EP_DEVICE Share sending_share(const Args& args, int halves) {
    const int role_blocks = args.role_blocks, send_blocks = args.send_blocks;
    const int index = blockIdx.x, blocks = gridDim.x, round = index / role_blocks, part = index % role_blocks;
    if (halves == kReceives) return {0, 0};
    if (halves == kSends || send_blocks == 0) return {index, blocks};
    if (part >= send_blocks) return {0, 0};
    return {round * send_blocks + part, blocks / role_blocks * send_blocks};
}
EP_DEVICE Share receiving_share(const Args& args, int halves) {
    const int role_blocks = args.role_blocks, send_blocks = args.send_blocks;
    const int index = blockIdx.x, blocks = gridDim.x, round = index / role_blocks, part = index % role_blocks;
    const int receive_blocks = role_blocks - send_blocks;
    if (halves == kSends) return {0, 0};
    if (halves == kReceives || send_blocks == 0) return {index, blocks};
    if (part < send_blocks) return {0, 0};
    return {round * receive_blocks + part - send_blocks, blocks / role_blocks * receive_blocks};
}

EP_DEVICE uint64_t* finished(const Args& args, Kind kind, Half half) {
    return args.finished + 2 * kind + (half == kReceives ? 1 : 0);
}

// The epoch that this launch is part of. Every thread reads it before its block's first barrier.
EP_DEVICE uint64_t epoch_of(const Args& args, Kind kind, Half half) {
    return ld_relaxed_gpu_u64(finished(args, kind, half)) / kEpochUnit + 1;
}

// One thread of each block calls this after all threads of the block have read the epoch.
EP_DEVICE void complete_epoch(const Args& args, Kind kind, int halves) {
    const uint64_t share = blockIdx.x == 0 ? kEpochUnit - (gridDim.x - 1) : 1;
    if (halves & kSends) red_add_relaxed_gpu_u64(finished(args, kind, kSends), share);
    if (halves & kReceives) red_add_relaxed_gpu_u64(finished(args, kind, kReceives), share);
}

EP_DEVICE bool is_masked(const Args& args, int peer) { return ld_relaxed_gpu_u32(args.mask + peer) != 0; }

// True in the last thread of a block, which has the least other work, if an earlier operation failed.
EP_DEVICE bool last_thread_sees_failure(const Args& args) {
    return thread_in_block() == threads_in_block() - 1 && is_failing(args.broken.flag);
}

// The threads of a block read which ranks are left out. False if an operation before this one failed.
EP_DEVICE bool read_masks(const Args& args, uint8_t* masked) {
    const bool failed = last_thread_sees_failure(args);
#pragma unroll 1
    for (int r = thread_in_block(); r < num_ranks(); r += threads_in_block()) masked[r] = is_masked(args, r);
    return __syncthreads_or(failed) == 0;
}

// A block whose operation, or an earlier one, failed: `spoil(fillers)` fills all outputs of the kernel. The first block
// that gives up fills them alone, because it does not know which others will. In later kernels all blocks share the
// work.
template <typename Spoil>
EP_DEVICE void give_up(const Args& args, const Spoil& spoil) {
    const bool first = __syncthreads_or(thread_in_block() == 0 && break_off(args.broken)) != 0;
    spoil(first ? fillers_of_block() : fillers_of_grid());
}

enum WaitOutcome { kArrived, kMasked, kGaveUp };

// One thread waits until `ready(&seen)`; it gives up after the limit, or when the rank is masked meanwhile.
template <typename Ready>
EP_DEVICE WaitOutcome wait_or_mask(const Args& args, Ready ready, uint64_t expected, const WaitInfo& info) {
    uint64_t seen = 0;
    bool masked = false;
    int polls = 0;
    const bool done = look_until(
        [&] {
            if (ready(&seen)) return true;
            if (++polls < polls_per_clock()) return false;
            polls = 0;
            masked = is_masked(args, info.peer);
            return masked;
        },
        [&] {
            if (args.mask_on_timeout) {
                st_relaxed_gpu_u32(args.mask + info.peer, 1);
                masked = true;
            } else {
                record_fault(kFaultTimeout, info, seen, expected);
            }
        },
        info.peer, args.mask_on_timeout != 0);
    return masked ? kMasked : done ? kArrived : kGaveUp;
}

// One thread waits for a packet of <ep/packet.cuh>.
EP_DEVICE WaitOutcome wait_packet_or_mask(const Args& args, const TaggedWord* packet, uint64_t tag, uint64_t* data,
                                          const WaitInfo& info) {
    const auto ready = [&](uint64_t* seen) {
        ld_relaxed_sys_u64x2(&packet->data, data, seen);
        return *seen == tag;
    };
    return wait_or_mask(args, ready, tag, info);
}

// One thread waits for a flag; what came before its release may be read then, by this thread and, after a barrier, by
// others.
EP_DEVICE WaitOutcome wait_flag_or_mask(const Args& args, const uint64_t* flag, uint64_t expected,
                                        const WaitInfo& info) {
    const auto ready = [&](uint64_t* seen) {
        *seen = ld_acquire_sys_u64(flag);
        return *seen >= expected;
    };
    return wait_or_mask(args, ready, expected, info);
}

// At the start of every kernel, before any wait: the block with the least other work stores at all ranks the number of
// epochs that this rank has received.
EP_DEVICE void give_credits(const Args& args) {
    if (blockIdx.x != gridDim.x - 1) return;
#pragma unroll 1
    for (int i = thread_in_block(); i < kNumKinds * num_ranks(); i += threads_in_block()) {
        const int kind = i / num_ranks(), peer = i % num_ranks();
        if (is_masked(args, peer)) continue;
        const uint64_t received = ld_relaxed_gpu_u64(finished(args, static_cast<Kind>(kind), kReceives)) / kEpochUnit;
        st_release_sys_u64(peer_ptr(args.credits + kind * num_ranks() + rank(), peer), received);
    }
}

// Loaded before the epoch is known: by thread r, rank r's credit and mask; by the last thread, whether there was a
// failure.
struct FirstLook {
    uint64_t credit;
    uint32_t mask;  // in the last thread: kFailed if an earlier operation failed
};
constexpr uint32_t kFailed = 2;
EP_DEVICE FirstLook look_at_credits(const Args& args, Kind kind) {
    const int r = thread_in_block();
    const uint32_t failed = last_thread_sees_failure(args) ? kFailed : 0;
    if (r >= num_ranks()) return {0, failed};
    const uint32_t mask = ld_relaxed_gpu_u32(args.mask + r);
    return {ld_acquire_sys_u64(args.credits + kind * num_ranks() + r), mask | failed};
}

// The threads of a block wait until every rank has read the epoch whose half of the slots will be written again, and
// note in `masked` which ranks are left out. False after a fault of this operation or an earlier one.
EP_DEVICE bool wait_for_credits(const Args& args, Kind kind, uint64_t epoch, FirstLook look, uint8_t* masked) {
    int failed = (look.mask & kFailed) != 0;
#pragma unroll 1
    for (int r = thread_in_block(); r < num_ranks(); r += threads_in_block()) {
        if (r != thread_in_block()) look = {0, is_masked(args, r)};  // more ranks than threads
        bool skip = (look.mask & 1) != 0;
        if (!skip && look.credit + kNumBuffers < epoch) {     // seldom: usually the credit is there
            if (ld_relaxed_gpu_u32(args.broken.flag) != 0) {  // no credit will come
                failed = 1;
                continue;
            }
            const WaitOutcome outcome = wait_flag_or_mask(args, args.credits + kind * num_ranks() + r,
                                                          epoch - kNumBuffers, {kPhaseCredit, r, -1});
            failed |= outcome == kGaveUp;
            skip = outcome == kMasked;
        }
        masked[r] = skip;
    }
    return __syncthreads_or(failed) == 0;
}

// The last kernel, one block: waits until every rank runs its last kernel; then no rank writes to this rank's memory.
EP_DEVICE void final_barrier(const Args& args) {
    uint64_t* const ends = args.credits + kNumKinds * num_ranks();
#pragma unroll 1
    for (int r = thread_in_block(); r < num_ranks(); r += threads_in_block()) {
        if (!is_masked(args, r)) st_release_sys_u64(peer_ptr(ends + rank(), r), 1);
    }
#pragma unroll 1
    for (int r = thread_in_block(); r < num_ranks(); r += threads_in_block()) {
        if (!is_masked(args, r)) wait_flag_or_mask(args, ends + r, 1, {kPhaseBarrier, r, -1});
    }
}

constexpr int kBadChoice = -2;

// Lane k: the token's k-th choice; -1 from top_k on and for tokens that do not exist; kBadChoice for an invalid id.
template <typename Index>
EP_DEVICE int load_choice(const Args& common, const Index* topk_idx, int token) {
    if (token >= common.num_tokens || lane_id() >= common.top_k) return -1;
    const int64_t expert = topk_idx[static_cast<int64_t>(token) * common.top_k + lane_id()];
    return expert >= -1 && expert < num_ranks() * common.experts_per_rank ? static_cast<int>(expert) : kBadChoice;
}

// Records a fault, by one lane that has a bad choice. `why`: kNoExpert or kNotDispatched.
template <typename Index>
EP_DEVICE void refuse_choice(const Args& common, const Index* topk_idx, int token, Phase phase, InputFault why) {
    const int64_t element = static_cast<int64_t>(token) * common.top_k + lane_id();
    record_fault(kFaultInput, {phase, -1, element}, static_cast<uint64_t>(static_cast<int64_t>(topk_idx[element])),
                 why);
}

// Bit r: rank r holds one of the lanes' choices (from load_choice), as two halves of 32 ranks. All lanes call.
struct RankSet {
    unsigned low, high;
    EP_DEVICE bool has(int r) const { return ((r < 32 ? low >> r : high >> (r - 32)) & 1) != 0; }
};
EP_DEVICE RankSet ranks_of(int expert, int experts_per_rank) {
    const int r = expert >= 0 ? expert / experts_per_rank : kMaxRanks;
    return {__reduce_or_sync(kFullWarp, r < 32 ? 1u << r : 0u),
            __reduce_or_sync(kFullWarp, r >= 32 && r < kMaxRanks ? 1u << (r - 32) : 0u)};
}

constexpr int kWeightsPerWord = 2;
EP_HOST_DEVICE int weight_words(int top_k) { return (top_k + kWeightsPerWord - 1) / kWeightsPerWord; }

// The packets with the weights of a source's token; `weights` [kNumBuffers, ranks, max_tokens * weight_words(top_k)].
EP_DEVICE TaggedWord* weights_of(const Args& args, TaggedWord* weights, int buffer, int source, int token) {
    const int64_t index = static_cast<int64_t>(buffer * num_ranks() + source) * args.max_tokens + token;
    return weights + index * weight_words(args.top_k);
}

// A warp sends one token's weights to the ranks whose experts they are for; lane k has the k-th choice and its weight.
EP_DEVICE void send_weights_of(const Args& args, TaggedWord* weights, int token, int expert, float weight,
                               uint64_t epoch, int buffer, const uint8_t* masked) {
    const int words = weight_words(args.top_k), ranks = num_ranks();
    const int home = expert < 0 ? -1 : expert / args.experts_per_rank;
    TaggedWord* const mine = weights_of(args, weights, buffer, rank(), token);
#pragma unroll 1
    for (int base = 0; base < ranks * words; base += kWarpSize) {
        const int i = base + lane_id(), word = i % words, r = i / words;
        uint64_t packed = 0;
        bool goes = false;
        for (int h = 0; h < kWeightsPerWord; ++h) {
            const int k = (word * kWeightsPerWord + h) % kWarpSize;
            goes |= __shfl_sync(kFullWarp, home, k) == r;
            const int bits = __float_as_int(__shfl_sync(kFullWarp, weight, k));
            packed |= static_cast<uint64_t>(static_cast<uint32_t>(bits)) << (32 * h);
        }
        if (goes && r < ranks && !masked[r]) {
            send_packet(mine + word, packed, epoch, r);
            count_piece(kCountPackets);
        }
    }
}

// Lane k: the weight of the token's k-th choice.
EP_DEVICE float load_weight(const Args& args, const float* topk_weights, int token) {
    if (token >= args.num_tokens || lane_id() >= args.top_k) return 0.0f;
    return topk_weights[static_cast<int64_t>(token) * args.top_k + lane_id()];
}

EP_DEVICE float weight_in(uint64_t word, int k) {
    return __int_as_float(static_cast<int>(word >> (32 * (k % kWeightsPerWord))));
}

}  // namespace ep::low_latency
