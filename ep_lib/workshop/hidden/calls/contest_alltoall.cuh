// What the kernel of ep-lib contest alltoall calls of the contestant's header.
#include "contest.cuh"
#include "piece.cuh"

PIECE(void, alltoall, (const AllToAll& job), alltoall(job))
