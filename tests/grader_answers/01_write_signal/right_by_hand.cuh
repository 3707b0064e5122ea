// No helper of put.cuh, signal.cuh or wait.cuh: loops of bytes, a fence and a relaxed add, raw polling.
// EXERCISE-BEGIN 1
char* to = peer_ptr(static_cast<char*>(target), peer);
for (size_t i = 0; i < bytes; ++i) to[i] = static_cast<const char*>(source)[i];
fence_sys();
atom_add_relaxed_sys_u64(peer_ptr(signal, peer), increment);
// EXERCISE-END 1
// EXERCISE-BEGIN 2
while (ld_acquire_sys_u64(signal) < expected) {
}
return true;
// EXERCISE-END 2
// EXERCISE-BEGIN 3
char* to = peer_ptr(static_cast<char*>(target), peer);
for (size_t i = lane_id(); i < bytes; i += kWarpSize) to[i] = static_cast<const char*>(source)[i];
__syncwarp();
fence_sys();
if (lane_id() == kWarpSize - 1) atom_add_relaxed_sys_u64(peer_ptr(signal, peer), increment);
// EXERCISE-END 3
// EXERCISE-BEGIN 4
for (int i = 0; i < count; ++i) {
    char* to = peer_ptr(static_cast<char*>(writes[i].target), peer);
    const char* from = static_cast<const char*>(writes[i].source);
    for (size_t k = lane_id(); k < writes[i].bytes; k += kWarpSize) to[k] = from[k];
}
__syncwarp();
if (lane_id() == 0) red_add_release_sys_u64(peer_ptr(signal, peer), increment);
// EXERCISE-END 4
// EXERCISE-BEGIN 5a
char* slot = pipe.slots + round % pipe.num_slots * pipe.slot_bytes;
while (ld_acquire_sys_u64(pipe.credits) + pipe.num_slots <= round) {
}
char* to = peer_ptr(slot, peer);
for (size_t i = lane_id(); i < pipe.slot_bytes; i += kWarpSize) to[i] = static_cast<const char*>(source)[i];
__syncwarp();
if (lane_id() == 0) red_add_release_sys_u64(peer_ptr(pipe.arrived, peer), 1);
return true;
// EXERCISE-END 5a
// EXERCISE-BEGIN 5b
const char* slot = pipe.slots + round % pipe.num_slots * pipe.slot_bytes;
while (ld_acquire_sys_u64(pipe.arrived) <= round) {
}
for (size_t i = lane_id(); i < pipe.slot_bytes; i += kWarpSize) static_cast<char*>(target)[i] = slot[i];
__syncwarp();
if (lane_id() == 0) red_add_release_sys_u64(peer_ptr(pipe.credits, peer), 1);
return true;
// EXERCISE-END 5b
