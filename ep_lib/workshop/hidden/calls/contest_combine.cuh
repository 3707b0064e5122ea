// What the kernel of ep-lib contest combine calls of the contestant's header.
#include "contest.cuh"
#include "piece.cuh"

PIECE(void, combine, (const Combine& job), combine(job))
