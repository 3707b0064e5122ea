// Two writers see the same even number, and both make it odd.
// EXERCISE-BEGIN 1
uint64_t* const edition = ep::peer_ptr(board.edition, board.home);
const uint64_t now = ep::ld_relaxed_sys_u64(edition);
if (now % 2 != 0) return false;
ep::st_relaxed_sys_u64(edition, now + 1);
*number = now + 1;
return true;
// EXERCISE-END 1
