// wait_until_ge_warp in place of a shuffle, the credit asked for by its number.
// EXERCISE-BEGIN 1b
return read_signal(ring.credits) >= ring_credits_needed(ring, message);
// EXERCISE-END 1b
// EXERCISE-BEGIN 3a
bool came = false;
while (!came) came = wait_until_ge(ring.arrived + message % ring.num_slots, message + 1, {phase, ring.peer, 0});
return came;
// EXERCISE-END 3a
// EXERCISE-BEGIN 4a
if (!wait_until_ge_warp(ring.credits, ring_credits_needed(ring, message), {kPhaseCredit, ring.peer, 0})) return false;
copy_bytes<1>(ring_staging(ring, message), source, bytes, lane_id(), kWarpSize);
__syncwarp();
if (lane_id() == 0) ring_post(ring, message, bytes);
__syncwarp();
return true;
// EXERCISE-END 4a
// EXERCISE-BEGIN 4b
if (!wait_until_ge_warp(ring.arrived + ring_slot(ring, message), message + 1, {kPhaseSignal, ring.peer, 0})) return false;
copy_bytes<1>(target, ring_received(ring, message), bytes, lane_id(), kWarpSize);
__syncwarp();
if (lane_id() == 0) ring_return_credit(ring);
return true;
// EXERCISE-END 4b
// EXERCISE-BEGIN 5b
char* to = static_cast<char*>(target);
for (size_t full = bytes / ring.slot_bytes; full > 0; --full, to += ring.slot_bytes)
    if (!ring_receive_warp(ring, to, ring.slot_bytes, (*message)++)) return false;
return bytes % ring.slot_bytes == 0 || ring_receive_warp(ring, to, bytes % ring.slot_bytes, (*message)++);
// EXERCISE-END 5b
