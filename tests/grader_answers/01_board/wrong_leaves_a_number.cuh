// What it has seen, also where it returns false.
// EXERCISE-BEGIN 1
uint64_t* const edition = ep::peer_ptr(board.edition, board.home);
const uint64_t now = ep::ld_relaxed_sys_u64(edition);
*number = now + 1;
return now % 2 == 0 && ep::atom_cas_relaxed_sys_u64(edition, now, now + 1) == now;
// EXERCISE-END 1
