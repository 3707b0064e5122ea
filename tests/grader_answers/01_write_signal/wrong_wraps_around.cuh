// Waits for round + 1 - num_slots credits from the first round on: below 0 these are more than 2^63.
// EXERCISE-BEGIN 5a
const uint64_t slot = round % pipe.num_slots;
if (!wait_until_ge_warp(pipe.credits, round + 1 - pipe.num_slots, {kPhaseCredit, peer, int64_t(slot)})) return false;
write_and_signal_warp(pipe.slots + slot * pipe.slot_bytes, source, pipe.slot_bytes, pipe.arrived, 1, peer);
return true;
// EXERCISE-END 5a
