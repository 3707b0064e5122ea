// Sees the credit, and is ordered behind nothing.
// EXERCISE-BEGIN 1
(void)peer;
while (ld_relaxed_sys_u64(&ring.credits->taken) + ring.num_slots <= number) {
}
return true;
// EXERCISE-END 1
