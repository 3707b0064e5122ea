// Hierarchical mode: NICs between nodes, loads and stores inside a node, and each byte crosses between nodes once.
//
// A node is `ranks_per_node` consecutive ranks that reach each other's memory. A rank's partner in another node is the
// rank with the same number there; NICs connect partners only, by the rings of PCIe mode (<moe/pcie/rings.cuh>).
//
//     dispatch   token -> ring to the partner in each other node that has one of its experts, with the list of its rows
//                there -> the partner stores it to the final row on each rank (on its own node, its rank stores it)
//     combine    rows lie in symmetric memory -> the partner adds up those of its node, in float32, in ascending order of
//                ranks, and rounds -> ring -> the token's rank adds nodes up in ascending order, its own node's rows one
//                by one, in float32, and rounds
//
//     exchange_nodes.cu   partners, and the ranks of a node, exchange counts before a dispatch
//     dispatch.cu         sends, hands on, and stores inside the node, in blocks of their own each
//     combine.cu          adds up for partners, and for this rank
//
// Each operation begins with the barrier of all ranks of <moe/pcie/exchange_counts.cu>, so all ranks have finished the
// operation before. Therefore memory that a node's ranks write for each other needs no double buffer, and one signal of
// each kind, which carries the epoch, is enough.
//
// Why nothing deadlocks: (1) to (4) of <moe/pcie/rings.cuh> hold, with one warp for each channel and direction. Storing
// inside a node waits for nothing, and a block that waits for the ranks of the node has stored already.
#pragma once
#include <ep/signal.cuh>
#include <moe/common/layout.cuh>
#include <moe/pcie/rings.cuh>

namespace ep::hierarchical {

using namespace ep::pcie;

constexpr int kMaxNodes = 32;         // one lane per node
constexpr int kMaxRanksPerNode = 32;  // one lane per rank of a node
constexpr int kWarps = 4;             // of a block

// Rings lead to partners, so their stride is the size of a node.
EP_DEVICE int ranks_per_node(const Rings& rings) { return rings.stride; }
EP_DEVICE int num_nodes(const Rings& rings) { return ends_of_rings(rings); }
EP_DEVICE int node_of(const Rings& rings, int rank) { return rank / rings.stride; }
EP_DEVICE int first_rank_of_node(const Rings& rings) { return rank() - rank() % rings.stride; }

// The task of a kernel's warp. Each channel has one warp that sends and one that receives; blocks of a third kind, if
// there are any, work inside the node.
enum class Task { kSend, kReceive, kLocal };

struct Work {
    Task task;
    Role role;  // of a sending or receiving warp, the only one of its channel
    int warp;   // the number of a local warp
    int warps;  // the number of local warps
};

EP_DEVICE Work work_of_warp(const Rings& rings) {
    const int blocks = rings.channels / warps_in_block(), block = static_cast<int>(blockIdx.x);
    const int kind = block / blocks, warp = block % blocks * warps_in_block() + warp_id();
    const Role role = {warp, kind == 0, 0, 1};
    if (kind < 2) return {kind == 0 ? Task::kSend : Task::kReceive, role, 0, 0};
    const int local = (block - 2 * blocks) * warps_in_block() + warp_id();
    return {Task::kLocal, role, local, (static_cast<int>(gridDim.x) - 2 * blocks) * warps_in_block()};
}

// A sending block's state in shared memory.
struct SendState {
    Outgoing outgoing[kWarps][kMaxNodes - 1];
    Chunk chunks[kWarps];
};

template <typename Filler>
EP_DEVICE bool send_all(const Rings& rings, const Role& role, int row_bytes, SendState* state, const Filler& filler) {
    return send_all_warp(rings, role, row_bytes, state->outgoing[warp_id()], state->chunks + warp_id(), filler);
}

// ---- The ranks of a node ---------------------------------------------------------------------------------------------

enum NodeSignal { kNodeTables, kNodeStored, kNodeStaged, kNumNodeSignals };

// One block signals to the ranks of the node that this rank has written all data of `kind`, in earlier kernels or
// before the block's last barrier, and waits for this signal from all of them. False, in all threads, if a rank did not
// come.
//   signals  symmetric [kNumNodeSignals, ranks of a node]
EP_DEVICE bool node_barrier(uint64_t* signals, int ranks_of_node, NodeSignal kind, uint64_t epoch, Phase phase) {
    const int me = rank() % ranks_of_node, first = rank() - me;
    int failed = 0;
    for (int i = thread_in_block(); i < ranks_of_node; i += threads_in_block()) {
        signal_set(signals + kind * ranks_of_node + me, epoch, first + i);
    }
    for (int i = thread_in_block(); i < ranks_of_node; i += threads_in_block()) {
        failed |= !wait_until_ge(signals + kind * ranks_of_node + i, epoch, {phase, first + i, kind});
    }
    return __syncthreads_or(failed) == 0;
}

}  // namespace ep::hierarchical
