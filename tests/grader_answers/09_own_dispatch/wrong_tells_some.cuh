// Ranks that do not want the token hear nothing.
// EXERCISE-BEGIN 2
for (int r = lane_id(); r < num_ranks(); r += kWarpSize) {
    const uint64_t bits = wanted_on(my, choices, count, r);
    if (bits != 0) send_packet(my.routes + slot_of(my, rank(), token), bits, my.epoch, r);
}
// EXERCISE-END 2
