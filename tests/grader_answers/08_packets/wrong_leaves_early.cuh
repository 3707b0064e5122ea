// A lane that gives up leaves, and the vote of the others waits for it.
// EXERCISE-BEGIN 4
for (int i = lane_id(); i < words; i += kWarpSize) {
    uint64_t data;
    if (!wait_packet(packets + i, tag, &data, info)) return false;
    target[i] = data;
}
const bool all = __all_sync(kFullWarp, 1) != 0;
__syncwarp();
return all;
// EXERCISE-END 4
