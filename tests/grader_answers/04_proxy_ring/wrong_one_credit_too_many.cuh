// Waits until the proxy is further than it can be.
// EXERCISE-BEGIN 1
return wait_until_ge(&ring.credits->taken, number + 1 < ring.num_slots ? 0 : number - ring.num_slots + 2,
                     {kPhaseProxy, peer, -1});
// EXERCISE-END 1
