// What the test of 00_first_kernel calls of the piece.
#include "piece.cuh"

PIECE(void, write_numbers, (int* box, const int* numbers, int count, int peer),
      write_numbers(box, numbers, count, peer))
PIECE(void, tell, (uint64_t* flag, int peer), tell(flag, peer))
