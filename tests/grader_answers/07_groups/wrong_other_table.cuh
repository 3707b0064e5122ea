// The sender's table, not one's own.
// EXERCISE-BEGIN 4
const uint64_t* const flag = arrived + static_cast<int64_t>(rank()) * max_groups + group;
return wait_until_ge(peer_ptr(flag, from), epoch, {kPhaseCombine, from, group});
// EXERCISE-END 4
