#include <01_board.cuh>  // the piece of 01_board, as its test calls it
#include "ex01_board.cuh"
