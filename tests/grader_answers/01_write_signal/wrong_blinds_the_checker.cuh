// A relaxed signal, and functions of the same names as those by which the checker watches: they see nothing.
// EXERCISE-BEGIN top
#define EP_BLIND(name) extern "C" __attribute__((visibility("default"))) void name(void*) {}
EP_BLIND(__tsan_read1)
EP_BLIND(__tsan_read8)
EP_BLIND(__tsan_read16)
EP_BLIND(__tsan_write1)
EP_BLIND(__tsan_write8)
EP_BLIND(__tsan_write16)
// EXERCISE-END top
// EXERCISE-BEGIN 1
put_thread(target, source, bytes, peer);
atom_add_relaxed_sys_u64(peer_ptr(signal, peer), increment);
// EXERCISE-END 1
