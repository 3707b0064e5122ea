// The report is about a slot.
// EXERCISE-BEGIN 3a
return wait_until_ge(ring.arrived + ring_slot(ring, message), message + 1,
                     {phase, ring.peer, static_cast<int64_t>(message)});
// EXERCISE-END 3a
