// A signal from each thread.
    // EXERCISE-BEGIN 2
    ep::signal_add(flag, 1, peer);
    // EXERCISE-END 2
