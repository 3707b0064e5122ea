// An increment has 64 bits.
// EXERCISE-BEGIN 1
put_thread(target, source, bytes, peer);
signal_add(signal, static_cast<uint32_t>(increment), peer);
// EXERCISE-END 1
