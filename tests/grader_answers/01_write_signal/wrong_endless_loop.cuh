// Looks at the signal once, then spins on its own copy: nothing outside can end it.
// EXERCISE-BEGIN 2
const uint64_t seen = ld_acquire_sys_u64(signal);
for (volatile uint64_t turns = 0; seen < expected;) turns = turns + 1;
return true;
// EXERCISE-END 2
