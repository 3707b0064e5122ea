// One signal for the whole ring, at both ends.
// EXERCISE-BEGIN 2
net_put_signal_nbi(ring_received(ring, message), ring_staging(ring, message), bytes, ring.arrived, 1, ring.peer,
                   ring.queue_pair, NetSignal::kAdd);
// EXERCISE-END 2
// EXERCISE-BEGIN 3a
return wait_until_ge(ring.arrived, message + 1, {phase, ring.peer, 0});
// EXERCISE-END 3a
