// A board that rank 0 writes while rank 1 looks at it: small enough for the checker to go through every schedule.
//
// The functions are those of <01_board.cuh>; exercise 01_board lets you write them yourself. Notebook 01b runs this with
// ep_lib.check(..., exhaustive=True).
#include <01_board.cuh>

// Rank 0 publishes an edition of two words, both equal to its number. Rank 1 looks once: out is the number and the two
// words that it was given, or zeros if it is to try again.
extern "C" __global__ void write_and_look(uint64_t* edition, uint64_t* words, uint64_t* out) {
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    const Board board = {edition, words, 2, 0};
    uint64_t number = 0, mine[2];
    if (ep::rank() == 0) {
        if (!try_begin(board, &number)) return;
        mine[0] = mine[1] = number + 1;
        publish(board, mine, number);
    } else if (try_read(board, mine, &number)) {
        out[0] = number;
        out[1] = mine[0];
        out[2] = mine[1];
    }
}
