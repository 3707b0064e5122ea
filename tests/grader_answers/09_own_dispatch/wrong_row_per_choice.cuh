// A row for each choice: four times to a rank with four of its experts.
// EXERCISE-BEGIN 3
const int64_t slot = slot_of(my, rank(), token);
for (int k = 0; k < count; ++k) {
    if (choices[k] < 0) continue;
    put_warp(my.rows + slot * my.row_vectors, row, my.row_vectors * sizeof(int4), choices[k] / my.experts_per_rank);
}
__syncwarp();
for (int r = lane_id(); r < num_ranks(); r += kWarpSize) {
    if (wanted_on(my, choices, count, r) != 0) signal_set(my.arrived + slot, my.epoch, r);
}
// EXERCISE-END 3
