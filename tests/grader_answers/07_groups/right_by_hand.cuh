// Without the helpers.
// EXERCISE-BEGIN 1a
return rows / group_rows + (rows % group_rows != 0);
// EXERCISE-END 1a
// EXERCISE-BEGIN 1b
return index == rows - 1 || index % group_rows == group_rows - 1;
// EXERCISE-END 1b
// EXERCISE-BEGIN 2
const int others = num_ranks() - 1, group = item / others;
int owner = rank() + 1 + item % others;
if (owner >= num_ranks()) owner -= num_ranks();
return {owner, group};
// EXERCISE-END 2
// EXERCISE-BEGIN 3
fence_sys();
st_relaxed_sys_u64(peer_ptr(arrived, owner) + rank() * max_groups + group, epoch);
// EXERCISE-END 3
// EXERCISE-BEGIN 4
const uint64_t* const flag = arrived + from * max_groups + group;
while (ld_acquire_sys_u64(flag) < epoch) {
    if (has_fault()) return false;
}
return true;
// EXERCISE-END 4
