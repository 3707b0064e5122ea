// What the kernel of ep-lib contest dispatch calls of the contestant's header.
#include "contest.cuh"
#include "piece.cuh"

PIECE(void, dispatch, (const Dispatch& job), dispatch(job))
