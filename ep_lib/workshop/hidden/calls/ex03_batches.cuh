// What the test of 03_batches calls of the piece.
#include "piece.cuh"

PIECE(int*, quiets, (), quiets())
PIECE(void, send_staged,
      (char* inbox, char* staging, const char* source, size_t bytes, int messages, uint32_t* arrived, int peer),
      send_staged(inbox, staging, source, bytes, messages, arrived, peer))
PIECE(void, send_batched, (char* inbox, const char* outbox, size_t bytes, int messages, uint32_t* arrived, int peer),
      send_batched(inbox, outbox, bytes, messages, arrived, peer))
PIECE(void, count_by_source, (uint32_t* counters, int times, int target), count_by_source(counters, times, target))
PIECE(void, channel_send,
      (char* inbox, const char* outbox, size_t bytes, int messages, int chunk, uint32_t* tails, int peer),
      channel_send(inbox, outbox, bytes, messages, chunk, tails, peer))
