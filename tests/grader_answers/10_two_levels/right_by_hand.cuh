// One lane sends; lanes 0 and 31 share nothing; another loop over the bits.
// EXERCISE-BEGIN 1
if (ep::lane_id() == 0) {
    const int here = ep::rank() / t.mates;
    for (int node = num_nodes(t) - 1; node >= 0; --node) {
        int k = 0;
        for (int token = 0; node != here && token < t.count; ++token) {
            const unsigned wanted = wanted_in(t, token, node);
            if (wanted == 0) continue;
            const int64_t slot = int64_t(here) * t.count + k++;
            ep::net_put_nbi(row_of(relay.rows, t, slot), row_of(t.rows, t, token), t.words * 4, partner_in(t, node));
            ep::net_fence(partner_in(t, node));
            ep::net_put_signal_nbi(relay.rows, t.rows, 0, relay.labels + slot, label_of(token, wanted),
                                   partner_in(t, node), 0, ep::NetSignal::kSet);
        }
    }
}
// EXERCISE-END 1
// EXERCISE-BEGIN 2
const int here = ep::rank() / t.mates;
for (int node = num_nodes(t) - 1; node >= 0; --node) {
    for (int k = 0; node != here && k < relay.comes[node]; ++k) {
        const int64_t slot = int64_t(node) * t.count + k;
        uint64_t label;
        while ((label = ep::ld_acquire_sys_u64(relay.labels + slot)) == 0) {
        }
        for (int r = 0; r < t.mates; ++r) {
            if (wanted_of(label) >> r & 1) {
                store_row_warp(t, relay.rows + slot * t.words, partner_in(t, node), token_of(label), here * t.mates + r);
            }
        }
    }
}
return true;
// EXERCISE-END 2
