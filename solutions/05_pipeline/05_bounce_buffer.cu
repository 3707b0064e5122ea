// Bounce buffers: all ranks send rows to all ranks through the NIC, in memory of a fixed size. A ladder.
//
//     sender                              NIC                 receiver
//     source --copy--> [ staging slot ] ---------> [ inbox slot ] --copy--> out
//                             ^                                       |
//                             +------------- credit: "taken out" -----+
//
// NICs may only touch memory that was registered beforehand, and how many rows a rank will get is not known beforehand.
// Bounce buffers are a little registered memory that everything passes through. `source` and `out` are any memory.
//
// A block is one warp. "Rank p's copy of mine": ring arrays are symmetric, and ep::net_* is given its own copy's address.
//
// Rung  Kernel                  Idea
// 0     exchange_unbounded      an inbox with room for everything: simple, and too large
// 1     exchange_in_turn        bounded: a few slots for each pair of ranks. It deadlocks: see 05_bounce_buffer_broken.cu
// 2     exchange_with_credits   one slot; senders and receivers run at the same time, and credits say when it is free
// 3     exchange_pipelined      several slots in flight, each with an arrival of its own
// 4     exchange_merged         one block sends and receives: half of the blocks
// 5     exchange_by_rings       rung 3 in the words of <ep/ring.cuh>, which ep_lib.Buffer uses where there is no NVLink
#include <ep/ring.cuh>
#include <ep/trace.cuh>

#include "05_bounce_buffer.cuh"

// ---- Rung 0: room for everything ------------------------------------------------------------------------------------
// One message per pair of ranks. inbox: [ranks, max_rows, row_bytes], and the NIC reads from `source`, so here it must
// lie in symmetric memory too. The signal carries the count: 1 + the number of rows. Both areas grow with the number of
// ranks: at 32 ranks, 4096 tokens and 14 KiB per token, each takes 1.75 GiB, nearly all of it empty.
extern "C" __global__ void exchange_unbounded(Streams streams, char* inbox, uint64_t* arrived) {
    const int peer = static_cast<int>(blockIdx.x), me = ep::rank();
    const size_t row = streams.row_bytes, area = streams.max_rows * row;
    if (ep::lane_id() == 0) {
        const uint64_t rows = streams.counts[peer];
        const char* const from = streams.source + peer * area;
        char* const there = inbox + me * area;
        ep::net_put_signal_nbi(there, from, rows * row, arrived + me, 1 + rows, peer, 0, ep::NetSignal::kSet);
    }
    if (!ep::wait_until_ge_warp(arrived + peer, 1, {ep::kPhaseSignal, peer, -1})) return;
    const uint64_t rows = arrived[peer] - 1;
    const char* const came = inbox + peer * area;
    ep::copy_bytes<ep::kWarpUnroll>(streams.out + peer * area, came, rows * row, ep::lane_id(), ep::kWarpSize);
    if (ep::lane_id() == 0) {
        streams.received[peer] = static_cast<int>(rows);
        ep::net_quiet(peer);  // the caller may change `source` after this kernel
    }
}

// ---- Rung 2: credits ------------------------------------------------------------------------------------------------
// Every pair of ranks has one slot, and chunk after chunk goes through it. The sender needs to know when the slot is
// free. The receiver says so: for each chunk that it has taken out it adds 1 to the sender's `credits`.
//     to write chunk c:   credits >= c        (all earlier ones were taken out)
//     to read chunk c:    arrived >= c + 1
// A credit frees both ends: the NIC has delivered what the receiver has read, so it has read the staging slot as well.
// And a block that waits for a credit must not keep another from receiving: so there are two blocks for rank p, one for
// each direction.
namespace {

EP_DEVICE void send_one_by_one(const Streams& streams, const Ring& ring, int peer) {
    const uint64_t chunks = num_chunks(streams, ring, peer);
    for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
        if (!ep::wait_until_ge_warp(ring.credits + peer, chunk, {ep::kPhaseCredit, peer, 0})) return;
        char* const staging = slot_of(ring.staging, streams, ring, peer, 0);
        char* const there = slot_of(ring.inbox, streams, ring, ep::rank(), 0);
        uint64_t* const arrived = arrived_of(ring, ep::rank(), 0);
        const size_t bytes = fill_slot(staging, streams, ring, peer, chunk);
        if (ep::lane_id() == 0)
            ep::net_put_signal_nbi(there, staging, bytes, arrived, chunk + 1, peer, 0, ep::NetSignal::kSet);
    }
    if (ep::lane_id() == 0) ep::net_quiet(peer);
}

EP_DEVICE void receive_one_by_one(const Streams& streams, const Ring& ring, int peer) {
    int rows = 0;
    bool is_last = false;
    for (uint64_t chunk = 0; !is_last; ++chunk) {
        if (!ep::wait_until_ge_warp(arrived_of(ring, peer, 0), chunk + 1, {ep::kPhaseSignal, peer, 0})) return;
        const ChunkHeader header = empty_slot(slot_of(ring.inbox, streams, ring, peer, 0), streams, peer, rows);
        if (ep::lane_id() == 0) ep::net_atomic_add_u64_nbi(ring.credits + ep::rank(), 1, peer);
        rows += header.rows;
        is_last = header.is_last;
    }
    if (ep::lane_id() == 0) {
        streams.received[peer] = rows;
        ep::net_quiet(peer);
    }
}

}  // namespace

// 2 x ranks blocks: the first half sends, the second half receives.
extern "C" __global__ void exchange_with_credits(Streams streams, Ring ring) {
    const int ranks = ep::num_ranks(), block = static_cast<int>(blockIdx.x);
    if (block < ranks) {
        send_one_by_one(streams, ring, block);
    } else {
        receive_one_by_one(streams, ring, block - ranks);
    }
}

// ---- Rung 3: several slots in flight --------------------------------------------------------------------------------
// With one slot the wire idles while the receiver copies, and while the credit travels back. With n slots the sender is
// up to n chunks ahead:
//     to write chunk c:   credits >= c + 1 - n        (the first n need none)
//     to read chunk c:    the arrival of ITS slot >= c + 1
// Why not one arrival counter for all slots? The NIC puts a signal behind the data of its own put, and of no other. On
// a network that keeps no order chunk 2 may be there before chunk 1, and a common counter could not tell. Since no
// chunk relies on another, they may go over all queue pairs there are.
// Credits may come in any order as well: each adds 1, and k of them say that at least k chunks were taken out, which
// are the oldest k.
namespace {

// How many credits must have come before a chunk may be written.
EP_DEVICE uint64_t credits_for(const Ring& ring, uint64_t chunk) {
    // EXERCISE-BEGIN 1
    const uint64_t slots = ring.num_slots;
    return chunk < slots ? 0 : chunk + 1 - slots;
    // EXERCISE-END 1
}

EP_DEVICE bool wait_for_credit(const Ring& ring, int peer, uint64_t chunk) {
    const int64_t slot = static_cast<int64_t>(chunk % ring.num_slots);
    return ep::wait_until_ge_warp(ring.credits + peer, credits_for(ring, chunk), {ep::kPhaseCredit, peer, slot});
}

// The slot is free: fill it and send it off.
EP_DEVICE void send_chunk(const Streams& streams, const Ring& ring, int peer, uint64_t chunk) {
    // EXERCISE-BEGIN 2
    char* const staging = slot_of(ring.staging, streams, ring, peer, chunk);
    const size_t bytes = fill_slot(staging, streams, ring, peer, chunk);
    if (ep::lane_id() == 0) {
        const int qp = static_cast<int>(chunk % ep::num_queue_pairs());
        ep::net_put_signal_nbi(slot_of(ring.inbox, streams, ring, ep::rank(), chunk), staging, bytes,
                               arrived_of(ring, ep::rank(), chunk), chunk + 1, peer, qp, ep::NetSignal::kSet);
    }
    // EXERCISE-END 2
}

// The chunk is there: take it out and give the slot back.
EP_DEVICE ChunkHeader take_chunk(const Streams& streams, const Ring& ring, int peer, uint64_t chunk, int rows_before) {
    // EXERCISE-BEGIN 3
    const char* slot = slot_of(ring.inbox, streams, ring, peer, chunk);
    const ChunkHeader header = empty_slot(slot, streams, peer, rows_before);
    if (ep::lane_id() == 0) ep::net_atomic_add_u64_nbi(ring.credits + ep::rank(), 1, peer);
    return header;
    // EXERCISE-END 3
}

// For the figures of a simulated run: chunks that were sent and whose credit is not back yet. On GPUs only a load of
// the counter remains.
EP_DEVICE void trace_slots_in_use(const Ring& ring, int peer, uint64_t sent) {
    if (ep::lane_id() == 0)
        ep::trace_value("slots in use", static_cast<double>(sent - ep::read_signal(ring.credits + peer)));
}

EP_DEVICE void send_pipelined(const Streams& streams, const Ring& ring, int peer) {
    const uint64_t chunks = num_chunks(streams, ring, peer);
    // EXERCISE-BEGIN 4
    for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
        if (!wait_for_credit(ring, peer, chunk)) return;
        send_chunk(streams, ring, peer, chunk);
        trace_slots_in_use(ring, peer, chunk + 1);
    }
    if (ep::lane_id() == 0) ep::net_quiet(peer);
    // EXERCISE-END 4
}

EP_DEVICE void receive_pipelined(const Streams& streams, const Ring& ring, int peer) {
    int rows = 0;
    bool is_last = false;
    for (uint64_t chunk = 0; !is_last; ++chunk) {
        const int64_t slot = static_cast<int64_t>(chunk % ring.num_slots);
        if (!ep::wait_until_ge_warp(arrived_of(ring, peer, chunk), chunk + 1, {ep::kPhaseSignal, peer, slot})) return;
        const ChunkHeader header = take_chunk(streams, ring, peer, chunk, rows);
        rows += header.rows;
        is_last = header.is_last;
    }
    if (ep::lane_id() == 0) {
        streams.received[peer] = rows;
        ep::net_quiet(peer);
    }
}

}  // namespace

// 2 x ranks blocks, as before.
extern "C" __global__ void exchange_pipelined(Streams streams, Ring ring) {
    const int ranks = ep::num_ranks(), block = static_cast<int>(blockIdx.x);
    if (block < ranks) {
        send_pipelined(streams, ring, block);
    } else {
        receive_pipelined(streams, ring, block - ranks);
    }
}

// ---- Rung 4: sender and receiver in one block -----------------------------------------------------------------------
// Blocks that wait hold an SM that could compute. One block can serve both directions if it never waits for one of them
// alone: it does whichever is possible, and waits until either is. That is what exchange_in_turn got wrong. As many
// blocks as ranks.
extern "C" __global__ void exchange_merged(Streams streams, Ring ring) {
    const int peer = static_cast<int>(blockIdx.x);
    const uint64_t chunks = num_chunks(streams, ring, peer);
    // EXERCISE-BEGIN 5
    constexpr uint64_t kNever = ~0ull;
    uint64_t sent = 0, taken = 0;
    int rows = 0;
    for (bool is_last = false; !is_last;) {
        const int64_t slot = static_cast<int64_t>(taken % ring.num_slots);
        const int ready = ep::wait_until_either_ge_warp(arrived_of(ring, peer, taken), taken + 1, ring.credits + peer,
                                                        sent < chunks ? credits_for(ring, sent) : kNever,
                                                        {ep::kPhaseSignal, peer, slot});
        if (ready == 0) return;  // the time limit
        if (ready & 1) {
            const ChunkHeader header = take_chunk(streams, ring, peer, taken++, rows);
            rows += header.rows;
            is_last = header.is_last;
        }
        if (ready & 2) send_chunk(streams, ring, peer, sent++);
    }
    for (; sent < chunks; ++sent) {  // nothing more comes from there
        if (!wait_for_credit(ring, peer, sent)) return;
        send_chunk(streams, ring, peer, sent);
    }
    if (ep::lane_id() == 0) {
        streams.received[peer] = rows;
        ep::net_quiet(peer);
    }
    // EXERCISE-END 5
}

// ---- Rung 5: the library's ring -------------------------------------------------------------------------------------
// You know every line of <ep/ring.cuh> by now: room is a credit, a post is a put with the slot's own signal, and a slot
// that was read is worth a credit. One thread calls its functions; the barrier passes on what it saw.
namespace {

EP_DEVICE ep::Ring ring_to(const Streams& streams, const Ring& ring, int peer) {
    return {peer,
            0,
            ring.num_slots,
            slot_bytes(streams, ring),
            slot_of(ring.staging, streams, ring, peer, 0),
            slot_of(ring.inbox, streams, ring, ep::rank(), 0),
            arrived_of(ring, ep::rank(), 0),
            ring.credits + peer};
}

EP_DEVICE ep::Ring ring_from(const Streams& streams, const Ring& ring, int peer) {
    return {peer,
            0,
            ring.num_slots,
            slot_bytes(streams, ring),
            nullptr,
            slot_of(ring.inbox, streams, ring, peer, 0),
            arrived_of(ring, peer, 0),
            ring.credits + ep::rank()};
}

EP_DEVICE bool all_lanes_learn(bool of_lane_0) {
    const bool answer = __shfl_sync(ep::kFullWarp, of_lane_0, 0);
    __syncwarp();
    return answer;
}

}  // namespace

// 2 x ranks blocks: the first half sends, the second half receives.
extern "C" __global__ void exchange_by_rings(Streams streams, Ring memory) {
    const int ranks = ep::num_ranks(), block = static_cast<int>(blockIdx.x), peer = block % ranks;
    const bool is_lane_0 = ep::lane_id() == 0;
    if (block < ranks) {
        const ep::Ring ring = ring_to(streams, memory, peer);
        const uint64_t chunks = num_chunks(streams, memory, peer);
        for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
            if (!all_lanes_learn(is_lane_0 && ep::ring_wait_for_room(ring, chunk))) return;
            const size_t bytes = fill_slot(ep::ring_staging(ring, chunk), streams, memory, peer, chunk);
            if (is_lane_0) ep::ring_post(ring, chunk, bytes);
        }
    } else {
        const ep::Ring ring = ring_from(streams, memory, peer);
        ChunkHeader header = {};
        int rows = 0;
        for (uint64_t chunk = 0; !header.is_last; ++chunk) {
            if (!all_lanes_learn(is_lane_0 && ep::ring_wait_for_message(ring, chunk))) return;
            header = empty_slot(ep::ring_received(ring, chunk), streams, peer, rows);
            if (is_lane_0) ep::ring_return_credit(ring);
            rows += header.rows;
        }
        if (is_lane_0) streams.received[peer] = rows;
    }
    if (is_lane_0) ep::net_quiet(peer);
}
