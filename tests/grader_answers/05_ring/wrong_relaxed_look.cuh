// Sees the credit, and nothing orders what it does with the slot after what the receiver did.
// EXERCISE-BEGIN 1b
return ld_relaxed_sys_u64(ring.credits) >= ring_credits_needed(ring, message);
// EXERCISE-END 1b
