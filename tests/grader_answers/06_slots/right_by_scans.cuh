// The bits up to and with this lane, less its own.
// EXERCISE-BEGIN 1
const unsigned votes = __ballot_sync(kFullWarp, yes ? 1 : 0);
*total = __popc(votes);
return __popc(votes & (0xffffffffu >> (31 - lane_id()))) - (yes ? 1 : 0);
// EXERCISE-END 1
// EXERCISE-BEGIN 3
const int* at = counts;
int rows = 0;
for (int s = 0; s != source; ++s, at += stride) rows += *at;
return rows;
// EXERCISE-END 3
