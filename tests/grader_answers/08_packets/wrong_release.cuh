// Right, and what packets are there to avoid: the release waits for the data's way there and back.
// EXERCISE-BEGIN 1
TaggedWord* const theirs = peer_ptr(mine, peer);
st_relaxed_sys_u64(&theirs->data, data);
st_release_sys_u64(&theirs->tag, tag);
// EXERCISE-END 1
