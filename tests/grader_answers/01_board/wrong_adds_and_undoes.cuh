// Who comes too late leaves a trace, and what is undone later may be another's number.
// EXERCISE-BEGIN 1
uint64_t* const edition = ep::peer_ptr(board.edition, board.home);
const uint64_t old = ep::atom_add_relaxed_sys_u64(edition, 1);
if (old % 2 != 0) {
    ep::atom_add_relaxed_sys_u64(edition, ~0ull);
    return false;
}
*number = old + 1;
return true;
// EXERCISE-END 1
