// Taken is not done.
// EXERCISE-BEGIN 5a
return wait_until_ge(&ring.credits->taken, number + 1, {kPhaseProxy, -1, -1});
// EXERCISE-END 5a
