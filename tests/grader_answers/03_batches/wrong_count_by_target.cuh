// Every rank counts in its own memory.
// EXERCISE-BEGIN 3
for (int i = 0; i < times; ++i) nvshmemi_ibgda_amo_nonfetch_add(counters + target, 1, ep::rank(), qp);
nvshmemi_ibgda_quiet(target, qp);
// EXERCISE-END 3
