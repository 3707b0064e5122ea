// Two rounds, or two senders, and the count is wrong.
// EXERCISE-BEGIN 1
put_thread(target, source, bytes, peer);
signal_set(signal, increment, peer);
// EXERCISE-END 1
