// Every lane waits for the packet and for the signal itself.
// EXERCISE-BEGIN 1
uint64_t bits = 0;
const int first = r * my.experts_per_rank;
for (int e = 0; e < my.experts_per_rank; ++e) {
    for (int k = 0; k < count; ++k) {
        if (choices[k] == first + e) bits |= uint64_t{1} << e;
    }
}
return bits;
// EXERCISE-END 1
// EXERCISE-BEGIN 2
if (lane_id() != 31) return;
for (int r = 0; r < num_ranks(); ++r) {
    send_packet(&my.routes[slot_of(my, rank(), token)], wanted_on(my, choices, count, r), my.epoch, r);
}
// EXERCISE-END 2
// EXERCISE-BEGIN 4
const int64_t slot = slot_of(my, source, token);
bool ok = wait_packet(my.routes + slot, my.epoch, bits, {kPhaseLayout, source, token});
if (ok && *bits) ok = wait_until_ge(my.arrived + slot, my.epoch, {kPhaseDispatch, source, token});
if (!__all_sync(kFullWarp, ok)) return false;
for (int e = 0; e < my.experts_per_rank; ++e) {
    if ((*bits >> e & 1) == 0) continue;
    const int64_t row = static_cast<int64_t>(e) * num_ranks() * my.max_tokens + slot;
    for (int i = lane_id(); i < my.row_vectors; i += kWarpSize) {
        my.out[row * my.row_vectors + i] = my.rows[slot * my.row_vectors + i];
    }
}
return true;
// EXERCISE-END 4
