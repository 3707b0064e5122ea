// A ring that has served 2^32 commands.
// EXERCISE-BEGIN 1
if (number < ring.num_slots) return true;
const uint32_t needed = number - ring.num_slots + 1;
return wait_until_ge(&ring.credits->taken, needed, {kPhaseProxy, peer, -1});
// EXERCISE-END 1
