// The report names no rank.
// EXERCISE-BEGIN 2
return wait_until_ge(signal, expected, {kPhaseSignal, -1, -1});
// EXERCISE-END 2
