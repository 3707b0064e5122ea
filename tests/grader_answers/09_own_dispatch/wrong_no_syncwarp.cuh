// The signals may overtake other lanes' stores.
// EXERCISE-BEGIN 3
const int64_t slot = slot_of(my, rank(), token);
for (int r = 0; r < num_ranks(); ++r) {
    if (wanted_on(my, choices, count, r) == 0) continue;
    put_warp(my.rows + slot * my.row_vectors, row, my.row_vectors * sizeof(int4), r);
}
for (int r = lane_id(); r < num_ranks(); r += kWarpSize) {
    if (wanted_on(my, choices, count, r) != 0) signal_set(my.arrived + slot, my.epoch, r);
}
// EXERCISE-END 3
