// Data, then tag, in two stores of 8 bytes: on the wire the tag may overtake.
// EXERCISE-BEGIN 1
TaggedWord* const theirs = peer_ptr(mine, peer);
st_relaxed_sys_u64(&theirs->data, data);
st_relaxed_sys_u64(&theirs->tag, tag);
// EXERCISE-END 1
