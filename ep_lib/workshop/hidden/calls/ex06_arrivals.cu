// The piece of 06_arrivals, as its test calls it.
#include <ep/all_ranks.cuh>

#define GRADER_PIECE
#include "ex06_arrivals.cuh"
