// Reports another phase than the one it was given.
// EXERCISE-BEGIN 3a
return wait_until_ge(ring.arrived + ring_slot(ring, message), message + 1,
                     {kPhaseSignal, ring.peer, ring_slot(ring, message)});
// EXERCISE-END 3a
