// Every word into the lane's first packet.
// EXERCISE-BEGIN 3
for (int i = lane_id(); i < words; i += kWarpSize) send_packet(mine + lane_id(), source[i], tag, peer);
// EXERCISE-END 3
