// What the test of 08_packets calls of the piece.
#include "piece.cuh"
#include <ep/wait.cuh>

namespace given {

// Mirrors the piece's TaggedWord.
struct Packet {
    alignas(16) uint64_t data;
    uint64_t tag;
};

}  // namespace given

PIECE(void, send_packet, (given::Packet * mine, uint64_t data, uint64_t tag, int peer),
      ep::send_packet(as<ep::TaggedWord>(mine), data, tag, peer))
PIECE(bool, wait_packet, (const given::Packet* packet, uint64_t tag, uint64_t* data, const ep::WaitInfo& info),
      ep::wait_packet(as<const ep::TaggedWord>(packet), tag, data, info))
PIECE(void, send_packets_warp, (given::Packet * mine, const uint64_t* source, int words, uint64_t tag, int peer),
      ep::send_packets_warp(as<ep::TaggedWord>(mine), source, words, tag, peer))
PIECE(bool, wait_packets_warp,
      (const given::Packet* packets, uint64_t* target, int words, uint64_t tag, const ep::WaitInfo& info),
      ep::wait_packets_warp(as<const ep::TaggedWord>(packets), target, words, tag, info))
