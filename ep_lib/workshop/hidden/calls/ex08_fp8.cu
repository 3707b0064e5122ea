// The piece of 08_fp8, as its test calls it.
#include <ep/fp8.cuh>

#define GRADER_PIECE
#include "ex08_fp8.cuh"
