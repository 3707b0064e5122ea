// The functions of the contestant's header that the kernel of contest_alltoall.cu calls.
#include "contest.cuh"

extern "C" __device__ void piece_alltoall(const AllToAll& job);
