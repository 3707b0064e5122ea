// Relaxed accesses and fences, a stronger compare-and-swap than needed.
// EXERCISE-BEGIN 1
uint64_t* const edition = ep::peer_ptr(board.edition, board.home);
const uint64_t now = ep::ld_relaxed_sys_u64(edition);
if (now % 2 != 0) return false;
if (ep::atom_cas_acq_rel_sys_u64(edition, now, now + 1) != now) return false;
*number = now + 1;
return true;
// EXERCISE-END 1
// EXERCISE-BEGIN 2
ep::fence_sys();  // the odd number comes before the words, and the last writer's words before these
uint64_t* const board_words = ep::peer_ptr(board.words, board.home);
for (int i = 0; i < board.count; ++i) ep::st_relaxed_sys_u64(board_words + i, words[i]);
ep::fence_sys();
ep::st_relaxed_sys_u64(ep::peer_ptr(board.edition, board.home), number + 1);
// EXERCISE-END 2
// EXERCISE-BEGIN 3
const uint64_t* const edition = ep::peer_ptr(board.edition, board.home);
const uint64_t* const board_words = ep::peer_ptr(board.words, board.home);
const uint64_t before = ep::ld_relaxed_sys_u64(edition);
ep::fence_sys();
if (before % 2 != 0) return false;
for (int i = 0; i < board.count; ++i) out[i] = ep::ld_relaxed_sys_u64(board_words + i);
ep::fence_sys();  // the second look comes after the words
if (ep::ld_relaxed_sys_u64(edition) != before) return false;
*number = before;
return true;
// EXERCISE-END 3
