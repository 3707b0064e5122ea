// After 255 chunks the arrival begins again.
    // EXERCISE-BEGIN 2
    char* const staging = slot_of(ring.staging, streams, ring, peer, chunk);
    const size_t bytes = fill_slot(staging, streams, ring, peer, chunk);
    if (ep::lane_id() == 0) {
        const int qp = static_cast<int>(chunk % ep::num_queue_pairs());
        ep::net_put_signal_nbi(slot_of(ring.inbox, streams, ring, ep::rank(), chunk), staging, bytes,
                               arrived_of(ring, ep::rank(), chunk), static_cast<uint8_t>(chunk + 1), peer, qp, ep::NetSignal::kSet);
    }
    // EXERCISE-END 2
