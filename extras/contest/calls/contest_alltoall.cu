// The contestant's header, as the kernel of contest_alltoall.cu calls it.
#include <contest.cuh>

#include <alltoall.cuh>

static_assert(kBlocks >= 1 && kBlocks <= 32 && kThreads >= 32 && kThreads <= 1024 && kThreads % 32 == 0,
              "kBlocks is 1 to 32, kThreads 32 to 1024, a multiple of 32");

extern "C" __device__ void piece_alltoall(const AllToAll& job) { alltoall(job); }
