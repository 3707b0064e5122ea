// Data, then signal, on the same queue pair: right on InfiniBand only.
// EXERCISE-BEGIN 2
net_put_nbi(ring_received(ring, message), ring_staging(ring, message), bytes, ring.peer, ring.queue_pair);
net_put_signal_nbi(ring_received(ring, message), ring_staging(ring, message), 0,
                   ring.arrived + ring_slot(ring, message), message + 1, ring.peer, ring.queue_pair, NetSignal::kSet);
// EXERCISE-END 2
