// What 04_ring_and_proxy.cu and its broken twin share: what is to be sent, how a command for it is made, and how a proxy
// carries a command out. Nothing here waits or publishes; the rungs do that.
//
// A command is 64 bytes, one slot of the ring: <ep/proxy_command.cuh> has the struct. `number` is its last word: what
// lies in the slot is command number - 1. The other words only mean something once `number` says so.
#pragma once
#include <ep/net.cuh>
#include <ep/proxy_operations.cuh>
#include <ep/proxy_ring.cuh>

// Message i: row i of `source` is to become row i of the peer's `inbox`. A NIC reads registered memory only, so the row
// goes through the outbox, where message i uses row i % outbox_rows.
struct Messages {
    const uint64_t* source;  // [count, words]: any memory of this rank
    uint64_t* outbox;        // [outbox_rows, words]: symmetric, as the inbox
    uint64_t* inbox;         // [count, words]
    int count;
    int words;  // of 8 bytes, in a message
    int outbox_rows;
    int peer;
};

EP_DEVICE uint64_t* outbox_row(const Messages& m, int message) {
    return m.outbox + static_cast<size_t>(message % m.outbox_rows) * m.words;
}

// The command that sends a message whose row lies in the outbox.
EP_DEVICE ep::ProxyCommand command_for(const Messages& m, int message) {
    uint64_t* const there = m.inbox + static_cast<size_t>(message) * m.words;
    return ep::proxy_write(there, outbox_row(m, message), m.words * sizeof(uint64_t), m.peer);
}

// One thread puts the row into the outbox, and makes the command.
EP_DEVICE ep::ProxyCommand prepare(const Messages& m, int message) {
    uint64_t* const row = outbox_row(m, message);
    for (int i = 0; i < m.words; ++i) row[i] = m.source[static_cast<size_t>(message) * m.words + i];
    return command_for(m, message);
}

EP_DEVICE ep::ProxyCommand* slot_of(const ep::ProxyRing& ring, uint64_t number) {
    return ring.slots + number % ring.num_slots;
}

// Everything of a command but its number.
EP_DEVICE void fill(ep::ProxyCommand* slot, const ep::ProxyCommand& command) {
    slot->target = command.target;
    slot->source = command.source;
    slot->bytes = command.bytes;
    slot->op = command.op;
    slot->peer = command.peer;
    slot->queue_pair = command.queue_pair;
}

// The way back: what the proxy copies out of a slot.
EP_DEVICE ep::ProxyCommand copy_out(const ep::ProxyCommand* slot) {
    ep::ProxyCommand command = {};
    fill(&command, *slot);
    return command;
}

// The executor: hands a write to the NIC, which reads the source later.
EP_DEVICE void post(const ep::ProxyCommand& command) {
    char* const heap = reinterpret_cast<char*>(ep::detail::heap_base(ep::rank()));
    ep::net_put_nbi(heap + command.target, heap + command.source, command.bytes, command.peer, command.queue_pair);
}

// Who is this thread? Block 0 has the producers, block 1 is the proxy, one thread. Rung 4 has one more.
EP_DEVICE bool is_proxy() { return blockIdx.x == 1 && threadIdx.x == 0; }
EP_DEVICE bool is_producer() { return blockIdx.x == 0; }
