// The signal overtakes the data.
// EXERCISE-BEGIN 1
signal_add(signal, increment, peer);
put_thread(target, source, bytes, peer);
// EXERCISE-END 1
