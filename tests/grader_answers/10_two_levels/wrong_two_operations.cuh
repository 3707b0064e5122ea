// The row, and then the label: they may arrive the other way round.
// EXERCISE-BEGIN 1
const int here = node_of(t, ep::rank());
for (int node = ep::lane_id(); node < num_nodes(t); node += ep::kWarpSize) {
    if (node == here) continue;
    int64_t slot = int64_t(here) * t.count;
    for (int token = 0; token < t.count; ++token) {
        const unsigned wanted = wanted_in(t, token, node);
        if (!wanted) continue;
        ep::net_put_nbi(row_of(relay.rows, t, slot), row_of(t.rows, t, token), t.words * sizeof(float),
                        partner_in(t, node));
        ep::net_put_signal_nbi(relay.rows, t.rows, 0, relay.labels + slot, label_of(token, wanted), partner_in(t, node), 0,
                               ep::NetSignal::kSet);
        ++slot;
    }
}
// EXERCISE-END 1
