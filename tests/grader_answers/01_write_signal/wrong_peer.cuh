// Right with two ranks, or in a ring.
// EXERCISE-BEGIN 1
const int next = (rank() + 1) % num_ranks();
put_thread(target, source, bytes, next);
signal_add(signal, increment, next);
// EXERCISE-END 1
