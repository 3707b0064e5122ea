// What the test of 05_pipeline calls of the piece.
#include "piece.cuh"

#include <05_bounce_buffer.cuh>

PIECE(uint64_t*, woken_by_credits, (), woken_by_credits())
PIECE(uint64_t, credits_for, (const Ring& ring, uint64_t chunk), credits_for(ring, chunk))
PIECE(void, send_chunk, (const Streams& streams, const Ring& ring, int peer, uint64_t chunk),
      send_chunk(streams, ring, peer, chunk))
PIECE(ChunkHeader, take_chunk, (const Streams& streams, const Ring& ring, int peer, uint64_t chunk, int rows_before),
      take_chunk(streams, ring, peer, chunk, rows_before))
PIECE(void, send_pipelined, (const Streams& streams, const Ring& ring, int peer), send_pipelined(streams, ring, peer))
PIECE(void, exchange_merged, (const Streams& streams, const Ring& ring), exchange_merged(streams, ring))
