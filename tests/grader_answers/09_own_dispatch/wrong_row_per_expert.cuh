// The row for each expert of a rank that wants it, not once to the rank.
// EXERCISE-BEGIN 3
const int64_t slot = slot_of(my, rank(), token);
for (int r = 0; r < num_ranks(); ++r) {
    for (int expert = r * my.experts_per_rank; expert < (r + 1) * my.experts_per_rank; ++expert) {
        bool wanted = false;
        for (int k = 0; k < count; ++k) wanted |= choices[k] == expert;
        if (wanted) put_warp(my.rows + slot * my.row_vectors, row, my.row_vectors * sizeof(int4), r);
    }
}
__syncwarp();
for (int r = lane_id(); r < num_ranks(); r += kWarpSize) {
    if (wanted_on(my, choices, count, r) != 0) signal_set(my.arrived + slot, my.epoch, r);
}
// EXERCISE-END 3
