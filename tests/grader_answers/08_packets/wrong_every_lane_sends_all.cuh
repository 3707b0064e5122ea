// Each word once.
// EXERCISE-BEGIN 3
for (int i = lane_id(); i < words; ++i) send_packet(mine + i, source[i], tag, peer);
// EXERCISE-END 3
