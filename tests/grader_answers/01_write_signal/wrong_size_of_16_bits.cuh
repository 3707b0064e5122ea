// 65536 bytes are none.
// EXERCISE-BEGIN 1
put_thread(target, source, static_cast<unsigned short>(bytes), peer);
signal_add(signal, increment, peer);
// EXERCISE-END 1
