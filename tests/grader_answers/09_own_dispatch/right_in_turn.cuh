// Each warp waits for a token of all ranks before it sends its next one: as fast, where all ranks begin together.
// EXERCISE-BEGIN 5
for (int token = first_warp; token < my.max_tokens; token += all_warps) {
    const bool exists = token < my.num_tokens;
    const int* const choices = topk_idx + static_cast<int64_t>(token) * my.top_k;
    tell_warp(my, choices, exists ? my.top_k : 0, token);
    if (exists) send_row_warp(my, x + static_cast<int64_t>(token) * my.row_vectors, choices, my.top_k, token);
    for (int source = 0; source < num_ranks(); ++source) {
        uint64_t bits = 0;
        if (!receive_warp(my, source, token, &bits)) return;
        if (lane_id() == 0) my.wanted[slot_of(my, source, token)] = bits;
    }
}
// EXERCISE-END 5
