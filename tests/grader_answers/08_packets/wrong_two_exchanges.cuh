// Data, then tag, by two atomics of 8 bytes: two accesses all the same.
// EXERCISE-BEGIN 1
TaggedWord* const theirs = peer_ptr(mine, peer);
atomicExch_system(reinterpret_cast<unsigned long long*>(&theirs->data), static_cast<unsigned long long>(data));
atomicExch_system(reinterpret_cast<unsigned long long*>(&theirs->tag), static_cast<unsigned long long>(tag));
// EXERCISE-END 1
