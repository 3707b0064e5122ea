// Two packets for each token and rank, in case that one is lost.
// EXERCISE-BEGIN 2
for (int r = lane_id(); r < num_ranks(); r += kWarpSize) {
    TaggedWord* const packet = my.routes + slot_of(my, rank(), token);
    for (int again = 0; again < 2; ++again) send_packet(packet, wanted_on(my, choices, count, r), my.epoch, r);
}
// EXERCISE-END 2
