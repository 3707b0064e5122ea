// A board: a few words of one rank that any thread of any rank may write anew, and read, at any time. A reader gets the
// words of one edition, all of them, or false: try again. It never waits for a writer, and leaves no trace.
//
//     writer    try_begin   the edition's number becomes odd: a thread is writing, and no other one begins
//               publish     the words, and then the next even number
//     reader    try_read    the number, the words, and the number again: are they the words of one edition?
//
// All accesses of number and words are atomic ones of 64 bits, since readers look while a writer writes. This is a
// sequence lock (Linux has them since 2.5.60; Boehm, "Can Seqlocks Get Along with Programming Language Memory Models?",
// MSPC 2012, says which orders they need). Exercise 01_board lets you write these functions yourself.
#pragma once
#include <ep/memory.cuh>
#include <ep/peer.cuh>

// Symmetric arrays, passed as this rank's own copies; the board is the copy of rank `home`.
struct Board {
    uint64_t* edition;  // even: that many halves of editions are complete; odd: one is being written
    uint64_t* words;    // [count]
    int count;
    int home;
};

// Takes the board for writing: makes the edition's number odd, and passes it on in *number. False, without a trace
// (also *number stays as it was), if another thread is writing or was quicker. One thread calls this and the functions
// below.
EP_DEVICE bool try_begin(const Board& board, uint64_t* number) {
    // EXERCISE-BEGIN 1
    uint64_t* const edition = ep::peer_ptr(board.edition, board.home);
    const uint64_t now = ep::ld_relaxed_sys_u64(edition);
    if (now % 2 != 0) return false;
    if (ep::atom_cas_relaxed_sys_u64(edition, now, now + 1) != now) return false;
    *number = now + 1;
    return true;
    // EXERCISE-END 1
}

// Writes the words, and then the even number after `number`, which try_begin gave. A reader that sees one of these
// words and then reads the number gets at least `number`; a reader that gets the even number sees all of these words.
EP_DEVICE void publish(const Board& board, const uint64_t* words, uint64_t number) {
    // EXERCISE-BEGIN 2
    ep::fence_sys();  // the odd number comes before the words, and the last writer's words before these
    uint64_t* const board_words = ep::peer_ptr(board.words, board.home);
    for (int i = 0; i < board.count; ++i) ep::st_relaxed_sys_u64(board_words + i, words[i]);
    ep::st_release_sys_u64(ep::peer_ptr(board.edition, board.home), number + 1);
    // EXERCISE-END 2
}

// Copies the words of one edition to `out` and its number to *number. False if a writer was at work before or meanwhile:
// then `out` may hold anything.
EP_DEVICE bool try_read(const Board& board, uint64_t* out, uint64_t* number) {
    // EXERCISE-BEGIN 3
    const uint64_t* const edition = ep::peer_ptr(board.edition, board.home);
    const uint64_t* const board_words = ep::peer_ptr(board.words, board.home);
    const uint64_t before = ep::ld_acquire_sys_u64(edition);
    if (before % 2 != 0) return false;
    for (int i = 0; i < board.count; ++i) out[i] = ep::ld_relaxed_sys_u64(board_words + i);
    ep::fence_sys();  // the second look comes after the words
    if (ep::ld_relaxed_sys_u64(edition) != before) return false;
    *number = before;
    return true;
    // EXERCISE-END 3
}
