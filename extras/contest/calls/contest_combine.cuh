// The functions of the contestant's header that the kernel of contest_combine.cu calls.
#include "contest.cuh"

extern "C" __device__ void piece_combine(const Combine& job);
