// A ring of commands from a GPU to a thread of the CPU, the proxy, which posts them to the NIC. A ladder.
//
//     kernel                                    [ slot | slot | slot | slot ]              proxy
//     fills a slot, then its number --------->    memory that both sides map  --------->  copies the command out
//                                    <---------   taken: the slot is free again ---------  posts it to the NIC
//                                    <---------   completed: the outbox is free ---------  the NIC has finished
//
// Each kernel has a block of producers (block 0) and, in the CPU's place, a block of one thread (block 1): so a seed
// decides whose turn it is, and the checker sees what the proxy reads. Both ends are in this file; the real proxies, in
// C++, are in ep_lib/transports/proxy/native.
//
// Rung  Kernel               Idea
// 0     mailbox              one slot, and a word that says whose turn it is
// 1     ring_of_slots        several slots: a command may be pushed before the one before it was taken
// 2     many_producers       a number for each command, by one atomic; each slot says itself that it is full
// 3     batches              a warp pushes 32 at a time, the proxy takes all that is there
// 4     completions          taken is not done: when the outbox may be used again
//
// 04_ring_and_proxy_broken.cu has the classic mistake of each rung.
#include <ep/trace.cuh>
#include "04_ring_and_proxy.cuh"

// ---- Rung 0: a mailbox ----------------------------------------------------------------------------------------------
// `number` is 0: empty, the producer's turn. Otherwise the proxy's. The release puts all words of the command before the
// number; the acquire of the other side sees them. Each command costs a whole way there and back.
extern "C" __global__ void mailbox(ep::ProxyRing ring, Messages m) {
    ep::ProxyCommand* const slot = ring.slots;
    if (is_producer() && threadIdx.x == 0) {
        for (int i = 0; i < m.count; ++i) {
            const ep::ProxyCommand command = prepare(m, i);
            if (!ep::wait_until_eq(&slot->number, 0, {ep::kPhaseProxy, m.peer, -1})) return;
            fill(slot, command);
            ep::st_release_sys_u64(&slot->number, i + 1);
        }
    } else if (is_proxy()) {
        for (int i = 0; i < m.count; ++i) {
            while (ep::ld_acquire_sys_u64(&slot->number) != i + 1) {
            }
            post(*slot);
            ep::net_quiet();
            ep::st_release_sys_u64(&slot->number, 0);
        }
    }
}

// ---- Rung 1: a ring -------------------------------------------------------------------------------------------------
// Command n lies in slot n % num_slots. Before it is filled, the command that lay there, n - num_slots, must have been
// taken: taken >= n - num_slots + 1. No thread ever clears a slot: the number says which command it is.
EP_DEVICE bool wait_for_room(const ep::ProxyRing& ring, uint64_t number, int peer) {
    if (number < ring.num_slots) return true;
    return ep::wait_until_ge(&ring.credits->taken, number - ring.num_slots + 1, {ep::kPhaseProxy, peer, -1});
}

EP_DEVICE void wait_for_command(const ep::ProxyRing& ring, uint64_t number) {
    while (ep::ld_acquire_sys_u64(&slot_of(ring, number)->number) != number + 1) {
    }
}

// The credit goes back as soon as the command is copied out, before it is posted: the slot is all that it frees.
EP_DEVICE void take_and_post(const ep::ProxyRing& ring, int count) {
    for (uint64_t number = 0; number < count; ++number) {
        wait_for_command(ring, number);
        const ep::ProxyCommand command = copy_out(slot_of(ring, number));
        ep::st_release_sys_u64(&ring.credits->taken, number + 1);
        post(command);
    }
    ep::net_quiet();
}

extern "C" __global__ void ring_of_slots(ep::ProxyRing ring, Messages m) {
    if (is_producer() && threadIdx.x == 0) {
        for (int i = 0; i < m.count; ++i) {
            const ep::ProxyCommand command = prepare(m, i);
            if (!wait_for_room(ring, i, m.peer)) return;
            fill(slot_of(ring, i), command);
            ep::st_release_sys_u64(&slot_of(ring, i)->number, i + 1);
        }
    } else if (is_proxy()) {
        take_and_post(ring, m.count);
    }
}

// ---- Rung 2: many producers -----------------------------------------------------------------------------------------
// One atomic addition gives every thread a number of its own, and with it a slot that no other has. No lock: a slow
// thread holds up those behind it, but nothing is lost, since each slot says itself that it is full. The addition is
// relaxed: it hands out numbers and orders nothing.
EP_DEVICE bool push(const ep::ProxyRing& ring, const ep::ProxyCommand& command) {
    const uint64_t number = ep::atom_add_relaxed_gpu_u64(&ring.producer->head, 1);
    if (!wait_for_room(ring, number, command.peer)) return false;
    fill(slot_of(ring, number), command);
    ep::st_release_sys_u64(&slot_of(ring, number)->number, number + 1);
    return true;
}

extern "C" __global__ void many_producers(ep::ProxyRing ring, Messages m) {
    if (is_producer()) {
        for (int i = threadIdx.x; i < m.count; i += blockDim.x) {
            if (!push(ring, prepare(m, i))) return;
        }
    } else if (is_proxy()) {
        take_and_post(ring, m.count);
    }
}

// ---- Rung 3: batches ------------------------------------------------------------------------------------------------
// A look at the credit crosses PCIe, so producers look seldom. ep::proxy_push_warp pushes the commands of 32 lanes
// with one addition and one look at the credit, which it remembers for the next warp. The proxy takes all that is there,
// and returns the credits of the whole batch with one store.
constexpr int kBatch = 64;  // commands

EP_DEVICE void take_batches(const ep::ProxyRing& ring, uint64_t count) {
    ep::ProxyCommand batch[kBatch];
    for (uint64_t taken = 0; taken < count;) {
        wait_for_command(ring, taken);
        int n = 0;
        while (n < kBatch && ep::ld_acquire_sys_u64(&slot_of(ring, taken + n)->number) == taken + n + 1) {
            batch[n] = copy_out(slot_of(ring, taken + n));
            ++n;
        }
        taken += n;
        ep::st_release_sys_u64(&ring.credits->taken, taken);
        for (int i = 0; i < n; ++i) post(batch[i]);
        ep::trace_value("commands in a batch", n);
    }
    ep::net_quiet();
}

extern "C" __global__ void batches(ep::ProxyRing ring, Messages m) {
    if (is_producer()) {
        const int first = threadIdx.x / ep::kWarpSize * ep::kWarpSize;  // of this warp's lanes
        for (int i = first; i < m.count; i += blockDim.x) {
            const int lanes = min(ep::kWarpSize, m.count - i);
            ep::ProxyCommand command = {};
            if (ep::lane_id() < lanes) command = prepare(m, i + ep::lane_id());
            if (!ep::proxy_push_warp(ring, command, lanes)) return;
        }
    } else if (is_proxy()) {
        take_batches(ring, m.count);
    }
}

// ---- Rung 4: completions --------------------------------------------------------------------------------------------
// The outbox has fewer rows than there are messages, so rows are used again. `taken` does not say when: the proxy has the
// command, but the NIC may not have read the row. A second thread of the proxy waits for the NIC and counts what is
// done; so the first one never has to wait. One warp pushes, and waits for the row's last message before it fills it.
EP_DEVICE void complete(const ep::ProxyRing& ring, uint64_t count) {
    for (uint64_t done = 0; done < count;) {
        uint64_t posted;
        while ((posted = ep::ld_acquire_sys_u64(&ring.credits->posted)) == done) {
        }
        ep::net_quiet();
        ep::st_release_sys_u64(&ring.credits->completed, posted);
        done = posted;
    }
}

EP_DEVICE void fill_outbox_warp(const Messages& m, int message) {
    uint64_t* const row = outbox_row(m, message);
    for (int i = ep::lane_id(); i < m.words; i += ep::kWarpSize) {
        row[i] = m.source[static_cast<size_t>(message) * m.words + i];
    }
}

extern "C" __global__ void completions(ep::ProxyRing ring, Messages m) {
    if (is_producer() && threadIdx.x < ep::kWarpSize) {
        for (int i = 0; i < m.count; ++i) {
            const uint64_t done = i < m.outbox_rows ? 0 : i - m.outbox_rows + 1;
            if (!ep::wait_until_ge_warp(&ring.credits->completed, done, {ep::kPhaseProxy, m.peer, -1})) return;
            fill_outbox_warp(m, i);
            __syncwarp();  // all lanes have filled in their part of the row before lane 0's push
            const int ok = ep::lane_id() == 0 ? push(ring, command_for(m, i)) : 0;
            if (!__shfl_sync(ep::kFullWarp, ok, 0)) return;
        }
    } else if (is_proxy()) {
        for (uint64_t number = 0; number < m.count; ++number) {
            wait_for_command(ring, number);
            const ep::ProxyCommand command = copy_out(slot_of(ring, number));
            ep::st_release_sys_u64(&ring.credits->taken, number + 1);
            post(command);
            ep::st_release_sys_u64(&ring.credits->posted, number + 1);
        }
    } else if (blockIdx.x == 2 && threadIdx.x == 0) {
        complete(ring, m.count);
    }
}
