// The kernels of 05_bounce_buffer.cu with their classic mistakes. DELIBERATELY WRONG: for notebooks, tests, the checker.
//
// Each has the parameters of exchange_pipelined and, except for exchange_in_turn, its 2 x ranks blocks.
#include "05_bounce_buffer.cuh"

namespace {

// The pieces of exchange_pipelined that are right, on one queue pair.
EP_DEVICE bool wait_for_credit(const Ring& ring, int peer, uint64_t chunk) {
    const uint64_t slots = ring.num_slots, needed = chunk < slots ? 0 : chunk + 1 - slots;
    return ep::wait_until_ge_warp(ring.credits + peer, needed, {ep::kPhaseCredit, peer, int64_t(chunk % slots)});
}

EP_DEVICE bool wait_for_chunk(const Streams& streams, const Ring& ring, int peer, uint64_t chunk) {
    return ep::wait_until_ge_warp(arrived_of(ring, peer, chunk), chunk + 1,
                                  {ep::kPhaseSignal, peer, int64_t(chunk % ring.num_slots)});
}

EP_DEVICE void send_chunk(const Streams& streams, const Ring& ring, int peer, uint64_t chunk) {
    char* const staging = slot_of(ring.staging, streams, ring, peer, chunk);
    const size_t bytes = fill_slot(staging, streams, ring, peer, chunk);
    if (ep::lane_id() == 0) {
        ep::net_put_signal_nbi(slot_of(ring.inbox, streams, ring, ep::rank(), chunk), staging, bytes,
                               arrived_of(ring, ep::rank(), chunk), chunk + 1, peer, 0, ep::NetSignal::kSet);
    }
}

EP_DEVICE void give_credit(const Ring& ring, int peer, uint64_t number) {
    if (ep::lane_id() == 0) ep::net_atomic_add_u64_nbi(ring.credits + ep::rank(), number, peer);
}

EP_DEVICE void finish(const Streams& streams, int peer, int rows) {
    if (ep::lane_id() == 0) {
        streams.received[peer] = rows;
        ep::net_quiet(peer);
    }
}

EP_DEVICE void send(const Streams& streams, const Ring& ring, int peer) {
    const uint64_t chunks = num_chunks(streams, ring, peer);
    for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
        if (!wait_for_credit(ring, peer, chunk)) return;
        send_chunk(streams, ring, peer, chunk);
    }
    if (ep::lane_id() == 0) ep::net_quiet(peer);
}

EP_DEVICE void receive(const Streams& streams, const Ring& ring, int peer) {
    ChunkHeader header = {};
    int rows = 0;
    for (uint64_t chunk = 0; !header.is_last; ++chunk) {
        if (!wait_for_chunk(streams, ring, peer, chunk)) return;
        header = empty_slot(slot_of(ring.inbox, streams, ring, peer, chunk), streams, peer, rows);
        give_credit(ring, peer, 1);
        rows += header.rows;
    }
    finish(streams, peer, rows);
}

// Which half of the blocks is this one in, and who is its peer?
EP_DEVICE bool is_sender() { return static_cast<int>(blockIdx.x) < ep::num_ranks(); }
EP_DEVICE int peer_of_block() { return static_cast<int>(blockIdx.x) % ep::num_ranks(); }

}  // namespace

// ---- Rung 1: send everything, then receive --------------------------------------------------------------------------
// WRONG everywhere: a deadlock as soon as a stream has more chunks than there are slots. Every rank is full of what the
// others have sent, and waits for credits that only a receiver gives; no rank gets that far. With shorter streams it
// works, so it passes all small tests. As many blocks as ranks.
extern "C" __global__ void exchange_in_turn(Streams streams, Ring ring) {
    const int peer = static_cast<int>(blockIdx.x);
    send(streams, ring, peer);
    receive(streams, ring, peer);
}

// ---- Credits --------------------------------------------------------------------------------------------------------
// WRONG: the sender does not ask whether the slot is free. A fast one overwrites what has not been read, at both ends.
extern "C" __global__ void exchange_without_credits(Streams streams, Ring ring) {
    const int peer = peer_of_block();
    if (!is_sender()) return receive(streams, ring, peer);
    const uint64_t chunks = num_chunks(streams, ring, peer);
    for (uint64_t chunk = 0; chunk < chunks; ++chunk) send_chunk(streams, ring, peer, chunk);
    if (ep::lane_id() == 0) ep::net_quiet(peer);
}

// WRONG: the credit is given before the slot has been read. The next chunk may come in while this one is copied.
extern "C" __global__ void exchange_early_credit(Streams streams, Ring ring) {
    const int peer = peer_of_block();
    if (is_sender()) return send(streams, ring, peer);
    ChunkHeader header = {};
    int rows = 0;
    for (uint64_t chunk = 0; !header.is_last; ++chunk) {
        if (!wait_for_chunk(streams, ring, peer, chunk)) return;
        give_credit(ring, peer, 1);
        header = empty_slot(slot_of(ring.inbox, streams, ring, peer, chunk), streams, peer, rows);
        rows += header.rows;
    }
    finish(streams, peer, rows);
}

// WRONG: all credits in one message at the end, to save messages. The sender runs out of slots and waits for them, the
// receiver waits for the next chunk: a deadlock. (Two or three at once are fine: fewer than there are slots.)
extern "C" __global__ void exchange_late_credit(Streams streams, Ring ring) {
    const int peer = peer_of_block();
    if (is_sender()) return send(streams, ring, peer);
    ChunkHeader header = {};
    int rows = 0;
    uint64_t chunk = 0;
    for (; !header.is_last; ++chunk) {
        if (!wait_for_chunk(streams, ring, peer, chunk)) return;
        header = empty_slot(slot_of(ring.inbox, streams, ring, peer, chunk), streams, peer, rows);
        rows += header.rows;
    }
    give_credit(ring, peer, chunk);
    finish(streams, peer, rows);
}

// ---- Several slots --------------------------------------------------------------------------------------------------
// WRONG on EFA, RIGHT on InfiniBand: one arrival counter for all slots, and each put adds 1 to it. SRD keeps no order:
// the counter may say 1 when chunk 1 has come and chunk 0 has not. InfiniBand's queue pair keeps them in order.
extern "C" __global__ void exchange_one_counter(Streams streams, Ring ring) {
    const int peer = peer_of_block();
    if (is_sender()) {
        for (uint64_t chunk = 0, chunks = num_chunks(streams, ring, peer); chunk < chunks; ++chunk) {
            if (!wait_for_credit(ring, peer, chunk)) return;
            char* const staging = slot_of(ring.staging, streams, ring, peer, chunk);
            const size_t bytes = fill_slot(staging, streams, ring, peer, chunk);
            if (ep::lane_id() == 0) {
                ep::net_put_signal_nbi(slot_of(ring.inbox, streams, ring, ep::rank(), chunk), staging, bytes,
                                       arrived_of(ring, ep::rank(), 0), 1, peer);
            }
        }
        if (ep::lane_id() == 0) ep::net_quiet(peer);
        return;
    }
    ChunkHeader header = {};
    int rows = 0;
    for (uint64_t chunk = 0; !header.is_last; ++chunk) {
        if (!ep::wait_until_ge_warp(arrived_of(ring, peer, 0), chunk + 1, {ep::kPhaseSignal, peer, 0})) return;
        header = empty_slot(slot_of(ring.inbox, streams, ring, peer, chunk), streams, peer, rows);
        give_credit(ring, peer, 1);
        rows += header.rows;
    }
    finish(streams, peer, rows);
}

// WRONG on every network: the inbox has several slots, but all chunks are staged in one. The next chunk overwrites what
// the NIC may not have read yet: a credit frees one slot, and only the one that it was given for.
extern "C" __global__ void exchange_one_staging(Streams streams, Ring ring) {
    const int peer = peer_of_block();
    if (!is_sender()) return receive(streams, ring, peer);
    char* const staging = slot_of(ring.staging, streams, ring, peer, 0);
    const uint64_t chunks = num_chunks(streams, ring, peer);
    for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
        if (!wait_for_credit(ring, peer, chunk)) return;
        const size_t bytes = fill_slot(staging, streams, ring, peer, chunk);
        if (ep::lane_id() == 0) {
            ep::net_put_signal_nbi(slot_of(ring.inbox, streams, ring, ep::rank(), chunk), staging, bytes,
                                   arrived_of(ring, ep::rank(), chunk), chunk + 1, peer, 0, ep::NetSignal::kSet);
        }
    }
    if (ep::lane_id() == 0) ep::net_quiet(peer);
}
