// One thread calls, and the other lanes are somewhere else.
// EXERCISE-BEGIN 1
put_thread(target, source, bytes, peer);
__syncwarp();
signal_add(signal, increment, peer);
// EXERCISE-END 1
