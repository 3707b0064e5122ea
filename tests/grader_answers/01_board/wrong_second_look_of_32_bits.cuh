// Meanwhile 2^31 editions may have come.
    // EXERCISE-BEGIN 3
    const uint64_t* const edition = ep::peer_ptr(board.edition, board.home);
    const uint64_t* const board_words = ep::peer_ptr(board.words, board.home);
    const uint64_t before = ep::ld_acquire_sys_u64(edition);
    if (before % 2 != 0) return false;
    for (int i = 0; i < board.count; ++i) out[i] = ep::ld_relaxed_sys_u64(board_words + i);
    ep::fence_sys();  // the second look comes after the words
    if (static_cast<uint32_t>(ep::ld_relaxed_sys_u64(edition) ^ before) != 0) return false;
    *number = before;
    return true;
    // EXERCISE-END 3
