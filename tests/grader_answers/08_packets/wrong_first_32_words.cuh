// A warp has 32 lanes, a message any number of words.
// EXERCISE-BEGIN 3
if (lane_id() < words) send_packet(mine + lane_id(), source[lane_id()], tag, peer);
// EXERCISE-END 3
