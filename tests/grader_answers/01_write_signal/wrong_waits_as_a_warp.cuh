// Wants all threads of the warp, and one may call alone.
// EXERCISE-BEGIN 2
return wait_until_ge_warp(signal, expected, {kPhaseSignal, peer, -1});
// EXERCISE-END 2
