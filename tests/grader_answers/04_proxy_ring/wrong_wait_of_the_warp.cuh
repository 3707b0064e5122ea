// One thread waits, and the other lanes are somewhere else.
// EXERCISE-BEGIN 5a
__syncwarp();
return wait_until_ge(&ring.credits->completed, number + 1, {kPhaseProxy, -1, -1});
// EXERCISE-END 5a
