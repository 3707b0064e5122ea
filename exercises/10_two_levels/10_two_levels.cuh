// Code that the kernels of 10_two_levels.cu share: tokens that go to several ranks, nodes, and stores of rows within a
// node.
//
// A node is `mates` consecutive ranks, which reach each other's memory; between nodes there are NICs only. A rank's
// partner in another node is the rank with the same number there.
#pragma once
#include <ep/net.cuh>
#include <ep/signal.cuh>
#include <ep/wait.cuh>

struct Tokens {
    const uint64_t* wants;  // [count]: bit r: rank r needs this token
    float* rows;            // symmetric [count, words]
    float* arrived;         // symmetric [ranks, count, words]: row (source, token) of what has come
    uint64_t* signals;      // symmetric [ranks]: rows that have come from each source
    const int* expects;     // [ranks]: rows that will come from each source
    int count;              // tokens of each rank
    int words;              // of a row
    int mates;              // ranks of a node
};

// Areas between partners, one slot for each node and message: symmetric [nodes, count, words] and [nodes, count].
struct Relay {
    float* rows;       // what this rank sends on behalf of others is staged here, or comes here
    uint64_t* labels;  // a signal of each slot: 0 is empty, else label_of
    const int* comes;  // [nodes]: messages that the partner in each node will send
};

EP_DEVICE int node_of(const Tokens& t, int rank) { return rank / t.mates; }
EP_DEVICE int first_rank_of(const Tokens& t, int node) { return node * t.mates; }
EP_DEVICE int num_nodes(const Tokens& t) { return ep::num_ranks() / t.mates; }
EP_DEVICE int partner_in(const Tokens& t, int node) { return first_rank_of(t, node) + ep::rank() % t.mates; }

// Which ranks of a node need a token: bit i is rank i of the node.
EP_DEVICE unsigned wanted_in(const Tokens& t, int token, int node) {
    return static_cast<unsigned>(t.wants[token] >> first_rank_of(t, node)) & ((1u << t.mates) - 1);
}

// A message's signal says which token it is and which ranks of the node need it; never 0, since some rank does.
EP_DEVICE uint64_t label_of(int token, unsigned wanted) { return static_cast<uint64_t>(token) << 32 | wanted; }
EP_DEVICE int token_of(uint64_t label) { return static_cast<int>(label >> 32); }
EP_DEVICE unsigned wanted_of(uint64_t label) { return static_cast<unsigned>(label); }

EP_DEVICE float* row_of(float* rows, const Tokens& t, int64_t row) { return rows + row * t.words; }

// A warp stores a row into the memory of a rank of its own node, and adds 1 to that rank's signal of the source.
EP_DEVICE void store_row_warp(const Tokens& t, const float* row, int source, int token, int to) {
    float* const there = ep::peer_ptr(row_of(t.arrived, t, int64_t(source) * t.count + token), to);
    for (int i = ep::lane_id(); i < t.words; i += ep::kWarpSize) there[i] = row[i];
    __syncwarp();  // all lanes have stored their part before lane 0's signal
    if (ep::lane_id() == 0) ep::signal_add(t.signals + source, 1, to);
}

// All rows that this rank is to get are there.
EP_DEVICE bool wait_for_rows_warp(const Tokens& t) {
    for (int source = 0; source < ep::num_ranks(); ++source) {
        if (!ep::wait_until_ge_warp(t.signals + source, t.expects[source], {ep::kPhaseDispatch, source, -1}))
            return false;
    }
    return true;
}

// Stores this rank's tokens to the ranks of its own node that need them, itself included.
EP_DEVICE void store_own_node_warp(const Tokens& t) {
    const int node = node_of(t, ep::rank());
    for (int token = 0; token < t.count; ++token) {
        for (unsigned left = wanted_in(t, token, node); left; left &= left - 1) {
            store_row_warp(t, row_of(t.rows, t, token), ep::rank(), token, first_rank_of(t, node) + __ffs(left) - 1);
        }
    }
}
