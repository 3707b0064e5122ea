// No limit: a peer that is gone takes this GPU along.
// EXERCISE-BEGIN 2
uint64_t seen = 0;
while (seen != tag) ld_relaxed_sys_u64x2(&packet->data, data, &seen);
(void)info;
return true;
// EXERCISE-END 2
