// The row goes out right behind its packet, ranks from the last to the first, and signals are added up.
// EXERCISE-BEGIN 3
const int64_t slot = slot_of(my, rank(), token);
for (int r = num_ranks() - 1; r >= 0; --r) {
    if (wanted_on(my, choices, count, r) == 0) continue;
    int4* const target = peer_ptr(my.rows, r) + slot * my.row_vectors;
    for (int i = lane_id(); i < my.row_vectors; i += kWarpSize) target[i] = row[i];
}
__syncwarp();
if (lane_id() == 5) {
    for (int r = 0; r < num_ranks(); ++r) {
        if (wanted_on(my, choices, count, r)) st_release_sys_u64(peer_ptr(my.arrived, r) + slot, my.epoch);
    }
}
// EXERCISE-END 3
// EXERCISE-BEGIN 5
for (int token = first_warp; token < my.max_tokens; token += all_warps) {
    const int* const choices = topk_idx + static_cast<int64_t>(token) * my.top_k;
    const int count = token < my.num_tokens ? my.top_k : 0;
    tell_warp(my, choices, count, token);
    if (count) send_row_warp(my, x + static_cast<int64_t>(token) * my.row_vectors, choices, count, token);
}
for (int i = num_ranks() * my.max_tokens - 1 - first_warp; i >= 0; i -= all_warps) {
    uint64_t bits = 0;
    if (!receive_warp(my, i / my.max_tokens, i % my.max_tokens, &bits)) return;
    if (lane_id() == 9) my.wanted[i] = bits;
}
// EXERCISE-END 5
