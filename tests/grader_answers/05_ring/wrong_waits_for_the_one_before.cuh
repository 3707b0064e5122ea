// Off by one: satisfied by nothing at all.
// EXERCISE-BEGIN 3a
return wait_until_ge(ring.arrived + ring_slot(ring, message), message, {phase, ring.peer, ring_slot(ring, message)});
// EXERCISE-END 3a
