// Posts the whole slot, however short the message.
// EXERCISE-BEGIN 2
net_put_signal_nbi(ring_received(ring, message), ring_staging(ring, message), ring.slot_bytes,
                   ring.arrived + ring_slot(ring, message), message + 1, ring.peer, ring.queue_pair, NetSignal::kSet);
// EXERCISE-END 2
