// Computes an address for ranks that no load can reach.
// EXERCISE-BEGIN 1
return reinterpret_cast<uint64_t>(ep::peer_ptr(ep::ibgda::as_pointer<char>(ptr), dst_rank));
// EXERCISE-END 1
