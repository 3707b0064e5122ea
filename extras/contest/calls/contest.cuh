// The jobs of the contest: the arguments of a contestant's function. All counters and flags are 0 at the start, there
// is one launch, and every rank may write memory named symmetric. A contestant's header defines
//
//     constexpr int kBlocks = 8;      1 to 32
//     constexpr int kThreads = 128;   32 to 1024, a multiple of 32
//     EP_DEVICE void alltoall(const AllToAll& job)      (or dispatch, or combine); every thread of the grid calls it
//
// When the grid is done, the result must be complete: the next kernel on this rank reads it at once.
#pragma once
#include <ep/memory.cuh>
#include <ep/peer.cuh>
#include <ep/signal.cuh>

constexpr int kContestFlags = 1024;  // of each kind

struct ContestMemory {
    uint64_t* flags;    // symmetric [kContestFlags]
    uint32_t* numbers;  // symmetric [kContestFlags]: for counts
    uint32_t* own;      // [kContestFlags]: for this rank alone, for instance to find the last block
};

// out[r] = source[this rank] of rank r.
struct AllToAll {
    ContestMemory memory;
    const int4* source;  // [ranks, vectors]
    int4* inbox;         // symmetric [ranks, vectors], to be used or not
    int4* out;           // [ranks, vectors]
    int vectors;
};

// rows = the tokens that have an expert on this rank, sorted by their source rank, then by token; *num_rows of them.
// Expert e lives on rank e / experts_per_rank; -1 is none. A token comes once, however many of its experts are here.
struct Dispatch {
    ContestMemory memory;
    const int4* x;        // [tokens, vectors]
    const int* topk_idx;  // [tokens, top_k]
    int4* rows;           // symmetric [ranks * max_tokens, vectors]
    int* num_rows;        // [1]
    int* send_index;      // [max_tokens, ranks]: free memory, to be used or not
    int tokens, max_tokens, vectors, top_k, experts_per_rank;
};

// out[token] = the sum over ranks, in ascending order, of weight * row, in float32: __fadd_rn(sum, __fmul_rn(weight, row)),
// beginning with 0. Rows are the rank's own and complete when the kernel begins, but other ranks do not know that yet.
struct Combine {
    ContestMemory memory;
    float4* rows;      // symmetric [ranks * max_tokens, vectors]
    float4* returned;  // symmetric [ranks * max_tokens, vectors], to be used or not
    const int*
        send_index;  // [tokens, ranks]: the token's row on a rank is row first_row[rank] + send_index there; or -1
    const int* first_row;  // [ranks]
    const float* weights;  // [tokens, ranks]
    float4* out;           // [tokens, vectors]
    int tokens, max_tokens, vectors;
};
