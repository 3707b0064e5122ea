// The tag in the first word.
// EXERCISE-BEGIN 1
st_relaxed_sys_u64x2(&peer_ptr(mine, peer)->data, tag, data);
// EXERCISE-END 1
