// Remembers a credit that never came.
// EXERCISE-BEGIN 1
if (number < ring.num_slots) return true;
const uint64_t needed = number - ring.num_slots + 1;
if (ld_acquire_gpu_u64(&ring.producer->room) >= needed) return true;
const bool has_room = wait_until_ge(&ring.credits->taken, needed, {kPhaseProxy, peer, -1});
st_release_gpu_u64(&ring.producer->room, needed);
return has_room;
// EXERCISE-END 1
