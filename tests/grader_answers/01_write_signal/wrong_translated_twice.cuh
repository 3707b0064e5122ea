// put_thread finds the peer's copy itself.
    // EXERCISE-BEGIN 1
    put_thread(peer_ptr(target, peer), source, bytes, peer);
    signal_add(signal, increment, peer);
    // EXERCISE-END 1
