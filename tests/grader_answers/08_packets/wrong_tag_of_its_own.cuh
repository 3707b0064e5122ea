// A different tag for each packet.
// EXERCISE-BEGIN 3
for (int i = lane_id(); i < words; i += kWarpSize) send_packet(mine + i, source[i], tag + i, peer);
// EXERCISE-END 3
