// What was read may be of two editions, if a writer came meanwhile: nobody looks again.
// EXERCISE-BEGIN 3
const uint64_t* const edition = ep::peer_ptr(board.edition, board.home);
const uint64_t* const board_words = ep::peer_ptr(board.words, board.home);
const uint64_t before = ep::ld_acquire_sys_u64(edition);
if (before % 2 != 0) return false;
for (int i = 0; i < board.count; ++i) out[i] = ep::ld_relaxed_sys_u64(board_words + i);
*number = before;
return true;
// EXERCISE-END 3
