// The credit goes another way than the data.
// EXERCISE-BEGIN 3b
net_atomic_add_u64_nbi(ring.credits, 1, ring.peer);
// EXERCISE-END 3b
