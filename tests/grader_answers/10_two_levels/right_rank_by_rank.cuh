// Sums rank by rank in registers of one lane's words, sent back from the last to the first.
// EXERCISE-BEGIN 3
const int here = node_of(t, ep::rank());
for (int i = ep::lane_id(); i < t.words; i += ep::kWarpSize) {
    sum[i] = 0.0f;
    for (int r = 0; r < t.mates; ++r) {
        const float* const row = ep::peer_ptr(t.arrived, here * t.mates + r) + (int64_t(source) * t.count + token) * t.words;
        if (wanted >> r & 1) sum[i] += row[i];
    }
}
__syncwarp();
// EXERCISE-END 3
// EXERCISE-BEGIN 4
const int here = node_of(t, ep::rank());
for (int node = num_nodes(t) - 1; node >= 0; --node) {
    if (node == here) continue;
    for (int k = relay.comes[node] - 1; k >= 0; --k) {
        const int64_t mine = int64_t(node) * t.count + k, theirs = int64_t(here) * t.count + k;
        float* const sum = staging.rows + mine * t.words;
        node_sum_warp(t, sum, partner_in(t, node), token_of(relay.labels[mine]), wanted_of(relay.labels[mine]));
        if (ep::lane_id() == 7) {
            ep::net_put_signal_nbi(back.rows + theirs * t.words, sum, t.words * 4, back.labels + theirs,
                                   relay.labels[mine], partner_in(t, node), 0, ep::NetSignal::kSet);
        }
    }
}
// EXERCISE-END 4
