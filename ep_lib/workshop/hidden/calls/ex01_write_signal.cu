// The piece of 01_write_signal, as its test calls it.
#include <ep/write_signal.cuh>

#define GRADER_PIECE
#include "ex01_write_signal.cuh"
