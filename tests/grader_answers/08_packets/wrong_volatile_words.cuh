// Two volatile stores of 8 bytes, by hand.
// EXERCISE-BEGIN 3
for (int i = lane_id(); i < words; i += kWarpSize) {
    volatile TaggedWord* const theirs = peer_ptr(mine + i, peer);
    theirs->data = source[i];
    theirs->tag = tag;
}
// EXERCISE-END 3
