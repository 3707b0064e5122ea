// Leaves the bits of the epoch before where nobody wants the token.
// EXERCISE-BEGIN 5
for (int token = first_warp; token < my.max_tokens; token += all_warps) {
    const bool exists = token < my.num_tokens;
    tell_warp(my, exists ? topk_idx + static_cast<int64_t>(token) * my.top_k : nullptr, exists ? my.top_k : 0, token);
}
for (int token = first_warp; token < my.num_tokens; token += all_warps)
    send_row_warp(my, x + static_cast<int64_t>(token) * my.row_vectors, topk_idx + static_cast<int64_t>(token) * my.top_k, my.top_k, token);
for (int i = first_warp; i < num_ranks() * my.max_tokens; i += all_warps) {
    uint64_t bits = 0;
    if (!receive_warp(my, i / my.max_tokens, i % my.max_tokens, &bits)) return;
    if (lane_id() == 0 && bits != 0) my.wanted[i] = bits;
}
// EXERCISE-END 5
