// A word of 0 is a word of the edition, too.
    // EXERCISE-BEGIN 2
    ep::fence_sys();  // the odd number comes before the words, and the last writer's words before these
    uint64_t* const board_words = ep::peer_ptr(board.words, board.home);
    for (int i = 0; i < board.count; ++i) if (words[i]) ep::st_relaxed_sys_u64(board_words + i, words[i]);
    ep::st_release_sys_u64(ep::peer_ptr(board.edition, board.home), number + 1);
    // EXERCISE-END 2
