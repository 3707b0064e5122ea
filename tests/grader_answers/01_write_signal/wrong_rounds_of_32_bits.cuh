// Rounds go on beyond 32 bits.
// EXERCISE-BEGIN 5b
const uint32_t now = round;
const uint64_t slot = now % pipe.num_slots;
if (!wait_until_ge_warp(pipe.arrived, round + 1, {kPhaseSignal, peer, int64_t(slot)})) return false;
copy_bytes<kWarpUnroll>(target, pipe.slots + slot * pipe.slot_bytes, pipe.slot_bytes, lane_id(), kWarpSize);
__syncwarp();
if (lane_id() == 0) signal_add(pipe.credits, 1, peer);
return true;
// EXERCISE-END 5b
