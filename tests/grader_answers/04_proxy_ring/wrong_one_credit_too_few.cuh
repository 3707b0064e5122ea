// Off by one: the command before the one that lay in the slot was taken, not that one.
// EXERCISE-BEGIN 1
if (number < ring.num_slots) return true;
return wait_until_ge(&ring.credits->taken, number - ring.num_slots, {kPhaseProxy, peer, -1});
// EXERCISE-END 1
