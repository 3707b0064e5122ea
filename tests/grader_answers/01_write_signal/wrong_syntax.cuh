// Does not compile.
// EXERCISE-BEGIN 1
put_thread(target, source, bytes, peer)
signal_add(signal, increment, peer);
// EXERCISE-END 1
