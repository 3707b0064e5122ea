// The last word first, releases that nobody needs, and the odd number found out in the end.
// EXERCISE-BEGIN 2
ep::fence_sys();
for (int i = board.count; i-- > 0;) ep::st_release_sys_u64(ep::peer_ptr(board.words + i, board.home), words[i]);
ep::st_release_sys_u64(ep::peer_ptr(board.edition, board.home), number + 1);
// EXERCISE-END 2
// EXERCISE-BEGIN 3
const uint64_t* const edition = ep::peer_ptr(board.edition, board.home);
const uint64_t before = ep::ld_acquire_sys_u64(edition);
for (int i = board.count; i-- > 0;) out[i] = ep::ld_relaxed_sys_u64(ep::peer_ptr(board.words + i, board.home));
ep::fence_sys();
*number = ep::ld_acquire_sys_u64(edition);
return *number == before && (before & 1) == 0;
// EXERCISE-END 3
