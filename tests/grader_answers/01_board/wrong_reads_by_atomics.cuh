// Looks by atomics that change nothing: they write all the same.
// EXERCISE-BEGIN 3
uint64_t* const edition = ep::peer_ptr(board.edition, board.home);
const uint64_t* const board_words = ep::peer_ptr(board.words, board.home);
const uint64_t before = ep::atom_cas_acq_rel_sys_u64(edition, 0, 0);
if (before % 2 != 0) return false;
for (int i = 0; i < board.count; ++i) out[i] = ep::ld_relaxed_sys_u64(board_words + i);
ep::fence_sys();
if (ep::ld_relaxed_sys_u64(edition) != before) return false;
*number = before;
return true;
// EXERCISE-END 3
