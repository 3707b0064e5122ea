// What 05_bounce_buffer.cu and its broken twin share: the streams, the ring of slots, and how a slot is filled and
// emptied. Nothing here waits or posts; the rungs do that.
//
// A slot is a header and up to slot_rows rows. The header travels with the rows, so receivers need not know beforehand
// how much will come.
#pragma once
#include <ep/net.cuh>
#include <ep/wait.cuh>

// The rows to move. Rows for (and from) rank p begin at row p * max_rows. A row is a multiple of 16 bytes.
struct Streams {
    const char* source;  // [ranks, max_rows, row_bytes]: this rank's rows, by destination
    const int* counts;   // [ranks]: how many there are for each; only the sender knows
    char* out;           // [ranks, max_rows, row_bytes]: what came, by source
    int* received;       // [ranks]: how many came from each
    int max_rows;
    int row_bytes;
};

// Symmetric memory, one ring of slots for each pair of ranks and each direction. Index p is the other rank.
struct Ring {
    char* inbox;        // [ranks, num_slots, slot]: rank p's NIC writes here
    char* staging;      // [ranks, num_slots, slot]: this rank's NIC reads from here what goes to p
    uint64_t* arrived;  // [ranks, num_slots]: 1 + the number of the chunk that lies in the slot of the inbox
    uint64_t* credits;  // [ranks]: how many chunks p has taken out of its inbox
    int num_slots;
    int slot_rows;
};

struct ChunkHeader {  // 16 bytes, so that the rows behind it stay aligned
    int rows;
    int is_last;
    int unused[2];
};

EP_DEVICE size_t slot_bytes(const Streams& streams, const Ring& ring) {
    return sizeof(ChunkHeader) + static_cast<size_t>(ring.slot_rows) * streams.row_bytes;
}

// The slot of `inbox` or `staging` that serves a chunk to or from `rank`.
EP_DEVICE char* slot_of(char* slots, const Streams& streams, const Ring& ring, int rank, uint64_t chunk) {
    return slots + (rank * ring.num_slots + chunk % ring.num_slots) * slot_bytes(streams, ring);
}

EP_DEVICE uint64_t* arrived_of(const Ring& ring, int rank, uint64_t chunk) {
    return ring.arrived + rank * ring.num_slots + chunk % ring.num_slots;
}

// An empty stream is one chunk, too: the receiver must learn that no rows come.
EP_DEVICE uint64_t num_chunks(const Streams& streams, const Ring& ring, int peer) {
    return max(1, (streams.counts[peer] + ring.slot_rows - 1) / ring.slot_rows);
}

// A warp copies the rows of a chunk into a slot of the staging buffer. Returns how many bytes of it are in use. All
// lanes have written when it returns.
EP_DEVICE size_t fill_slot(char* slot, const Streams& streams, const Ring& ring, int peer, uint64_t chunk) {
    const int begin = static_cast<int>(chunk) * ring.slot_rows;
    const int rows = min(ring.slot_rows, streams.counts[peer] - begin);
    const size_t bytes = static_cast<size_t>(rows) * streams.row_bytes;
    const char* from = streams.source + (static_cast<size_t>(peer) * streams.max_rows + begin) * streams.row_bytes;
    if (ep::lane_id() == 0) {
        *reinterpret_cast<ChunkHeader*>(slot) = {rows, begin + rows == streams.counts[peer], {0, 0}};
    }
    ep::copy_bytes<ep::kWarpUnroll>(slot + sizeof(ChunkHeader), from, bytes, ep::lane_id(), ep::kWarpSize);
    __syncwarp();
    return sizeof(ChunkHeader) + bytes;
}

// A warp copies a chunk's rows to the output, after the `rows_before` that are there already, and returns the chunk's
// header. All lanes have read when it returns: the slot may be given back.
EP_DEVICE ChunkHeader empty_slot(const char* slot, const Streams& streams, int peer, int rows_before) {
    const ChunkHeader header = *reinterpret_cast<const ChunkHeader*>(slot);
    char* to = streams.out + (static_cast<size_t>(peer) * streams.max_rows + rows_before) * streams.row_bytes;
    const size_t bytes = static_cast<size_t>(header.rows) * streams.row_bytes;
    ep::copy_bytes<ep::kWarpUnroll>(to, slot + sizeof(ChunkHeader), bytes, ep::lane_id(), ep::kWarpSize);
    __syncwarp();
    return header;
}
