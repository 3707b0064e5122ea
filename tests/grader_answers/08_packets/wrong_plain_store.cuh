// The compiler may split it, delay it, or leave it out.
// EXERCISE-BEGIN 1
*peer_ptr(mine, peer) = TaggedWord{data, tag};
// EXERCISE-END 1
