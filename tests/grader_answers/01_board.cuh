// === right_backwards
// EXERCISE-BEGIN 2: The last word first, releases without need, and the odd number found out in the end.
ep::fence_sys();
for (int i = board.count; i-- > 0;) ep::st_release_sys_u64(ep::peer_ptr(board.words + i, board.home), words[i]);
ep::st_release_sys_u64(ep::peer_ptr(board.edition, board.home), number + 1);
// EXERCISE-BEGIN 3
const uint64_t* const edition = ep::peer_ptr(board.edition, board.home);
const uint64_t before = ep::ld_acquire_sys_u64(edition);
for (int i = board.count; i-- > 0;) out[i] = ep::ld_relaxed_sys_u64(ep::peer_ptr(board.words + i, board.home));
ep::fence_sys();
*number = ep::ld_acquire_sys_u64(edition);
return *number == before && (before & 1) == 0;
// === right_by_fences
// EXERCISE-BEGIN 1: Relaxed accesses and fences, a stronger compare-and-swap than needed.
-    if (ep::atom_cas_relaxed_sys_u64(edition, now, now + 1) != now) return false;
+    if (ep::atom_cas_acq_rel_sys_u64(edition, now, now + 1) != now) return false;
// EXERCISE-BEGIN 2
-    ep::st_release_sys_u64(ep::peer_ptr(board.edition, board.home), number + 1);
+    ep::fence_sys();
+    ep::st_relaxed_sys_u64(ep::peer_ptr(board.edition, board.home), number + 1);
// EXERCISE-BEGIN 3
-    const uint64_t before = ep::ld_acquire_sys_u64(edition);
+    const uint64_t before = ep::ld_relaxed_sys_u64(edition);
+    ep::fence_sys();
// === wrong_odd_number_comes_late: 2: had words of two editions
// EXERCISE-BEGIN 2: Nothing keeps the words behind the odd number, which a relaxed atomic has stored.
-    ep::fence_sys();  // the odd number comes before the words, and the last writer's words before these
// === wrong_relaxed_number: 2: had words of two editions
// EXERCISE-BEGIN 2: The even number may come before the words.
-    ep::st_release_sys_u64(ep::peer_ptr(board.edition, board.home), number + 1);
+    ep::st_relaxed_sys_u64(ep::peer_ptr(board.edition, board.home), number + 1);
// === wrong_number_before_words: 2: had words of two editions
// EXERCISE-BEGIN 2: The even number is there, and then the words come.
ep::fence_sys();  // the odd number comes before the words, and the last writer's words before these
ep::st_release_sys_u64(ep::peer_ptr(board.edition, board.home), number + 1);
uint64_t* const board_words = ep::peer_ptr(board.words, board.home);
for (int i = 0; i < board.count; ++i) ep::st_relaxed_sys_u64(board_words + i, words[i]);
// === wrong_no_second_look: 3: had words of two editions
// EXERCISE-BEGIN 3: What was read may be of two editions, if a writer came meanwhile: there is no second look.
-    ep::fence_sys();  // the second look comes after the words
-    if (ep::ld_relaxed_sys_u64(edition) != before) return false;
// === wrong_acquire_for_the_second_look: 3: had words of two editions
// EXERCISE-BEGIN 3: An acquire holds what comes after it; the words come before.
-    ep::fence_sys();  // the second look comes after the words
-    if (ep::ld_relaxed_sys_u64(edition) != before) return false;
+    if (ep::ld_acquire_sys_u64(edition) != before) return false;
// === wrong_reads_while_odd: 3: try_read returned true, where false is right
// EXERCISE-BEGIN 3: Two equal numbers, and odd ones: somebody was writing all the time.
-    if (before % 2 != 0) return false;
// === wrong_plain_words: 3: uses a plain access
// EXERCISE-BEGIN 3: Readers look while a writer writes: a plain load races.
-    for (int i = 0; i < board.count; ++i) out[i] = ep::ld_relaxed_sys_u64(board_words + i);
+    for (int i = 0; i < board.count; ++i) out[i] = board_words[i];
// === wrong_reads_by_atomics: 3: a reader only loads
// EXERCISE-BEGIN 3: Looks by atomics that change nothing: they write all the same.
-    const uint64_t* const edition = ep::peer_ptr(board.edition, board.home);
+    uint64_t* const edition = ep::peer_ptr(board.edition, board.home);
@@
-    const uint64_t before = ep::ld_acquire_sys_u64(edition);
+    const uint64_t before = ep::atom_cas_acq_rel_sys_u64(edition, 0, 0);
// === wrong_publishes_twice: 2: was changed again while the next writer was at work
// EXERCISE-BEGIN 2: The number twice: by the second time another writer may have begun.
-    ep::st_release_sys_u64(ep::peer_ptr(board.edition, board.home), number + 1);
+    uint64_t* const edition = ep::peer_ptr(board.edition, board.home);
+    ep::st_release_sys_u64(edition, number + 1);
+    ep::st_relaxed_sys_u64(edition, number + 1);
// === wrong_eight_words: 3: try_read gave as word
// EXERCISE-BEGIN 3: A board may have more words than eight.
-    for (int i = 0; i < board.count; ++i) out[i] = ep::ld_relaxed_sys_u64(board_words + i);
+    for (int i = 0; i < min(board.count, 8); ++i) out[i] = ep::ld_relaxed_sys_u64(board_words + i);
// === wrong_leaves_a_number: 1: try_begin returned false, and changed *number to
// EXERCISE-BEGIN 1: What it has seen, also where it returns false.
uint64_t* const edition = ep::peer_ptr(board.edition, board.home);
const uint64_t now = ep::ld_relaxed_sys_u64(edition);
*number = now + 1;
return now % 2 == 0 && ep::atom_cas_relaxed_sys_u64(edition, now, now + 1) == now;
// === wrong_adds_and_undoes: 1: a compare-and-swap writes only where it wins
// EXERCISE-BEGIN 1: Who comes too late leaves a trace, and what is undone later may be another's number.
uint64_t* const edition = ep::peer_ptr(board.edition, board.home);
const uint64_t old = ep::atom_add_relaxed_sys_u64(edition, 1);
if (old % 2 != 0) {
    ep::atom_add_relaxed_sys_u64(edition, ~0ull);
    return false;
}
*number = old + 1;
return true;
// === wrong_store_in_place_of_cas: 1: two writers had begun at the same time
// EXERCISE-BEGIN 1: Two writers see the same even number, and both make it odd.
-    if (ep::atom_cas_relaxed_sys_u64(edition, now, now + 1) != now) return false;
+    ep::st_relaxed_sys_u64(edition, now + 1);
// === wrong_own_board: 1: try_begin left the number
// EXERCISE-BEGIN 1: The number of this rank's own copy, which is no board.
-    uint64_t* const edition = ep::peer_ptr(board.edition, board.home);
+    uint64_t* const edition = board.edition;
// === wrong_waits_for_its_turn: 1: No call waits
// EXERCISE-BEGIN 1: Who is too late is told so, and does not wait.
uint64_t* const edition = ep::peer_ptr(board.edition, board.home);
for (;;) {
    const uint64_t now = ep::ld_relaxed_sys_u64(edition);
    if (now % 2 != 0 || ep::atom_cas_relaxed_sys_u64(edition, now, now + 1) != now) continue;
    *number = now + 1;
    return true;
}
// === wrong_writer_waits_for_its_warp: 2: waits in __syncwarp
// EXERCISE-BEGIN 2: One thread publishes, and the other lanes are somewhere else.
     ep::fence_sys();  // the odd number comes before the words, and the last writer's words before these
+    __syncwarp();
// === wrong_publishes_no_zeros: 2: try_read gave as word 0
// EXERCISE-BEGIN 2: A word of 0 is a word of the edition, too.
-    for (int i = 0; i < board.count; ++i) ep::st_relaxed_sys_u64(board_words + i, words[i]);
+    for (int i = 0; i < board.count; ++i) if (words[i]) ep::st_relaxed_sys_u64(board_words + i, words[i]);
// === wrong_copies_no_zeros: 3: try_read gave as word 0
// EXERCISE-BEGIN 3: A word of 0 is a word of the edition, too.
-    for (int i = 0; i < board.count; ++i) out[i] = ep::ld_relaxed_sys_u64(board_words + i);
+    for (int i = 0; i < board.count; ++i) if (const uint64_t word = ep::ld_relaxed_sys_u64(board_words + i)) out[i] = word;
// === wrong_number_0_untold: 3: try_read gave the number 7
// EXERCISE-BEGIN 3: A board that is new has number 0, which is told as any other.
-    *number = before;
+    if (before) *number = before;
// === wrong_second_look_of_8_bits: 3: had words of two editions
// EXERCISE-BEGIN 3: Meanwhile 128 editions may have come.
-    if (ep::ld_relaxed_sys_u64(edition) != before) return false;
+    if (static_cast<uint8_t>(ep::ld_relaxed_sys_u64(edition) ^ before) != 0) return false;
// === wrong_second_look_of_32_bits: 3: had words of two editions
// EXERCISE-BEGIN 3: Meanwhile 2^31 editions may have come.
-    if (ep::ld_relaxed_sys_u64(edition) != before) return false;
+    if (static_cast<uint32_t>(ep::ld_relaxed_sys_u64(edition) ^ before) != 0) return false;
