// Lane 0's packets have come, so the others' will have?
// EXERCISE-BEGIN 4
uint64_t data;
int ok = lane_id() == 0 ? wait_packet(packets, tag, &data, info) : 0;
ok = __shfl_sync(kFullWarp, ok, 0);
__syncwarp();
for (int i = lane_id(); i < words && ok; i += kWarpSize) {
    uint64_t seen;
    ld_relaxed_sys_u64x2(&packets[i].data, target + i, &seen);
}
__syncwarp();
return ok;
// EXERCISE-END 4
