// Off by one: lane 31's share is never copied.
// EXERCISE-BEGIN 2
char* to = ep::peer_ptr(static_cast<char*>(remote), dst_pe);
for (size_t i = lane_id; i < bytes && lane_id < ep::kWarpSize - 1; i += ep::kWarpSize)
    to[i] = static_cast<const char*>(local)[i];
__syncwarp();
// EXERCISE-END 2
