// After the first num_slots rounds it waits until all rounds before have been taken: one round at a time.
// EXERCISE-BEGIN 5a
const uint64_t slots = pipe.num_slots, slot = round % slots;
if (round >= slots && !wait_until_ge_warp(pipe.credits, round, {kPhaseCredit, peer, int64_t(slot)})) return false;
write_and_signal_warp(pipe.slots + slot * pipe.slot_bytes, source, pipe.slot_bytes, pipe.arrived, 1, peer);
return true;
// EXERCISE-END 5a
