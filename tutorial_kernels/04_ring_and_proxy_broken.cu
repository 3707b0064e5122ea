// The kernels of 04_ring_and_proxy.cu with their classic mistakes. DELIBERATELY WRONG: for notebooks, tests, the checker.
//
// All have the same parameters and blocks as the right ones.
#include "04_ring_and_proxy.cuh"

namespace {

// The parts that are right in all of them.
EP_DEVICE bool wait_for_room(const ep::ProxyRing& ring, uint64_t number, int peer) {
    if (number < ring.num_slots) return true;
    return ep::wait_until_ge(&ring.credits->taken, number - ring.num_slots + 1, {ep::kPhaseProxy, peer, -1});
}

EP_DEVICE void publish(const ep::ProxyRing& ring, uint64_t number) {
    ep::st_release_sys_u64(&slot_of(ring, number)->number, number + 1);
}

EP_DEVICE ep::ProxyCommand take(const ep::ProxyRing& ring, uint64_t number) {
    while (ep::ld_acquire_sys_u64(&slot_of(ring, number)->number) != number + 1) {
    }
    const ep::ProxyCommand command = copy_out(slot_of(ring, number));
    ep::st_release_sys_u64(&ring.credits->taken, number + 1);
    return command;
}

EP_DEVICE void take_and_post(const ep::ProxyRing& ring, int count) {
    for (uint64_t number = 0; number < count; ++number) post(take(ring, number));
    ep::net_quiet();
}

}  // namespace

// ---- One producer ---------------------------------------------------------------------------------------------------
// The number first, then the command that it announces. The proxy may see the number and read the words of the command
// that lay there before, or some of both.
extern "C" __global__ void number_first(ep::ProxyRing ring, Messages m) {
    if (is_producer() && threadIdx.x == 0) {
        for (int i = 0; i < m.count; ++i) {
            const ep::ProxyCommand command = prepare(m, i);
            if (!wait_for_room(ring, i, m.peer)) return;
            publish(ring, i);
            fill(slot_of(ring, i), command);
        }
    } else if (is_proxy()) {
        take_and_post(ring, m.count);
    }
}

// No thread asks whether the slot is free. With as many slots as commands none has to.
extern "C" __global__ void without_credits(ep::ProxyRing ring, Messages m) {
    if (is_producer() && threadIdx.x == 0) {
        for (int i = 0; i < m.count; ++i) {
            fill(slot_of(ring, i), prepare(m, i));
            publish(ring, i);
        }
    } else if (is_proxy()) {
        take_and_post(ring, m.count);
    }
}

// The credit goes back before the command is copied out.
extern "C" __global__ void early_credit(ep::ProxyRing ring, Messages m) {
    if (is_producer() && threadIdx.x == 0) {
        for (int i = 0; i < m.count; ++i) {
            const ep::ProxyCommand command = prepare(m, i);
            if (!wait_for_room(ring, i, m.peer)) return;
            fill(slot_of(ring, i), command);
            publish(ring, i);
        }
    } else if (is_proxy()) {
        for (uint64_t number = 0; number < m.count; ++number) {
            while (ep::ld_acquire_sys_u64(&slot_of(ring, number)->number) != number + 1) {
            }
            ep::st_release_sys_u64(&ring.credits->taken, number + 1);
            post(copy_out(slot_of(ring, number)));
        }
        ep::net_quiet();
    }
}

// A look at the credit without acquire: it says that the slot was read, and orders nothing behind that.
extern "C" __global__ void relaxed_credit(ep::ProxyRing ring, Messages m) {
    if (is_producer() && threadIdx.x == 0) {
        for (int i = 0; i < m.count; ++i) {
            const ep::ProxyCommand command = prepare(m, i);
            while (ep::ld_relaxed_sys_u64(&ring.credits->taken) + ring.num_slots <= i) {
            }
            fill(slot_of(ring, i), command);
            publish(ring, i);
        }
    } else if (is_proxy()) {
        take_and_post(ring, m.count);
    }
}

// ---- Many producers -------------------------------------------------------------------------------------------------
// One count for all, of commands that are ready, in place of a number in each slot. A quick thread adds 1 for its own
// command, and the proxy takes the slot of a slow one.
extern "C" __global__ void one_count(ep::ProxyRing ring, Messages m) {
    uint64_t* const ready = &ring.producer->room;  // a word of the ring that is free here
    if (is_producer()) {
        for (int i = threadIdx.x; i < m.count; i += blockDim.x) {
            const ep::ProxyCommand command = prepare(m, i);
            const uint64_t number = ep::atom_add_relaxed_gpu_u64(&ring.producer->head, 1);
            if (!wait_for_room(ring, number, m.peer)) return;
            fill(slot_of(ring, number), command);
            ep::red_add_release_sys_u64(ready, 1);
        }
    } else if (is_proxy()) {
        for (uint64_t number = 0; number < m.count; ++number) {
            while (ep::ld_acquire_sys_u64(ready) <= number) {
            }
            const ep::ProxyCommand command = copy_out(slot_of(ring, number));
            ep::st_release_sys_u64(&ring.credits->taken, number + 1);
            if (command.bytes) post(command);  // a slot that is still empty has nothing to post
        }
        ep::net_quiet();
    }
}

// ---- Completions ----------------------------------------------------------------------------------------------------
// `taken` for `completed`: the row of the outbox is filled again when the proxy has its command, which the NIC may not
// have carried out. Run it with fewer rows than messages.
extern "C" __global__ void taken_for_completed(ep::ProxyRing ring, Messages m) {
    if (is_producer() && threadIdx.x == 0) {
        for (int i = 0; i < m.count; ++i) {
            const uint64_t done = i < m.outbox_rows ? 0 : i - m.outbox_rows + 1;
            if (!ep::wait_until_ge(&ring.credits->taken, done, {ep::kPhaseProxy, m.peer, -1})) return;
            const ep::ProxyCommand command = prepare(m, i);
            if (!wait_for_room(ring, i, m.peer)) return;
            fill(slot_of(ring, i), command);
            publish(ring, i);
        }
    } else if (is_proxy()) {
        take_and_post(ring, m.count);
    }
}

// A warp fills the row, and lane 0 pushes without waiting for the other lanes.
extern "C" __global__ void push_without_syncwarp(ep::ProxyRing ring, Messages m) {
    if (is_producer() && threadIdx.x < ep::kWarpSize) {
        for (int i = 0; i < m.count; ++i) {
            uint64_t* const row = outbox_row(m, i);
            for (int k = ep::lane_id(); k < m.words; k += ep::kWarpSize) {
                row[k] = m.source[static_cast<size_t>(i) * m.words + k];
            }
            if (ep::lane_id() == 0) {
                if (!wait_for_room(ring, i, m.peer)) return;
                fill(slot_of(ring, i), command_for(m, i));
                publish(ring, i);
            }
        }
    } else if (is_proxy()) {
        take_and_post(ring, m.count);
    }
}
