// True also for a group that did not come.
// EXERCISE-BEGIN 4
const uint64_t* const flag = arrived + static_cast<int64_t>(from) * max_groups + group;
wait_until_ge(flag, epoch, {kPhaseCombine, from, group});
return true;
// EXERCISE-END 4
