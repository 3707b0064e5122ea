// What the test of 01_write_signal calls of the piece.
#include "piece.cuh"

namespace given {

// Mirror the piece's.
struct Write {
    void* target;
    const void* source;
    size_t bytes;
};

struct Pipe {
    char* slots;
    size_t slot_bytes;
    int num_slots;
    uint64_t *arrived, *credits;
};

}  // namespace given

#ifdef GRADER_PIECE
EP_DEVICE ep::Pipe learners(const given::Pipe& p) { return {p.slots, p.slot_bytes, p.num_slots, p.arrived, p.credits}; }
#endif

PIECE(void, write_and_signal_thread,
      (void* target, const void* source, size_t bytes, uint64_t* signal, uint64_t increment, int peer),
      ep::write_and_signal_thread(target, source, bytes, signal, increment, peer))
PIECE(bool, wait_for_signal, (const uint64_t* signal, uint64_t expected, int peer),
      ep::wait_for_signal(signal, expected, peer))
PIECE(void, write_and_signal_warp,
      (void* target, const void* source, size_t bytes, uint64_t* signal, uint64_t increment, int peer),
      ep::write_and_signal_warp(target, source, bytes, signal, increment, peer))
PIECE(void, write_many_and_signal_warp,
      (const given::Write* writes, int count, uint64_t* signal, uint64_t increment, int peer),
      ep::write_many_and_signal_warp(as<const ep::Write>(writes), count, signal, increment, peer))
PIECE(bool, pipe_send_warp, (const given::Pipe& pipe, const void* source, uint64_t round, int peer),
      ep::pipe_send_warp(learners(pipe), source, round, peer))
PIECE(bool, pipe_receive_warp, (const given::Pipe& pipe, void* target, uint64_t round, int peer),
      ep::pipe_receive_warp(learners(pipe), target, round, peer))
