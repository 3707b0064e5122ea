// Reports a message in place of its slot, and no peer.
// EXERCISE-BEGIN 3a
return wait_until_ge(ring.arrived + ring_slot(ring, message), message + 1, {phase, -1, static_cast<int64_t>(message)});
// EXERCISE-END 3a
