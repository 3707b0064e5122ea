// The slots of the source's node.
// EXERCISE-BEGIN 4
const int here = node_of(t, ep::rank());
for (int node = 0; node < num_nodes(t); ++node) {
    for (int64_t k = 0; node != here && k < relay.comes[node]; ++k) {
        const int source = partner_in(t, node);
        const int64_t slot = int64_t(node) * t.count + k, theirs = int64_t(node) * t.count + k;
        const uint64_t label = relay.labels[slot];
        float* const sum = row_of(staging.rows, t, slot);
        node_sum_warp(t, sum, source, token_of(label), wanted_of(label));
        if (ep::lane_id() == 0) {
            ep::net_put_signal_nbi(row_of(back.rows, t, theirs), sum, t.words * sizeof(float), back.labels + theirs,
                                   label, source, 0, ep::NetSignal::kSet);
        }
        __syncwarp();
    }
}
// EXERCISE-END 4
