// All ranks add to one counter, which GPUs and NICs then share.
// EXERCISE-BEGIN 3
for (int i = 0; i < times; ++i) nvshmemi_ibgda_amo_nonfetch_add(counters + target, 1, target, qp);
nvshmemi_ibgda_quiet(target, qp);
// EXERCISE-END 3
