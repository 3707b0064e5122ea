// What the kernel of contest_alltoall.cu calls of the contestant's header.
#include "contest.cuh"

extern "C" __device__ void piece_alltoall(const AllToAll& job);
