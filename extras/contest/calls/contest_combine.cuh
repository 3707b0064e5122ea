// What the kernel of contest_combine.cu calls of the contestant's header.
#include "contest.cuh"

extern "C" __device__ void piece_combine(const Combine& job);
