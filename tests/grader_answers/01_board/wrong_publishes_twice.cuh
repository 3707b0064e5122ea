// The number twice: by the second time another writer may have begun.
// EXERCISE-BEGIN 2
ep::fence_sys();
uint64_t* const board_words = ep::peer_ptr(board.words, board.home);
for (int i = 0; i < board.count; ++i) ep::st_relaxed_sys_u64(board_words + i, words[i]);
uint64_t* const edition = ep::peer_ptr(board.edition, board.home);
ep::st_release_sys_u64(edition, number + 1);
ep::st_relaxed_sys_u64(edition, number + 1);
// EXERCISE-END 2
