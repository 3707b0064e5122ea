// The lane itself is no lane below.
// EXERCISE-BEGIN 1
const unsigned votes = __ballot_sync(kFullWarp, yes);
*total = __popc(votes);
return __popc(votes & ((2u << lane_id()) - 1));
// EXERCISE-END 1
