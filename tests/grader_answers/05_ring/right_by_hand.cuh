// Raw polling, put and fence and signal in three operations, any lane that likes may wait, post and give back.
// EXERCISE-BEGIN 1a
const int64_t missing = int64_t(message) + 1 - ring.num_slots;
return missing > 0 ? missing : 0;
// EXERCISE-END 1a
// EXERCISE-BEGIN 1b
const uint64_t seen = *(const volatile uint64_t*)ring.credits;
__threadfence_system();
return message < seen + ring.num_slots;
// EXERCISE-END 1b
// EXERCISE-BEGIN 2
net_put_nbi(ring_received(ring, message), ring_staging(ring, message), bytes, ring.peer, ring.queue_pair);
net_fence(ring.peer);
net_put_signal_nbi(ring_received(ring, message), ring_staging(ring, message), 0,
                   &ring.arrived[message % ring.num_slots], message + 1, ring.peer, ring.queue_pair, NetSignal::kSet);
// EXERCISE-END 2
// EXERCISE-BEGIN 3a
const uint64_t* signal = &ring.arrived[message % ring.num_slots];
while (ld_acquire_sys_u64(signal) <= message) {
}
return true;
// EXERCISE-END 3a
// EXERCISE-BEGIN 4a
while (!ring_has_room(ring, message)) {
}
__syncwarp();
char* slot = ring.staging + message % ring.num_slots * ring.slot_bytes;
for (size_t i = lane_id(); i < bytes; i += kWarpSize) slot[i] = static_cast<const char*>(source)[i];
__syncwarp();
if (lane_id() == 31) ring_post(ring, message, bytes);
return true;
// EXERCISE-END 4a
// EXERCISE-BEGIN 4b
if (!ring_wait_for_message(ring, message)) return false;
for (size_t i = lane_id(); i < bytes; i += kWarpSize)
    static_cast<char*>(target)[i] = ring_received(ring, message)[i];
__syncwarp();
if (lane_id() == 31) net_add_u64_nbi(ring.credits, 1, ring.peer, int(message % num_queue_pairs()));
return true;
// EXERCISE-END 4b
// EXERCISE-BEGIN 5a
const char* from = static_cast<const char*>(source);
while (bytes > 0) {
    const size_t now = bytes < ring.slot_bytes ? bytes : ring.slot_bytes;
    if (!ring_send_warp(ring, from, now, (*message)++)) return false;
    from += now;
    bytes -= now;
}
return true;
// EXERCISE-END 5a
