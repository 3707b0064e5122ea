// The slot of the rank that is told, instead of this one's.
// EXERCISE-BEGIN 2
for (int r = lane_id(); r < num_ranks(); r += kWarpSize) {
    send_packet(my.routes + slot_of(my, r, token), wanted_on(my, choices, count, r), my.epoch, r);
}
// EXERCISE-END 2
