// The ring of 04_ring_and_proxy.cu, rung 1, taking notes: in what order is each slot filled and taken?
//
// Between the steps each side takes the next number from one counter, which orders the events of both without a clock.
// `ahead`: how many commands may be pushed ahead of the proxy. More than num_slots is the mistake of without_credits.
#include "04_ring_and_proxy.cuh"

// notes [2, count, 2]: when each command began to be filled in, when that was done; when it began to be taken, and when
// that was done.
EP_DEVICE void note(uint64_t* counter, uint64_t* notes, uint64_t which) {
    notes[which] = ep::atom_add_acq_rel_sys_u64(counter, 1);
}

extern "C" __global__ void ring_traced(ep::ProxyRing ring, Messages m, uint64_t ahead, uint64_t* counter,
                                       uint64_t* notes) {
    const uint64_t count = m.count;
    if (is_producer() && threadIdx.x == 0) {
        for (uint64_t i = 0; i < count; ++i) {
            const ep::ProxyCommand command = prepare(m, i);
            if (i >= ahead && !ep::wait_until_ge(&ring.credits->taken, i - ahead + 1, {ep::kPhaseProxy, m.peer, -1})) {
                return;
            }
            note(counter, notes, 2 * i);
            fill(slot_of(ring, i), command);
            note(counter, notes, 2 * i + 1);
            ep::st_release_sys_u64(&slot_of(ring, i)->number, i + 1);
        }
    } else if (is_proxy()) {
        for (uint64_t i = 0; i < count; ++i) {
            while (ep::ld_acquire_sys_u64(&slot_of(ring, i)->number) < i + 1) {
            }
            note(counter, notes, 2 * (count + i));
            const ep::ProxyCommand command = copy_out(slot_of(ring, i));
            note(counter, notes, 2 * (count + i) + 1);
            ep::st_release_sys_u64(&ring.credits->taken, i + 1);
            post(command);
        }
        ep::net_quiet();
    }
}
