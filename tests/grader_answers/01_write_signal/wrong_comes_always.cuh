// True also after the limit.
// EXERCISE-BEGIN 2
wait_until_ge(signal, expected, {kPhaseSignal, peer, -1});
return true;
// EXERCISE-END 2
