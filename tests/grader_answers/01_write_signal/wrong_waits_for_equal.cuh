// Hangs when the peer is a signal ahead.
// EXERCISE-BEGIN 2
return wait_until_eq(signal, expected, {kPhaseSignal, peer, -1});
// EXERCISE-END 2
