// Every rank sends a stream to the next rank through one ring: the first warp sends, the second receives.
#include <ep/ring.cuh>

using namespace ep;

EP_DEVICE Ring ring_to(int peer, char* staging, char* slots, uint64_t* counters, int num_slots, int slot_bytes) {
    return {peer, 0, num_slots, static_cast<size_t>(slot_bytes), staging, slots, counters + 1, counters};
}

//   counters  symmetric [1 + num_slots]: credits, then `arrived`
//   messages  [2]: of the next message to send and to receive, kept from one launch to the next
extern "C" __global__ void stream(char* staging, char* slots, uint64_t* counters, int num_slots, int slot_bytes,
                                  const char* source, char* target, int bytes, uint64_t* messages) {
    const int next = (rank() + 1) % num_ranks(), previous = (rank() + num_ranks() - 1) % num_ranks();
    uint64_t message = messages[warp_id()];
    if (warp_id() == 0) {
        const Ring ring = ring_to(next, staging, slots, counters, num_slots, slot_bytes);
        if (!ring_send_stream_warp(ring, source, bytes, &message)) return;
    } else {
        const Ring ring = ring_to(previous, staging, slots, counters, num_slots, slot_bytes);
        if (!ring_receive_stream_warp(ring, target, bytes, &message)) return;
    }
    __syncwarp();
    if (lane_id() == 0) messages[warp_id()] = message;
}
