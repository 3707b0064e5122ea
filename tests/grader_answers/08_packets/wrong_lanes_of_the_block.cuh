// A warp that is not the first of its block.
// EXERCISE-BEGIN 3
for (int i = thread_in_block(); i < words; i += kWarpSize) send_packet(mine + i, source[i], tag, peer);
// EXERCISE-END 3
