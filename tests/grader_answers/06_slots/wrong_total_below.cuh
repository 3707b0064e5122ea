// The total of those below only.
// EXERCISE-BEGIN 1
const unsigned votes = __ballot_sync(kFullWarp, yes);
*total = __popc(votes & ((1u << lane_id()) - 1));
return *total;
// EXERCISE-END 1
