// Hands out this rank's own address for every peer in reach.
// EXERCISE-BEGIN 1
return ep::reachable(dst_rank) ? ptr : 0;
// EXERCISE-END 1
