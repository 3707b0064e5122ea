// The kernels of 10_two_levels.cu with classic mistakes. DELIBERATELY WRONG: for notebooks, tests, the checker.
#include "10_two_levels.cu"

// One block for everything, and it waits for its own rows before it forwards those of others.
extern "C" __global__ void dispatch_waits_first(Tokens t, Relay relay) {
    if (blockIdx.x != 0) return;
    send_once_per_node(t, relay);
    store_own_node_warp(t);
    if (!wait_for_rows_warp(t)) return;
    forward_warp(t, relay);
    ep::net_quiet();
}

// The row, and then its label: two operations instead of one.
extern "C" __global__ void dispatch_two_operations(Tokens t, Relay relay) {
    if (blockIdx.x != 0) {
        forward_warp(t, relay);
        return;
    }
    const int here = node_of(t, ep::rank());
    for (int node = ep::lane_id(); node < num_nodes(t); node += ep::kWarpSize) {
        int64_t slot = int64_t(here) * t.count;
        for (int token = 0; node != here && token < t.count; ++token) {
            const unsigned wanted = wanted_in(t, token, node);
            if (!wanted) continue;
            const int partner = partner_in(t, node);
            ep::net_put_nbi(row_of(relay.rows, t, slot), row_of(t.rows, t, token), t.words * sizeof(float), partner);
            ep::net_put_signal_nbi(relay.rows, t.rows, 0, relay.labels + slot, label_of(token, wanted), partner, 0,
                                   ep::NetSignal::kSet);
            ++slot;
        }
    }
    store_own_node_warp(t);
    wait_for_rows_warp(t);
    ep::net_quiet();
}

// All sums are made in one place of the staging area, which the NIC has not read yet.
extern "C" __global__ void combine_one_staging(Tokens t, Relay relay, Relay staging, Relay back, float* own,
                                               float* out) {
    if (blockIdx.x != 0) {
        add_nodes_warp(t, back, own, out);
        return;
    }
    const int here = node_of(t, ep::rank());
    for (int node = 0; node < num_nodes(t); ++node) {
        for (int64_t k = 0; node != here && k < relay.comes[node]; ++k) {
            const int64_t slot = int64_t(node) * t.count + k, theirs = int64_t(here) * t.count + k;
            const uint64_t label = relay.labels[slot];
            node_sum_warp(t, staging.rows, partner_in(t, node), token_of(label), wanted_of(label));
            if (ep::lane_id() == 0) {
                ep::net_put_signal_nbi(row_of(back.rows, t, theirs), staging.rows, t.words * sizeof(float),
                                       back.labels + theirs, label, partner_in(t, node), 0, ep::NetSignal::kSet);
            }
            __syncwarp();
        }
    }
    if (ep::lane_id() == 0) ep::net_quiet();
}
