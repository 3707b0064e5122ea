// A sum that begins with its first number: -0.0 stays -0.0.
// EXERCISE-BEGIN 3
const int first = first_rank_of(t, node_of(t, ep::rank()));
const float* const row = row_of(t.arrived, t, int64_t(source) * t.count + token);
for (int i = ep::lane_id(); i < t.words; i += ep::kWarpSize) {
    float total = ep::peer_ptr(row, first + __ffs(wanted) - 1)[i];
    for (unsigned left = wanted & (wanted - 1); left; left &= left - 1) total += ep::peer_ptr(row, first + __ffs(left) - 1)[i];
    sum[i] = total;
}
__syncwarp();
// EXERCISE-END 3
