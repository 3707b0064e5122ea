// Sees the epoch, and perhaps not the rows.
// EXERCISE-BEGIN 4
const uint64_t* const flag = arrived + static_cast<int64_t>(from) * max_groups + group;
while (ld_relaxed_sys_u64(flag) < epoch) {
}
return true;
// EXERCISE-END 4
