// The first commands wait for about 2 to the power 64 credits.
// EXERCISE-BEGIN 1
return wait_until_ge(&ring.credits->taken, number - ring.num_slots + 1, {kPhaseProxy, peer, -1});
// EXERCISE-END 1
