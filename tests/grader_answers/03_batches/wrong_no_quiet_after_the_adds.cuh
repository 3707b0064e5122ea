// What was posted is done after a quiet only.
// EXERCISE-BEGIN 3
for (int i = 0; i < times; ++i) nvshmemi_ibgda_amo_nonfetch_add(counters + ep::rank(), 1, target, qp);
// EXERCISE-END 3
