// The report of its wait names no peer.
// EXERCISE-BEGIN 1
if (number < ring.num_slots) return true;
return wait_until_ge(&ring.credits->taken, number - ring.num_slots + 1, {kPhaseProxy, -1, -1});
// EXERCISE-END 1
