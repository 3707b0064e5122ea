// Small programs for the exhaustive check: litmus tests, locks and counters, and what goes over a network.
#include <ep/memory.cuh>
#include <ep/net.cuh>
#include <ep/platform.cuh>
#include <ep/wait.cuh>

using ep::atom_add_acq_rel_gpu_u32;
using ep::atom_cas_relaxed_sys_u32;
using ep::ld_acquire_sys_u32;
using ep::ld_relaxed_sys_u32;
using ep::st_relaxed_sys_u32;
using ep::st_release_sys_u32;

#define PROGRAM(name) extern "C" __global__ void name(uint32_t* x, uint32_t* out)
#define ME static_cast<int>(threadIdx.x)

PROGRAM(store_buffering) {
    st_relaxed_sys_u32(x + ME, 1);
    out[ME] = ld_relaxed_sys_u32(x + 1 - ME);
}

PROGRAM(load_buffering) {
    out[ME] = ld_relaxed_sys_u32(x + ME);
    st_relaxed_sys_u32(x + 1 - ME, 1);
}

PROGRAM(message_passing) {
    if (ME == 0) {
        st_relaxed_sys_u32(x, 1);
        st_release_sys_u32(x + 1, 1);
    } else {
        out[0] = ld_acquire_sys_u32(x + 1);
        out[1] = ld_relaxed_sys_u32(x);
    }
}

PROGRAM(two_plus_two_writes) {
    st_relaxed_sys_u32(x + ME, 1);
    st_relaxed_sys_u32(x + 1 - ME, 2);
}

PROGRAM(independent_readers) {
    if (ME < 2) {
        st_relaxed_sys_u32(x + ME, 1);
    } else {
        out[2 * ME] = ld_relaxed_sys_u32(x + ME - 2);
        out[2 * ME + 1] = ld_relaxed_sys_u32(x + 3 - ME);
    }
}

PROGRAM(write_to_read) {
    if (ME == 0) st_relaxed_sys_u32(x, 1);
    if (ME == 1) {
        out[0] = ld_relaxed_sys_u32(x);
        st_relaxed_sys_u32(x + 1, 1);
    }
    if (ME == 2) {
        out[1] = ld_relaxed_sys_u32(x + 1);
        out[2] = ld_relaxed_sys_u32(x);
    }
}

PROGRAM(coherent_reads) {
    if (ME == 0) st_relaxed_sys_u32(x, 1);
    if (ME == 1) st_relaxed_sys_u32(x, 2);
    if (ME == 2)
        for (int i = 0; i < 3; i++) out[i] = ld_relaxed_sys_u32(x);
}

PROGRAM(counter) { out[ME] = atom_add_acq_rel_gpu_u32(x, 1); }

PROGRAM(lost_update) { st_relaxed_sys_u32(x, ld_relaxed_sys_u32(x) + 1); }

PROGRAM(apart) {
    for (int i = 0; i < 2; i++) st_relaxed_sys_u32(x + ME, ld_relaxed_sys_u32(x + ME) + 1);
}

PROGRAM(cas_race) { out[ME] = atom_cas_relaxed_sys_u32(x, 0, 1 + ME); }

PROGRAM(cas_loop) {
    uint32_t old = ld_relaxed_sys_u32(x);
    for (;;) {
        const uint32_t found = atom_cas_relaxed_sys_u32(x, old, old + 1);
        if (found == old) break;
        old = found;
    }
    out[ME] = old;
}

PROGRAM(waits_for_it) {
    if (ME == 0) {
        st_relaxed_sys_u32(x, 7);
        st_release_sys_u32(x + 1, 1);
    } else {
        while (ld_acquire_sys_u32(x + 1) == 0) {
        }
        out[0] = ld_relaxed_sys_u32(x);
    }
}

PROGRAM(ping_pong) {
    for (uint32_t i = 1; i <= 2; i++) {
        if (ME == 0) st_release_sys_u32(x, i);
        while (ld_acquire_sys_u32(x + 1 - ME) < i) {
        }
        if (ME == 1) st_release_sys_u32(x + 1, i);
    }
}

PROGRAM(spin_lock) {
    while (atom_cas_relaxed_sys_u32(x, 0, 1) != 0) {
    }
    out[ME] = ld_relaxed_sys_u32(x + 1);
    st_relaxed_sys_u32(x + 1, out[ME] + 1);
    st_release_sys_u32(x, 0);
}

PROGRAM(barrier_between) {
    st_relaxed_sys_u32(x + ME, 1);
    __syncthreads();
    out[ME] = ld_relaxed_sys_u32(x) + ld_relaxed_sys_u32(x + 1);
}

PROGRAM(shuffled) {
    const uint32_t mine = ld_relaxed_sys_u32(x);
    const uint32_t other = __shfl_xor_sync(3, mine, 1);
    st_relaxed_sys_u32(x, 1 + ME);
    out[ME] = mine + 4 * other;
}

PROGRAM(dekker) {
    st_relaxed_sys_u32(x + ME, 1);
    if (ld_relaxed_sys_u32(x + 1 - ME) == 0) {
        out[ME] = 1;
        st_relaxed_sys_u32(x + 2, 1 + ME);
    }
    st_relaxed_sys_u32(x + ME, 0);
}

PROGRAM(sequence_lock) {
    if (ME == 0) {
        st_relaxed_sys_u32(x, 1);
        st_relaxed_sys_u32(x + 1, 1);
        st_relaxed_sys_u32(x + 2, 1);
        st_relaxed_sys_u32(x, 2);
    } else {
        const uint32_t before = ld_relaxed_sys_u32(x);
        const uint32_t first = ld_relaxed_sys_u32(x + 1), second = ld_relaxed_sys_u32(x + 2);
        out[0] = before % 2 == 0 && ld_relaxed_sys_u32(x) == before ? 1 + first + 2 * second : 0;
    }
}

PROGRAM(turns) {
    while (ld_acquire_sys_u32(x) % 2 != ME) {
    }
    st_release_sys_u32(x, ld_relaxed_sys_u32(x) + 1);
}

// Only the last of two that say who goes first is heard: the other one waits for ever, unless it has gone.
PROGRAM(waits_in_vain) {
    st_relaxed_sys_u32(x, 1 + ME);
    while (ld_acquire_sys_u32(x) != 1 + ME) {
    }
}

// Two values come one after the other, and data before them that nothing orders: how they are waited for.
#define WAITS(name, look)                       \
    PROGRAM(name) {                             \
        if (ME == 0) {                          \
            st_relaxed_sys_u32(x + 1, 5);       \
            st_relaxed_sys_u32(x, 1);           \
            st_relaxed_sys_u32(x, 2);           \
        } else {                                \
            uint32_t seen;                      \
            while ((seen = look) == 0) {        \
            }                                   \
            out[0] = seen;                      \
            out[1] = ld_relaxed_sys_u32(x + 1); \
        }                                       \
    }
WAITS(waits_by_loads, ld_relaxed_sys_u32(x))
WAITS(waits_by_adding, ep::atom_add_relaxed_sys_u32(x, 0))
WAITS(waits_by_swapping, atom_cas_relaxed_sys_u32(x, 0, 0))

// Both claim, and step aside if the other one has claimed too.
PROGRAM(step_aside) {
    for (;;) {
        st_relaxed_sys_u32(x + ME, 1);
        if (ld_acquire_sys_u32(x + 1 - ME) == 0) break;
        st_relaxed_sys_u32(x + ME, 0);
    }
    out[ME] = 1;
    st_release_sys_u32(x + ME, 0);
}

// Only the second steps aside, until the first is done.
PROGRAM(one_steps_aside) {
    st_relaxed_sys_u32(x + ME, 1);
    while (ld_acquire_sys_u32(x + 1 - ME) != 0) {
        if (ME == 0) continue;
        st_relaxed_sys_u32(x + 1, 0);
        while (ld_acquire_sys_u32(x) != 0) {
        }
        st_relaxed_sys_u32(x + 1, 1);
    }
    out[ME] = 1;
    st_release_sys_u32(x + ME, 0);
}

// Each takes a lock, tries the other one's, and gives the first back if it does not get that.
PROGRAM(two_locks) {
    do {
        while (atom_cas_relaxed_sys_u32(x + ME, 0, 1) != 0) {
        }
        if (atom_cas_relaxed_sys_u32(x + 1 - ME, 0, 1) == 0) break;
        st_release_sys_u32(x + ME, 0);
    } while (true);
    out[ME] = 1;
    st_release_sys_u32(x, 0);
    st_release_sys_u32(x + 1, 0);
}

// The same, where thread 0 keeps its lock, and thread 1 tries again when that one is free.
PROGRAM(two_locks_with_patience) {
    do {
        while (atom_cas_relaxed_sys_u32(x + ME, 0, 1) != 0) {
        }
        while (ME == 0 && atom_cas_relaxed_sys_u32(x + 1, 0, 1) != 0) {
        }
        if (ME == 0 || atom_cas_relaxed_sys_u32(x, 0, 1) == 0) break;
        st_release_sys_u32(x + 1, 0);
        while (ld_relaxed_sys_u32(x) != 0) {
        }
    } while (true);
    out[ME] = 1;
    st_release_sys_u32(x, 0);
    st_release_sys_u32(x + 1, 0);
}

// Block 0 beats a heart until block 1 is there.
extern "C" __global__ void beats(uint32_t* x, uint32_t* out) {
    if (blockIdx.x == 1) return st_release_sys_u32(x, 1);
    while (ld_acquire_sys_u32(x) == 0) {
        st_relaxed_sys_u32(x + 1, 1);
        st_relaxed_sys_u32(x + 1, 0);
    }
    out[0] = 1;
}

// Whether the other one's store has come yet is asked by the clock.
PROGRAM(asks_the_clock) {
    const int64_t begin = ep::clock_cycles();
    st_relaxed_sys_u32(x + ME, 1);
    if (clock64() - begin > 1000) out[ME] = ld_relaxed_sys_u32(x + 1 - ME);
}

// ---- over a network, from rank 0 to rank 1: what the receiver polls while it comes

extern "C" __global__ void put_and_signal(uint64_t* data, uint64_t* flag, uint64_t* out) {
    if (ep::rank() == 0) {
        data[0] = 7;
        data[4] = 9;
        ep::net_put_signal_nbi(data, data, 64, flag, 1, 1);
        ep::net_quiet(1);
    } else {
        if (!ep::wait_until_ge(flag, 1, {ep::kPhaseSignal, 0, 0})) return;
        out[0] = data[0] + data[4];
    }
}

extern "C" __global__ void put_then_signal(uint64_t* data, uint64_t* flag, uint64_t* out) {
    if (ep::rank() == 0) {
        data[0] = 7;
        data[4] = 9;
        ep::net_put_nbi(data, data, 64, 1);
        ep::net_atomic_add_u64_nbi(flag, 1, 1);
        ep::net_quiet(1);
    } else {
        if (!ep::wait_until_ge(flag, 1, {ep::kPhaseSignal, 0, 0})) return;
        out[0] = data[0] + data[4];
    }
}

extern "C" __global__ void look_while_it_comes(uint64_t* data, uint64_t* flag, uint64_t* out) {
    if (ep::rank() == 0) {
        data[0] = 1;
        data[4] = 1;
        ep::net_put_signal_nbi(data, data, 64, flag, 1, 1);
    } else {
        out[0] = ep::ld_relaxed_sys_u64(data + 4) + 2 * ep::ld_relaxed_sys_u64(data) + 4 * ep::ld_relaxed_sys_u64(flag);
    }
}

// ---- a Treiber stack of nodes 1, 2, 3: x[0] is its head, x[n] the next of node n, x[4] of them popped

__device__ uint32_t pop_of(uint32_t* x, bool counts) {
    for (;;) {
        const uint32_t head = ld_acquire_sys_u32(x);
        if ((head & 0xff) == 0) return 0;
        const uint32_t next = ld_relaxed_sys_u32(x + (head & 0xff));
        const uint32_t now = counts ? ((head >> 8) + 1) << 8 | next : next;
        if (ep::atom_cas_acq_rel_sys_u32(x, head, now) == head) return head & 0xff;
    }
}

__device__ void push_of(uint32_t* x, uint32_t node, bool counts) {
    for (;;) {
        const uint32_t head = ld_relaxed_sys_u32(x);
        st_relaxed_sys_u32(x + node, head & 0xff);
        const uint32_t now = counts ? ((head >> 8) + 1) << 8 | node : node;
        if (ep::atom_cas_acq_rel_sys_u32(x, head, now) == head) return;
    }
}

// Each node is popped by at most one at a time, or the stack has been broken: two operations of each thread.
extern "C" __global__ void stack_of(uint32_t* symmetric, uint32_t* owners, int counts) {
    uint32_t* x = ep::peer_ptr(symmetric, 0);
    uint32_t* owned = ep::peer_ptr(owners, 0);
    const uint32_t node = pop_of(x, counts);
    if (node == 0) return;
    if (ep::atom_add_acq_rel_sys_u32(owned + node, 1) != 0) __trap();
    if ((ep::rank() + threadIdx.x) % 2 != 0) return;
    ep::atom_add_acq_rel_sys_u32(owned + node, 0xffffffffu);
    push_of(x, node, counts);
}

// ---- loops that store in each turn while they wait, and so never come back to their state

// Rank 1 signals before its data (`early`), while rank 0 beats a heart or writes a log.
extern "C" __global__ void busy_wait(uint64_t* data, uint64_t* out, int early, int logs) {
    if (ep::rank() == 0) {
        for (uint64_t turn = 1; ep::ld_acquire_sys_u64(data + 8) == 0; ++turn) {
            if (logs) {
                data[16 + turn % 4] = turn;
            } else {
                ep::st_relaxed_sys_u64(data + 16, turn);
            }
        }
        out[0] = data[0];
    } else {
        uint64_t* const there = ep::peer_ptr(data, 0);
        if (!early) there[0] = 42;
        ep::st_release_sys_u64(there + 8, 1);
        if (early) there[0] = 42;
    }
}
