// What the kernel of contest_dispatch.cu calls of the contestant's header.
#include "contest.cuh"

extern "C" __device__ void piece_dispatch(const Dispatch& job);
