// Says that it waits for a signal of its own.
// EXERCISE-BEGIN 4
const uint64_t* const flag = arrived + static_cast<int64_t>(from) * max_groups + group;
return wait_until_ge(flag, epoch, {kPhaseSignal, rank(), -1});
// EXERCISE-END 4
