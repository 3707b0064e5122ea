// A word of 0 is a word of the edition, too.
    // EXERCISE-BEGIN 3
    const uint64_t* const edition = ep::peer_ptr(board.edition, board.home);
    const uint64_t* const board_words = ep::peer_ptr(board.words, board.home);
    const uint64_t before = ep::ld_acquire_sys_u64(edition);
    if (before % 2 != 0) return false;
    for (int i = 0; i < board.count; ++i) if (const uint64_t word = ep::ld_relaxed_sys_u64(board_words + i)) out[i] = word;
    ep::fence_sys();  // the second look comes after the words
    if (ep::ld_relaxed_sys_u64(edition) != before) return false;
    *number = before;
    return true;
    // EXERCISE-END 3
