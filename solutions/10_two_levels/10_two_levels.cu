// Dispatch and combine between nodes, in one level and in two: how often a token crosses the network. A ladder.
//
//     one level     a row for each rank that needs the token, over NICs to those of other nodes
//     two levels    a row for each node: to the partner there, which stores it to the ranks of its node that need it;
//                   on the way back it adds up what they return, and sends one row
//
// Rung  Kernel                 Idea
// 0     dispatch_one_level     every copy crosses the network by itself
// 1     dispatch_two_levels    once per node, then over NVLink
// 2     combine_two_levels     sums of a node, then of nodes, in a fixed order
//
// Exercise 10_two_levels lets you write rungs 1 and 2. Hierarchical mode does this with counts, rings and messages of many
// rows: ep_lib/moe/hierarchical.
#include "10_two_levels.cuh"

// ---- Rung 0: one level ----------------------------------------------------------------------------------------------
// One warp. The rows of other nodes' ranks go out one by one, each with a signal of its own: 1 is added to the receiver's
// count of this source. Sums of additions do not depend on their order, so this is right on SRD, too.
extern "C" __global__ void dispatch_one_level(Tokens t) {
    const int here = node_of(t, ep::rank());
    store_own_node_warp(t);
    for (int token = 0; token < t.count; ++token) {
        for (int to = ep::lane_id(); to < ep::num_ranks(); to += ep::kWarpSize) {
            if (node_of(t, to) == here || !(t.wants[token] >> to & 1)) continue;
            ep::net_put_signal_nbi(row_of(t.arrived, t, int64_t(ep::rank()) * t.count + token),
                                   row_of(t.rows, t, token), t.words * sizeof(float), t.signals + ep::rank(), 1, to);
        }
    }
    wait_for_rows_warp(t);
    ep::net_quiet();
}

// ---- Rung 1: once per node ------------------------------------------------------------------------------------------
// A message for each token and other node of which some rank needs it. The messages for a node fill the partner's slots
// one after the other: message k of this rank is in slot k of this rank's node. Its signal is the slot's own, is set, and
// says which token it is and who needs it.
EP_DEVICE void send_once_per_node(const Tokens& t, const Relay& relay) {
    // EXERCISE-BEGIN 1
    const int here = node_of(t, ep::rank());
    for (int node = ep::lane_id(); node < num_nodes(t); node += ep::kWarpSize) {
        if (node == here) continue;
        int64_t slot = int64_t(here) * t.count;
        for (int token = 0; token < t.count; ++token) {
            const unsigned wanted = wanted_in(t, token, node);
            if (!wanted) continue;
            ep::net_put_signal_nbi(row_of(relay.rows, t, slot), row_of(t.rows, t, token), t.words * sizeof(float),
                                   relay.labels + slot, label_of(token, wanted), partner_in(t, node), 0,
                                   ep::NetSignal::kSet);
            ++slot;
        }
    }
    // EXERCISE-END 1
}

// The partner's other half: waits for the messages of all other nodes' partners, and stores each row to the ranks of this
// node that need it, as a row of its source. False after a wait that ran into its limit.
EP_DEVICE bool forward_warp(const Tokens& t, const Relay& relay) {
    // EXERCISE-BEGIN 2
    const int here = node_of(t, ep::rank());
    for (int node = 0; node < num_nodes(t); ++node) {
        if (node == here) continue;
        const int source = partner_in(t, node);
        for (int64_t k = 0; k < relay.comes[node]; ++k) {
            const int64_t slot = int64_t(node) * t.count + k;
            if (!ep::wait_until_ge_warp(relay.labels + slot, 1, {ep::kPhaseDispatch, source, k})) return false;
            const uint64_t label = relay.labels[slot];
            for (unsigned left = wanted_of(label); left; left &= left - 1) {
                const int to = first_rank_of(t, here) + __ffs(left) - 1;
                store_row_warp(t, row_of(relay.rows, t, slot), source, token_of(label), to);
            }
        }
    }
    return true;
    // EXERCISE-END 2
}

// Two blocks of one warp: one sends, one forwards. A wait for rows must not hold up rows for which others wait.
extern "C" __global__ void dispatch_two_levels(Tokens t, Relay relay) {
    if (blockIdx.x == 0) {
        send_once_per_node(t, relay);
        store_own_node_warp(t);
        wait_for_rows_warp(t);
        ep::net_quiet();
    } else {
        forward_warp(t, relay);
    }
}

// ---- Rung 2: the way back -------------------------------------------------------------------------------------------
// The experts' results lie in t.arrived of each rank, where the rows came; the host's barrier has come between. A warp adds
// up a token's results on the ranks of a node, in ascending order of ranks, into `sum`.
EP_DEVICE void node_sum_warp(const Tokens& t, float* sum, int source, int token, unsigned wanted) {
    // EXERCISE-BEGIN 3
    const int first = first_rank_of(t, node_of(t, ep::rank()));
    const float* const row = row_of(t.arrived, t, int64_t(source) * t.count + token);
    for (int i = ep::lane_id(); i < t.words; i += ep::kWarpSize) {
        float total = 0.0f;
        for (unsigned left = wanted; left; left &= left - 1) total += ep::peer_ptr(row, first + __ffs(left) - 1)[i];
        sum[i] = total;
    }
    __syncwarp();  // all lanes have stored their part of the sum
    // EXERCISE-END 3
}

// Sends the sums of the tokens that partners have sent here back to them: into slot k of this rank's node, as they came.
EP_DEVICE void return_sums_warp(const Tokens& t, const Relay& relay, const Relay& staging, const Relay& back) {
    // EXERCISE-BEGIN 4
    const int here = node_of(t, ep::rank());
    for (int node = 0; node < num_nodes(t); ++node) {
        for (int64_t k = 0; node != here && k < relay.comes[node]; ++k) {
            const int source = partner_in(t, node);
            const int64_t slot = int64_t(node) * t.count + k, theirs = int64_t(here) * t.count + k;
            const uint64_t label = relay.labels[slot];
            float* const sum = row_of(staging.rows, t, slot);
            node_sum_warp(t, sum, source, token_of(label), wanted_of(label));
            if (ep::lane_id() == 0) {
                ep::net_put_signal_nbi(row_of(back.rows, t, theirs), sum, t.words * sizeof(float), back.labels + theirs,
                                       label, source, 0, ep::NetSignal::kSet);
            }
        }
    }
    // EXERCISE-END 4
}

// Adds up each token's sums, in ascending order of nodes; `own` [words] is for the sum of this rank's node.
EP_DEVICE bool add_nodes_warp(const Tokens& t, const Relay& back, float* own, float* out) {
    const int here = node_of(t, ep::rank());
    for (int64_t i = ep::lane_id(); i < int64_t(t.count) * t.words; i += ep::kWarpSize) out[i] = 0.0f;
    __syncwarp();
    for (int node = 0; node < num_nodes(t); ++node) {
        int64_t slot = int64_t(node) * t.count;
        for (int token = 0; token < t.count; ++token) {
            const unsigned wanted = wanted_in(t, token, node);
            if (!wanted) continue;
            if (node == here) {
                node_sum_warp(t, own, ep::rank(), token, wanted);
            } else if (!ep::wait_until_ge_warp(back.labels + slot, 1,
                                               {ep::kPhaseCombine, partner_in(t, node), token})) {
                return false;
            }
            const float* const sum = node == here ? own : row_of(back.rows, t, slot);
            for (int i = ep::lane_id(); i < t.words; i += ep::kWarpSize) row_of(out, t, token)[i] += sum[i];
            __syncwarp();  // `own` is free for the next token
            ++slot;
        }
    }
    return true;
}

extern "C" __global__ void combine_two_levels(Tokens t, Relay relay, Relay staging, Relay back, float* own,
                                              float* out) {
    if (blockIdx.x == 0) {
        return_sums_warp(t, relay, staging, back);
        if (ep::lane_id() == 0) ep::net_quiet();
    } else {
        add_nodes_warp(t, back, own, out);
    }
}
