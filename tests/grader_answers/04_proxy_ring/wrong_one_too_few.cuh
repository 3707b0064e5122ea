// Waits for the command before.
// EXERCISE-BEGIN 5a
return wait_until_ge(&ring.credits->completed, number, {kPhaseProxy, -1, -1});
// EXERCISE-END 5a
