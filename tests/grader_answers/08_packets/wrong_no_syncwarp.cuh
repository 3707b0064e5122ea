// The vote hands over an answer, but orders no memory.
// EXERCISE-BEGIN 4
bool ok = true;
for (int i = lane_id(); i < words && ok; i += kWarpSize) {
    uint64_t data = 0;
    ok = wait_packet(packets + i, tag, &data, info);
    if (ok) target[i] = data;
}
return __all_sync(kFullWarp, ok) != 0;
// EXERCISE-END 4
