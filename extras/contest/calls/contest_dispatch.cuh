// The functions of the contestant's header that the kernel of contest_dispatch.cu calls.
#include "contest.cuh"

extern "C" __device__ void piece_dispatch(const Dispatch& job);
