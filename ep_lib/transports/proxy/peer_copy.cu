// The kernel of ep_lib.transports.proxy.peer_copy.
#include <ep/peer_copy.cuh>

extern "C" __global__ void ep_peer_copy(const ep::CopyTask* tasks, int count, uint64_t chunk_bytes) {
    ep::peer_copy(tasks, count, chunk_bytes);
}
