// Adds 1 to the slot's signal: the number of rounds, not of the message.
// EXERCISE-BEGIN 2
net_put_signal_nbi(ring_received(ring, message), ring_staging(ring, message), bytes,
                   ring.arrived + ring_slot(ring, message), 1, ring.peer, ring.queue_pair, NetSignal::kAdd);
// EXERCISE-END 2
