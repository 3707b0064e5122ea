// A wait that failed is no credit.
// EXERCISE-BEGIN 5a
const uint64_t slots = pipe.num_slots;
const uint64_t slot = round % slots;
if (round >= slots) wait_until_ge_warp(pipe.credits, round - slots + 1, {kPhaseCredit, peer, int64_t(slot)});
write_and_signal_warp(pipe.slots + slot * pipe.slot_bytes, source, pipe.slot_bytes, pipe.arrived, 1, peer);
return true;
// EXERCISE-END 5a
