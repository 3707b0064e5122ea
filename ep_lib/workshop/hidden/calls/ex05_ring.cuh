// What the test of 05_ring calls of the piece.
#include "piece.cuh"
#include <ep/wait.cuh>

namespace given {

// Mirrors the piece's.
struct Ring {
    int peer, queue_pair, num_slots;
    size_t slot_bytes;
    char *staging, *slots;
    uint64_t *arrived, *credits;
};

}  // namespace given

#ifdef GRADER_PIECE
EP_DEVICE ep::Ring learners(const given::Ring& r) {
    return {r.peer, r.queue_pair, r.num_slots, r.slot_bytes, r.staging, r.slots, r.arrived, r.credits};
}
#endif

PIECE(uint64_t, ring_credits_needed, (const given::Ring& ring, uint64_t message),
      ep::ring_credits_needed(learners(ring), message))
PIECE(bool, ring_has_room, (const given::Ring& ring, uint64_t message), ep::ring_has_room(learners(ring), message))
PIECE(bool, ring_wait_for_room, (const given::Ring& ring, uint64_t message),
      ep::ring_wait_for_room(learners(ring), message))
PIECE(void, ring_post, (const given::Ring& ring, uint64_t message, size_t bytes),
      ep::ring_post(learners(ring), message, bytes))
PIECE(bool, ring_wait_for_message, (const given::Ring& ring, uint64_t message, ep::Phase phase),
      ep::ring_wait_for_message(learners(ring), message, phase))
PIECE(void, ring_return_credit, (const given::Ring& ring), ep::ring_return_credit(learners(ring)))
PIECE(bool, ring_send_warp, (const given::Ring& ring, const void* source, size_t bytes, uint64_t message),
      ep::ring_send_warp(learners(ring), source, bytes, message))
PIECE(bool, ring_receive_warp, (const given::Ring& ring, void* target, size_t bytes, uint64_t message),
      ep::ring_receive_warp(learners(ring), target, bytes, message))
PIECE(bool, ring_send_stream_warp, (const given::Ring& ring, const void* source, size_t bytes, uint64_t* message),
      ep::ring_send_stream_warp(learners(ring), source, bytes, message))
PIECE(bool, ring_receive_stream_warp, (const given::Ring& ring, void* target, size_t bytes, uint64_t* message),
      ep::ring_receive_stream_warp(learners(ring), target, bytes, message))
