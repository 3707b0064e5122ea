// PCIe mode: expert parallelism with all communication through the NIC, also inside a node, in bounded memory.
//
// The ideas are those of DeepEP's PCIe kernel: one path for everything, so that PCIe carries no mixture of traffic, and
// bounce buffers of fixed size that the NIC knows from the start. Between each two ranks there is one ring
// (<ep/ring.cuh>) per channel and direction. A channel is one part of the tokens; it takes a pair of blocks, one that
// sends and one that receives, or with `merged` one block with warps of both kinds, which needs half as many SMs.
//
//     exchange_counts.cu   all ranks tell each other how many rows they send, and wait for each other
//     dispatch.cu          tokens to the ranks of their experts
//     combine.cu           rows back, along the same channels in the same order, and their sums
//
// The distance k from a sender to a receiver is (receiver - sender) modulo ranks, 1 .. ranks - 1. Both ends of a ring
// find it as number k - 1 of its channel. A rank has no ring to itself: its own rows are copied and do not cross a NIC.
// With a `stride` there are rings to every stride-th rank only, and k counts these: hierarchical mode connects the
// ranks that have the same number in their nodes (<moe/hierarchical/nodes.cuh>).
//
// Why nothing deadlocks, even with rings of one slot. (1) A sending warp never waits for one ring while another of its
// rings can go on: it looks for one that has something left and room. (2) Its messages carry rows in the order in which
// the receiver reads them. (3) In a dispatch, a receiving warp waits for one source at a time; that ring is empty then,
// so all its credits are back and by (1) its message comes. (4) In a combine, receivers read tokens in order; the row
// that they wait for is in the next message of its ring, because by (2) all earlier ones have been read and returned,
// and so by (1) it comes. All blocks must be resident at once: num_sms is at most the number of SMs.
//
// The host waits for every kernel here and raises its error, so a failed kernel's outputs are never returned. A kernel
// that finds a fault at its start does nothing.
#pragma once
#include <ep/pieces.cuh>
#include <ep/put.cuh>
#include <ep/ring.cuh>
#include <ep/trace.cuh>
#include <moe/common/failure.cuh>

namespace ep::pcie {

constexpr int kMaxPcieRanks = 32;  // one lane per rank

struct Rings {
    char* staging;      // symmetric [channels, ranks - 1, num_slots, slot_bytes]
    char* slots;        // symmetric, the same shape
    uint64_t* arrived;  // symmetric [channels, ranks - 1, num_slots]
    uint64_t* credits;  // symmetric [channels, ranks - 1]
    uint64_t* sent;     // [channels, ranks - 1]: the number of the next message to send, kept between kernels
    uint64_t* taken;    // [channels, ranks - 1]: the same of the next message to receive
    uint32_t* readers;  // [channels, ranks - 1, num_slots]: warps that have read a message of a combine
    int channels;
    int num_slots;
    int slot_bytes;
    int merged;  // 1: one block per channel, 0: two
    int stride;  // rings lead to the ranks at a distance of 1, 2, ... times this
};

// A warp's part of the work.
struct Role {
    int channel;
    bool sends;
    int warp;   // its number among the channel's warps with the same task
    int warps;  // the number of these warps
};

EP_DEVICE Role role_of_warp(const Rings& rings) {
    const int block = static_cast<int>(blockIdx.x);
    if (!rings.merged) return {block / 2, block % 2 == 0, warp_id(), warps_in_block()};
    const int half = warps_in_block() / 2;
    const bool sends = warp_id() < half;
    return {block, sends, sends ? warp_id() : warp_id() - half, half};
}

// The first of the `items` items of a channel; the next channel's first is its end.
EP_DEVICE int channel_begin(int items, int channel, int channels) {
    return static_cast<int>(static_cast<int64_t>(items) * channel / channels);
}

// Distances are 1 .. ends_of_rings - 1.
EP_DEVICE int ends_of_rings(const Rings& rings) { return num_ranks() / rings.stride; }

EP_DEVICE int receiver_at(const Rings& rings, int k) { return (rank() + k * rings.stride) % num_ranks(); }
EP_DEVICE int sender_at(const Rings& rings, int k) { return (rank() + num_ranks() - k * rings.stride) % num_ranks(); }

// Ring k of a channel; `peer` is receiver_at(k) for the sender and sender_at(k) for the receiver.
EP_DEVICE int64_t ring_index(const Rings& rings, int channel, int k) {
    return static_cast<int64_t>(channel) * (ends_of_rings(rings) - 1) + k - 1;
}

EP_DEVICE Ring ring_at(const Rings& rings, int channel, int k, int peer) {
    const int64_t index = ring_index(rings, channel, k), slot = index * rings.num_slots;
    return {peer,
            channel % num_queue_pairs(),
            rings.num_slots,
            static_cast<size_t>(rings.slot_bytes),
            rings.staging + slot * rings.slot_bytes,
            rings.slots + slot * rings.slot_bytes,
            rings.arrived + slot,
            rings.credits + index};
}

// The position of a combine's lane in the ring that it reads.
struct Incoming {
    Ring ring;
    uint64_t message;  // the message with the next row
    int row;           // the row's number in that message
    int left;          // rows still to come in this channel
};

EP_DEVICE Incoming incoming_at(const Rings& rings, int channel, int k, int rows) {
    return {ring_at(rings, channel, k, sender_at(rings, k)), rings.taken[ring_index(rings, channel, k)], 0, rows};
}

// ---- The sender: several rings, none of which holds up another -------------------------------------------------------

// The rows left to send on one ring. In shared memory; only lane 0 of the warp that serves the ring uses this.
struct Outgoing {
    uint64_t message;  // the number of the next message
    int rows;          // rows left to send
    int cursor;        // where the search for the next row continues, in the filler's own unit
};

// One message to fill.
struct Chunk {
    uint64_t message;
    int k;     // the ring; 0: all is sent; negative: a wait ran into its limit
    int rows;  // in this message
    int cursor;
};

struct SendShared {
    Outgoing outgoing[kMaxPcieRanks - 1];  // by k - 1
    Chunk chunks[32];                      // by warp
};

// Lane 0: the next ring, after number `last`, that has rows left and room for a message of `rows_per_message` rows.
EP_DEVICE Chunk next_chunk(const Rings& rings, const Role& role, const Outgoing* outgoing, int rows_per_message,
                           int last) {
    Chunk chunk = {0, 0, 0, 0};
    int stuck = 0;  // a ring that waits
    const auto look = [&](int k) {
        const Outgoing& left = outgoing[k - 1];
        if (left.rows == 0) return false;
        stuck = k;
        if (!ring_has_room(ring_at(rings, role.channel, k, receiver_at(rings, k)), left.message)) return false;
        chunk = {left.message, k, left.rows < rows_per_message ? left.rows : rows_per_message, left.cursor};
        return true;
    };
    const auto found = [&] {
        stuck = 0;
        for (int k = last + role.warps; k < ends_of_rings(rings); k += role.warps)
            if (look(k)) return true;
        for (int k = 1 + role.warp; k <= last && k < ends_of_rings(rings); k += role.warps)
            if (look(k)) return true;
        return stuck == 0;  // nothing is left at all
    };
    const auto gave_up = [&] {
        const Ring ring = ring_at(rings, role.channel, stuck, receiver_at(rings, stuck));
        const uint64_t message = outgoing[stuck - 1].message;
        record_fault(kFaultTimeout, {kPhaseCredit, ring.peer, ring_slot(ring, message)},
                     ld_acquire_sys_u64(ring.credits), ring_credits_needed(ring, message));
    };
    if (!look_until(found, gave_up)) chunk.k = -1;
    return chunk;
}

// For figures of a simulated run: slots of a ring in use when `message` is in flight, and free slots.
EP_DEVICE void trace_ring(const Ring& ring, uint64_t message) {
    if constexpr (detail::kTraces) {
        const uint64_t in_use = message + 1 - ld_relaxed_sys_u64(ring.credits);
        trace_value("slots in use", static_cast<double>(in_use));
        trace_value("credits", static_cast<double>(ring.num_slots - in_use));
    }
}

// A sending warp serves its rings until all is sent; false after a wait that ran into its limit. In shared memory:
// `outgoing`, by k - 1, with those of all warps of its channel, and `shown`, which is the warp's own. `filler` has
//     int rows(int k)                                          how many rows go out on ring k
//     int first_cursor(int k)                                  where they begin
//     int fill_warp(char* to, int k, int cursor, int rows)     writes the next rows; returns the cursor behind them
template <typename Filler>
EP_DEVICE bool send_all_warp(const Rings& rings, const Role& role, int row_bytes, Outgoing* outgoing, Chunk* shown,
                             const Filler& filler) {
    const int first_k = 1 + role.warp, rows_per_message = rings.slot_bytes / row_bytes;
    if (lane_id() == 0) {
        for (int k = first_k; k < ends_of_rings(rings); k += role.warps) {
            outgoing[k - 1] = {rings.sent[ring_index(rings, role.channel, k)], filler.rows(k), filler.first_cursor(k)};
        }
    }
    int last = first_k - role.warps;
    for (;;) {
        if (lane_id() == 0) *shown = next_chunk(rings, role, outgoing, rows_per_message, last);
        __syncwarp();  // all lanes may read the chunk, and write where the credit that lane 0 acquired lets them
        const Chunk chunk = *shown;
        if (chunk.k <= 0) {
            if (lane_id() == 0 && chunk.k == 0) {
                for (int k = first_k; k < ends_of_rings(rings); k += role.warps) {
                    rings.sent[ring_index(rings, role.channel, k)] = outgoing[k - 1].message;
                }
            }
            return chunk.k == 0;
        }
        const Ring ring = ring_at(rings, role.channel, chunk.k, receiver_at(rings, chunk.k));
        const int cursor = filler.fill_warp(ring_staging(ring, chunk.message), chunk.k, chunk.cursor, chunk.rows);
        __syncwarp();  // all lanes have filled in their part, and have read the chunk
        if (lane_id() == 0) {
            ring_post(ring, chunk.message, static_cast<size_t>(chunk.rows) * row_bytes);
            count_piece(kCountRingRows, chunk.rows);
            trace_ring(ring, chunk.message);
            Outgoing& left = outgoing[chunk.k - 1];
            left = {chunk.message + 1, left.rows - chunk.rows, cursor};
        }
        last = chunk.k;
    }
}

// ---- The receiver ----------------------------------------------------------------------------------------------------

// A receiving warp takes all of ring k: `rows` rows. `taker.take_warp(from, first, rows)` reads the rows of one message.
template <typename Taker>
EP_DEVICE bool receive_all_warp(const Rings& rings, int channel, int k, int row_bytes, int rows, Phase phase,
                                const Taker& taker) {
    const Ring ring = ring_at(rings, channel, k, sender_at(rings, k));
    const int rows_per_message = rings.slot_bytes / row_bytes;
    uint64_t message = rings.taken[ring_index(rings, channel, k)];
    for (int first = 0; first < rows; first += rows_per_message, ++message) {
        int ok = lane_id() == 0 ? ring_wait_for_message(ring, message, phase) : 0;
        ok = __shfl_sync(kFullWarp, ok, 0);
        __syncwarp();  // all lanes may read the message that lane 0 acquired
        if (!ok) return false;
        const int rest = rows - first;
        taker.take_warp(ring_received(ring, message), first, rest < rows_per_message ? rest : rows_per_message);
        __syncwarp();  // all lanes have read their part before the slot is given back
        if (lane_id() == 0) ring_return_credit(ring);
    }
    __syncwarp();  // all lanes have read the number that this one overwrites
    if (lane_id() == 0) rings.taken[ring_index(rings, channel, k)] = message;
    return true;
}

// The number of tokens before `token` that go to a destination, from the destination's column of `send_index`; `all` is
// the number for all `num_tokens` tokens. All lanes of a warp call.
EP_DEVICE int rows_before_warp(int token, int num_tokens, const int* send_index, int columns, int all) {
    for (int base = token; base < num_tokens; base += kWarpSize) {
        const int t = base + lane_id();
        const int s = t < num_tokens ? send_index[static_cast<int64_t>(t) * columns] : -1;
        const unsigned votes = __ballot_sync(kFullWarp, s >= 0);
        if (votes) return __shfl_sync(kFullWarp, s, __ffs(votes) - 1);
    }
    return all;
}

// A warp copies 16-byte vectors from memory that may have been written in this kernel.
EP_DEVICE void copy_row_warp(void* to, const void* from, int bytes) {
    copy_bytes<kWarpUnroll>(to, from, bytes, lane_id(), kWarpSize);
}

}  // namespace ep::pcie
