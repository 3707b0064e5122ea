// No limit while it waits for the packet.
// EXERCISE-BEGIN 4
const int64_t slot = slot_of(my, source, token);
uint64_t found = 0, seen = 0;
if (lane_id() == 0) {
    while (seen != my.epoch) ld_relaxed_sys_u64x2(&my.routes[slot].data, &found, &seen);
}
*bits = __shfl_sync(kFullWarp, found, 0);
if (*bits == 0) return true;
if (!wait_until_ge_warp(my.arrived + slot, my.epoch, {kPhaseDispatch, source, token})) return false;
for (uint64_t left = *bits; left != 0; left &= left - 1) {
    const int64_t row = (__ffsll(left) - 1) * static_cast<int64_t>(num_ranks()) * my.max_tokens + slot;
    copy_bytes<kWarpUnroll>(my.out + row * my.row_vectors, my.rows + slot * my.row_vectors,
                            my.row_vectors * sizeof(int4), lane_id(), kWarpSize);
}
return true;
// EXERCISE-END 4
