// Exercise 01_board, version 1. Leave this line: ep_lib reads it.
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
    // TASK 1 (3 points): one writer at a time
    // Number and words lie on rank board.home: ep::peer_ptr translates. An odd number says that somebody is
    // writing. Two writers may see the same even number: which atomic makes it odd for one of them only, and
    // tells the other? (Its order need not be more than relaxed: publish begins with what is missing.)
    assert(!"Task 1 is still to do: one writer at a time");
    return false;
    // end of TASK 1
}

// Writes the words, and then the even number after `number`, which try_begin gave. A reader that sees one of these
// words and then reads the number gets at least `number`; a reader that gets the even number sees all of these words.
EP_DEVICE void publish(const Board& board, const uint64_t* words, uint64_t number) {
    // TASK 2 (4 points): an edition is published
    // Two directions. The even number says that all words are there: which order must its store have? And a
    // reader that already sees a word of yours must not see the old even number afterwards: the store of the odd
    // number, in try_begin, was relaxed, and so are the stores of the words. What stands between two relaxed
    // stores and keeps them in order?
    assert(!"Task 2 is still to do: an edition is published");
    // end of TASK 2
}

// Copies the words of one edition to `out` and its number to *number. False if a writer was at work before or meanwhile:
// then `out` may hold anything.
EP_DEVICE bool try_read(const Board& board, uint64_t* out, uint64_t* number) {
    // TASK 3 (5 points): a reader that is never torn
    // Look at the number, read the words, look again: an odd number, or another one, and the words may be of two
    // editions. Each look has a neighbour from which it must not move away. The first comes before the words: an
    // acquire. The second comes after them, and an acquire holds only what comes later: what keeps a load behind
    // those before it?
    assert(!"Task 3 is still to do: a reader that is never torn");
    return false;
    // end of TASK 3
}
