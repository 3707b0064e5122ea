// Mistakes as learners make them. What the checker says of each is read as a learner reads it: the two right lines,
// marked "// A" and "// B", and the right cause (tests/checker/test_findings_told.py).
#include <ep/net.cuh>
#include <ep/signal.cuh>
#include <ep/tma.cuh>
#include <ep/wait.cuh>

// ---- one block ------------------------------------------------------------------------------------------------------

extern "C" __global__ void two_lanes_own_one_place(int* data, uint64_t* flag, int* out, int n, int round) {
    __shared__ int sums[4];
    const int value = threadIdx.x;
    if (threadIdx.x % 16 == 0) sums[threadIdx.x / 32] = value;  // A B
    __syncthreads();
    if (threadIdx.x == 0) out[0] = sums[0] + sums[1];
}

extern "C" __global__ void lanes_write_half_the_places(int* data, uint64_t* flag, int* out, int n, int round) {
    data[threadIdx.x / 2] = threadIdx.x;  // A B
}

extern "C" __global__ void tile_refilled_too_early(int* data, uint64_t* flag, int* out, int n, int round) {
    __shared__ int tile[64];
    int sum = 0;
    for (int i = 0; i < 4; i++) {
        tile[threadIdx.x] = data[threadIdx.x] + i;  // A
        __syncthreads();
        sum += tile[63 - threadIdx.x];  // B
    }
    out[threadIdx.x] = sum;
}

extern "C" __global__ void branches_hand_over(int* data, uint64_t* flag, int* out, int n, int round) {
    __shared__ int tile[32];
    if (threadIdx.x < 32) {
        tile[threadIdx.x] = data[threadIdx.x];  // A
    } else {
        out[threadIdx.x] = tile[threadIdx.x - 32];  // B
    }
}

extern "C" __global__ void one_thread_reads_in_a_branch(int* data, uint64_t* flag, int* out, int n, int round) {
    __shared__ int tile[64];
    tile[threadIdx.x] = data[threadIdx.x];  // A
    if (threadIdx.x == 0) {
        int sum = 0;
        for (int i = 0; i < 64; i++) sum += tile[i];  // B
        out[0] = sum;
    }
}

extern "C" __global__ void warps_hand_over_by_a_volatile_flag(int* data, uint64_t* flag, int* out, int n, int round) {
    __shared__ int tile[32];
    __shared__ volatile int ready;
    if (threadIdx.x == 0) ready = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        tile[0] = 7;  // A
        ready = 1;    // S
    }
    if (threadIdx.x == 32) {
        while (ready == 0) {
        }
        out[0] = tile[0];  // B
    }
}

extern "C" __global__ void two_warps_and_a_bare_lock(int* data, uint64_t* flag, int* out, int n, int round) {
    __shared__ int lock, total;
    if (threadIdx.x == 0) lock = total = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        while (atomicCAS(&lock, 0, 1) != 0) {  // take
        }
        total = total + 1;     // A B
        atomicExch(&lock, 0);  // give
    }
}

extern "C" __global__ void tree_without_barriers(int* data, uint64_t* flag, int* out, int n, int round) {
    __shared__ int x[64];
    x[threadIdx.x] = data[threadIdx.x];
    __syncthreads();
    for (int half = 32; half > 0; half /= 2)
        if (threadIdx.x < half) x[threadIdx.x] += x[threadIdx.x + half];  // A B
    if (threadIdx.x == 0) out[0] = x[0];
}

extern "C" __global__ void wrong_half_of_a_double_buffer(int* data, uint64_t* flag, int* out, int n, int round) {
    __shared__ int tile[2][64];
    int sum = 0;
    for (int i = 0; i < 6; i++) {
        tile[i & 1][threadIdx.x] = i;  // A
        __syncthreads();
        sum += tile[(i + 1) & 1][63 - threadIdx.x] + tile[i & 1][63 - threadIdx.x];  // B
    }
    out[threadIdx.x] = sum;
}

extern "C" __global__ void syncwarp_between_warps(int* data, uint64_t* flag, int* out, int n, int round) {
    __shared__ int tile[64];
    tile[threadIdx.x] = data[threadIdx.x];  // A
    __syncwarp();
    out[threadIdx.x] = tile[(threadIdx.x + 32) % 64];  // B
}

extern "C" __global__ void shuffle_taken_for_a_barrier(int* data, uint64_t* flag, int* out, int n, int round) {
    __shared__ int tile[32];
    if (threadIdx.x >= 32) return;
    if (threadIdx.x == 0) tile[5] = 9;  // A
    const int ready = __shfl_sync(0xffffffffu, 1, 0);
    if (threadIdx.x == 5 && ready) out[0] = tile[5];  // B
}

extern "C" __global__ void barrier_in_a_branch(int* data, uint64_t* flag, int* out, int n, int round) {
    __shared__ int tile[64];
    tile[threadIdx.x] = threadIdx.x;
    if (threadIdx.x < 48) {
        __syncthreads();  // A
        out[threadIdx.x] = tile[63 - threadIdx.x];
    } else {
        __syncthreads();  // B
    }
}

extern "C" __global__ void barrier_for_some_lanes(int* data, uint64_t* flag, int* out, int n, int round) {
    if (threadIdx.x < 20) __syncwarp();  // A
    out[threadIdx.x] = 1;
    __syncthreads();
}

extern "C" __global__ void ring_in_shared_without_empty(int* data, uint64_t* flag, int* out, int n, int round) {
    __shared__ int slot;
    __shared__ unsigned full;
    if (threadIdx.x == 0) full = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (unsigned i = 1; i <= 5; i++) {
            slot = i;  // A
            ep::st_release_gpu_u32(&full, i);
        }
    } else if (threadIdx.x == 32) {
        int sum = 0;
        for (unsigned i = 1; i <= 5; i++) {
            while (ep::ld_acquire_gpu_u32(&full) < i) {
            }
            sum += slot;  // B
        }
        out[0] = sum;
    }
}

// ---- several blocks of one GPU --------------------------------------------------------------------------------------

__device__ int counter;
__device__ int lock_word;
__device__ unsigned ticket, serving;
__device__ int locks[2];

extern "C" __global__ void plain_counter_of_the_grid(int* data, uint64_t* flag, int* out, int n, int round) {
    if (threadIdx.x == 0) counter++;  // A B
}

extern "C" __global__ void lock_without_fences(int* data, uint64_t* flag, int* out, int n, int round) {
    if (threadIdx.x != 0) return;
    while (atomicCAS(&lock_word, 0, 1) != 0) {  // take
    }
    data[0] = data[0] + 1;      // A B
    atomicExch(&lock_word, 0);  // give
}

extern "C" __global__ void lock_without_acquire(int* data, uint64_t* flag, int* out, int n, int round) {
    if (threadIdx.x != 0) return;
    while (atomicCAS(&lock_word, 0, 1) != 0) {  // take
    }
    data[0] = data[0] + 1;  // A B
    __threadfence();
    atomicExch(&lock_word, 0);  // give
}

extern "C" __global__ void lock_without_release(int* data, uint64_t* flag, int* out, int n, int round) {
    if (threadIdx.x != 0) return;
    while (atomicCAS(&lock_word, 0, 1) != 0) {  // take
    }
    __threadfence();
    data[0] = data[0] + 1;           // A B
    *(volatile int*)&lock_word = 0;  // give
}

extern "C" __global__ void ticket_lock_without_fences(int* data, uint64_t* flag, int* out, int n, int round) {
    if (threadIdx.x != 0) return;
    const unsigned mine = atomicAdd(&ticket, 1);
    while (*(volatile unsigned*)&serving != mine) {  // take
    }
    data[0] = data[0] + 1;   // A B
    atomicAdd(&serving, 1);  // give
}

extern "C" __global__ void fence_of_a_block_between_blocks(int* data, uint64_t* flag, int* out, int n, int round) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        data[0] = 42;           // A
        __threadfence_block();  // narrow
        ep::st_relaxed_gpu_u64(flag, 1);
    }
    if (blockIdx.x == 1 && threadIdx.x == 0) {
        while (ep::ld_acquire_gpu_u64(flag) == 0) {
        }
        out[0] = data[0];  // B
    }
}

extern "C" __global__ void last_block_without_a_fence(int* data, uint64_t* flag, int* out, int n, int round) {
    __shared__ bool last;
    data[blockIdx.x * blockDim.x + threadIdx.x] = 1;  // A
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd((unsigned long long*)flag, 1ull) == gridDim.x - 1;  // count
    __syncthreads();
    if (last && threadIdx.x == 0) {
        int sum = 0;
        for (int i = 0; i < gridDim.x * blockDim.x; i++) sum += data[i];  // B
        out[0] = sum;
    }
}

extern "C" __global__ void grid_barrier_without_a_fence(int* data, uint64_t* flag, int* out, int n, int round) {
    data[blockIdx.x * 64 + threadIdx.x] = 1;  // A
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd((unsigned long long*)flag, 1ull);
        while (ep::ld_acquire_gpu_u64(flag) < gridDim.x) {
        }
    }
    __syncthreads();
    out[blockIdx.x * 64 + threadIdx.x] = data[(blockIdx.x + 1) % gridDim.x * 64 + threadIdx.x];  // B
}

extern "C" __global__ void locks_in_both_orders(int* data, uint64_t* flag, int* out, int n, int round) {
    if (threadIdx.x != 0) return;
    const int first = blockIdx.x, second = 1 - blockIdx.x;
    while (atomicCAS(&locks[first], 0, 1) != 0) {  // first
    }
    __threadfence();
    while (atomicCAS(&locks[second], 0, 1) != 0) {  // A B
    }
    __threadfence();
    data[0]++;
    __threadfence();
    atomicExch(&locks[second], 0);
    atomicExch(&locks[first], 0);
}

extern "C" __global__ void lock_never_given_back(int* data, uint64_t* flag, int* out, int n, int round) {
    if (threadIdx.x != 0) return;
    while (atomicCAS(&lock_word, 0, 1) != 0) {  // A
    }
    __threadfence();
    if (data[0] == 1) return;  // forgets the lock
    data[0] = 1;
    if (blockIdx.x == 5) atomicExch(&lock_word, 0);
}

extern "C" __global__ void one_side_takes_the_lock(int* data, uint64_t* flag, int* out, int n, int round) {
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0) {
        while (atomicCAS(&lock_word, 0, 1) != 0) {  // take
        }
        __threadfence();
        data[0] = 4;  // A
        __threadfence();
        atomicExch(&lock_word, 0);
    } else {
        out[0] = data[0];  // B
    }
}

extern "C" __global__ void cleared_beside_atomics(int* data, uint64_t* flag, int* out, int n, int round) {
    __shared__ int total;
    if (threadIdx.x == 0) total = 0;       // A
    atomicAdd(&total, data[threadIdx.x]);  // B
    __syncthreads();
    if (threadIdx.x == 0) out[0] = total;
}

extern "C" __global__ void atomic_of_a_block_between_blocks(int* data, uint64_t* flag, int* out, int n, int round) {
    if (threadIdx.x == 0) atomicAdd_block(data, 1);  // A B
}

// ---- ranks that reach each other by loads and stores ----------------------------------------------------------------

extern "C" __global__ void fence_of_a_gpu_towards_a_peer(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x == 0) {
        *ep::peer_ptr(data, peer) = 42;  // A
        __threadfence();                 // narrow
        ep::st_relaxed_sys_u64(ep::peer_ptr(flag, peer), 1);
        while (ep::ld_acquire_sys_u64(flag) == 0) {
        }
        out[0] = data[0];  // B
    }
}

extern "C" __global__ void reader_fences_too_narrowly(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x == 0) {
        *ep::peer_ptr(data, peer) = 42;  // A
        __threadfence_system();
        ep::st_relaxed_sys_u64(ep::peer_ptr(flag, peer), 1);
        while (ep::ld_relaxed_sys_u64(flag) == 0) {
        }
        __threadfence();   // narrow
        out[0] = data[0];  // B
    }
}

extern "C" __global__ void reads_before_it_waits(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    *ep::peer_ptr(data + threadIdx.x, peer) = 1;  // A
    __syncthreads();
    if (threadIdx.x == 0) ep::signal_set(flag, 1, peer);
    out[threadIdx.x] = data[threadIdx.x];  // B
    if (threadIdx.x == 0)
        while (ep::ld_acquire_sys_u64(flag) == 0) {
        }
}

extern "C" __global__ void opening_barrier_only(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x == 0) {
        ep::signal_set(flag, 1, peer);  // all ranks are here
        while (ep::ld_acquire_sys_u64(flag) == 0) {
        }
    }
    __syncthreads();
    *ep::peer_ptr(data + threadIdx.x, peer) = 1;  // A
    __syncthreads();
    if (threadIdx.x == 0) ep::signal_set(flag + 1, 1, peer);  // S
    out[threadIdx.x] = data[threadIdx.x];                     // B
}

extern "C" __global__ void signal_before_the_data(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x == 0) {
        ep::signal_set(flag, 1, peer);  // S
        *ep::peer_ptr(data, peer) = 1;  // A
        while (ep::ld_acquire_sys_u64(flag) == 0) {
        }
        out[0] = data[0];  // B
    }
}

extern "C" __global__ void stale_epoch(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x == 0) {
        *ep::peer_ptr(data, peer) = round;          // A
        ep::signal_set(flag, 1, peer);              // S
        while (ep::ld_acquire_sys_u64(flag) < 1) {  // wait
        }
        out[0] = data[0];  // B
    }
}

extern "C" __global__ void epoch_waits_for_the_one_before(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x == 0) {
        for (int i = 1; i <= 3; i++) {
            *ep::peer_ptr(data + i % 2, peer) = i;  // A
            ep::signal_set(flag, i, peer);
            while (ep::ld_acquire_sys_u64(flag) + 1 < i) {  // wait
            }
            out[i] = data[i % 2];  // B
        }
    }
}

extern "C" __global__ void waits_for_a_value_that_passed(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x == 0) {
        ep::signal_set(flag, 1, peer);
        ep::signal_set(flag, 2, peer);               // S
        while (ep::ld_acquire_sys_u64(flag) != 1) {  // A
        }
    }
}

extern "C" __global__ void everyone_waits_first(int* data, uint64_t* flag, int* out, int n, int round) {
    const int next = (ep::rank() + 1) % ep::num_ranks();
    if (threadIdx.x == 0) {
        while (ep::ld_acquire_sys_u64(flag) == 0) {  // A
        }
        ep::signal_set(flag, 1, next);  // S
    }
}

extern "C" __global__ void waits_for_what_no_block_gives(int* data, uint64_t* flag, int* out, int n, int round) {
    for (uint64_t i = 1; i <= 4; i++) {
        if (blockIdx.x == 0) {
            while (threadIdx.x == 0 && ep::ld_acquire_sys_u64(flag) < i) {  // A
            }
        } else if (blockIdx.x == 3) {
            ep::st_release_sys_u64(flag, i);  // S
        }
    }
}

extern "C" __global__ void credit_before_the_read(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x == 0 && ep::rank() == 0)
        for (int i = 1; i <= 8; i++) {
            while (ep::ld_acquire_sys_u64(flag + 1) + 1 < i) {
            }
            *ep::peer_ptr(data, peer) = i;  // A
            ep::signal_set(flag, i, peer);
        }
    if (threadIdx.x == 0 && ep::rank() == 1)
        for (int i = 1; i <= 8; i++) {
            while (ep::ld_acquire_sys_u64(flag) < i) {
            }
            ep::signal_set(flag + 1, i, peer);  // S
            out[i] = data[0];                   // B
        }
}

extern "C" __global__ void credit_before_the_others_read(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    for (uint64_t i = 1; i <= 4; i++) {
        if (threadIdx.x == 0)
            while (ep::ld_acquire_sys_u64(flag + 1) + 1 < i) {
            }
        __syncthreads();
        ep::peer_ptr(data, peer)[threadIdx.x] = i;  // A
        __syncthreads();
        if (threadIdx.x == 0) {
            ep::signal_set(flag, i, peer);
            while (ep::ld_acquire_sys_u64(flag) < i) {
            }
        }
        __syncthreads();
        out[threadIdx.x] += data[threadIdx.x];  // B
        if (threadIdx.x == 0) ep::signal_set(flag + 1, i, peer);
    }
}

extern "C" __global__ void one_credit_too_many(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x == 0 && ep::rank() == 0)
        for (int i = 1; i <= 8; i++) {
            while (ep::ld_acquire_sys_u64(flag + 1) + 2 < i) {  // wait
            }
            *ep::peer_ptr(data, peer) = i;  // A
            ep::signal_set(flag, i, peer);
        }
    if (threadIdx.x == 0 && ep::rank() == 1)
        for (int i = 1; i <= 8; i++) {
            while (ep::ld_acquire_sys_u64(flag) < i) {
            }
            out[i] = data[0];  // B
            ep::signal_set(flag + 1, i, peer);
        }
}

extern "C" __global__ void two_ranks_own_one_place(int* data, uint64_t* flag, int* out, int n, int round) {
    if (threadIdx.x == 0) *ep::peer_ptr(data, 0) = ep::rank();  // A B
}

extern "C" __global__ void relaxed_flag_then_data(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x == 0) {
        *ep::peer_ptr(data, peer) = 1;                        // A
        ep::st_relaxed_sys_u64(ep::peer_ptr(flag, peer), 1);  // S
        while (ep::ld_acquire_sys_u64(flag) == 0) {
        }
        out[0] = data[0];  // B
    }
}

extern "C" __global__ void works_too_long(int* data, uint64_t* flag, int* out, int n, int round) {
    uint32_t x = threadIdx.x + 1;
    for (uint64_t i = 0; i < (1ull << 40); i++) {
        x = x * 1664525u + 1013904223u;
        data[threadIdx.x] = x;
    }
}

extern "C" __global__ void spins_on_a_plain_load(int* data, uint64_t* flag, int* out, int n, int round) {
    if (threadIdx.x == 0) {
        ep::signal_set(flag, 1, 1 - ep::rank());  // A
        while (flag[0] == 0) __nanosleep(10);     // B
    }
}

extern "C" __global__ void lane_signals_before_its_warp_writes(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x >= 32) return;
    for (int i = 0; i < 3; i++) {
        if (ep::rank() == 0) {
            if (threadIdx.x == 0) ep::signal_set(flag, i + 1, peer);   // S
            *ep::peer_ptr(data + i * 32 + threadIdx.x, peer) = i + 1;  // A
        } else {
            while (ep::ld_acquire_sys_u64(flag) < i + 1) {
            }
            out[i * 32 + threadIdx.x] = data[i * 32 + threadIdx.x];  // B
        }
    }
}

extern "C" __global__ void exchange_without_credit(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x == 0)
        for (int i = 1; i <= 4; i++) {
            *ep::peer_ptr(data, peer) = i;  // A
            ep::signal_set(flag, i, peer);
            while (ep::ld_acquire_sys_u64(flag) < i) {
            }
            out[i] = data[0];  // B
        }
}

// ---- ranks behind NICs ----------------------------------------------------------------------------------------------

extern "C" __global__ void put_then_bare_signal(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x == 0) {
        ep::net_put_nbi(data, data + 512, 256, peer);  // A
        ep::net_atomic_add_u64_nbi(flag, 1, peer);     // S
        while (ep::ld_acquire_sys_u64(flag) == 0) {
        }
        out[0] = data[3];  // B
        ep::net_quiet();
    }
}

extern "C" __global__ void quiet_before_the_put(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x == 0) {
        ep::net_quiet(peer);
        ep::net_put_nbi(data, data + 512, 256, peer);  // A
        ep::net_atomic_add_u64_nbi(flag, 1, peer);     // S
        while (ep::ld_acquire_sys_u64(flag) == 0) {
        }
        out[0] = data[3];  // B
        ep::net_quiet();
    }
}

extern "C" __global__ void fence_is_no_quiet(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x == 0) {
        ep::net_put_nbi(data, data + 512, 256, peer);  // A
        ep::net_fence(peer);
        data[512] = 1;  // B
        ep::net_quiet();
    }
}

extern "C" __global__ void get_read_at_once(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x == 0) {
        ep::net_get_nbi(data, data + 512, 256, peer);  // A
        out[0] = data[0];                              // B
        ep::net_quiet();
    }
}

extern "C" __global__ void get_of_a_counter_that_is_set(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x == 0) {
        if (ep::rank() == 0) ep::st_relaxed_sys_u64(flag, 5);           // A
        if (ep::rank() == 1) ep::net_get_nbi(flag + 1, flag, 8, peer);  // B
        ep::net_quiet();
    }
}

extern "C" __global__ void owner_writes_where_a_put_lands(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x == 0) {
        data[0] = 5;                                   // A
        ep::net_put_nbi(data, data + 512, 256, peer);  // B
        ep::net_quiet();
    }
}

extern "C" __global__ void two_puts_into_one_place(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x == 0) {
        ep::net_put_nbi(data, data + 512, 128, peer, 0);  // A
        ep::net_put_nbi(data, data + 768, 128, peer, 1);  // B
        ep::net_quiet();
    }
}

extern "C" __global__ void put_of_what_others_write(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    data[512 + threadIdx.x] = threadIdx.x;                               // A
    if (threadIdx.x == 0) ep::net_put_nbi(data, data + 512, 256, peer);  // B
    if (threadIdx.x == 0) ep::net_quiet();
}

extern "C" __global__ void slot_without_credit(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x == 0)
        for (int i = 1; i <= 8; i++) {
            data[512] = i;
            ep::net_put_signal_nbi(data, data + 512, 64, flag, 1, peer);  // A
            while (ep::ld_acquire_sys_u64(flag) < i) {
            }
            out[i] = data[0];  // B
            ep::net_quiet();
        }
}

extern "C" __global__ void signal_of_another_put(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x == 0) {
        ep::net_put_nbi(data, data + 512, 128, peer, 0);                       // A
        ep::net_put_signal_nbi(data + 64, data + 576, 128, flag, 1, peer, 1);  // S
        while (ep::ld_acquire_sys_u64(flag) == 0) {
        }
        out[0] = data[0];  // B
        ep::net_quiet();
    }
}

extern "C" __global__ void relay_without_waiting(int* data, uint64_t* flag, int* out, int n, int round) {
    if (threadIdx.x != 0) return;
    if (ep::rank() == 0) ep::net_put_nbi(data, data + 512, 128, 1);  // A
    if (ep::rank() == 1) ep::net_put_nbi(data, data, 128, 2);        // B
    ep::net_quiet();
}

extern "C" __global__ void get_then_put_of_one_word(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x == 0 && ep::rank() == 0) {
        ep::net_get_nbi(data, data + 512, 64, peer);        // A
        ep::net_put_nbi(data + 512, data + 256, 64, peer);  // B
        ep::net_quiet();
    }
}

extern "C" __global__ void poll_the_data_itself(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x == 0) {
        data[512 + 15] = 9;
        ep::net_put_nbi(data, data + 512, 64, peer);                       // A
        while (ep::ld_acquire_sys_u32((const unsigned*)data + 15) == 0) {  // B
        }
        ep::net_quiet();
    }
}

extern "C" __global__ void put_of_what_a_block_writes(int* data, uint64_t* flag, int* out, int n, int round) {
    if (blockIdx.x == 1) data[512 + threadIdx.x] = threadIdx.x;  // A
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        ep::net_put_nbi(data, data + 512, 256, 1 - ep::rank());  // B
        ep::net_quiet();
    }
}

extern "C" __global__ void get_of_what_a_put_brings(int* data, uint64_t* flag, int* out, int n, int round) {
    if (threadIdx.x != 0) return;
    if (ep::rank() == 0) ep::net_put_nbi(data, data + 512, 64, 1);  // A
    if (ep::rank() == 2) ep::net_get_nbi(data + 256, data, 64, 1);  // B
    ep::net_quiet();
}

extern "C" __global__ void added_by_nic_and_by_gpu(int* data, uint64_t* flag, int* out, int n, int round) {
    if (threadIdx.x != 0) return;
    if (ep::rank() == 1) ep::net_atomic_add_u64_nbi(flag, 1, 0);  // A
    if (ep::rank() == 0) ep::red_add_relaxed_sys_u64(flag, 1);    // B
    ep::net_quiet();
}

extern "C" __global__ void put_and_signal_on_two_queue_pairs(int* data, uint64_t* flag, int* out, int n, int round) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x == 0) {
        ep::net_put_nbi(data, data + 512, 64, peer, 0);  // A
        ep::net_fence(peer, 0);
        ep::net_atomic_add_u64_nbi(flag, 1, peer, 1);  // S
        while (ep::ld_acquire_sys_u64(flag) == 0) {
        }
        out[0] = data[5];  // B
        ep::net_quiet();
    }
}

extern "C" __global__ void quiet_for_another_rank(int* data, uint64_t* flag, int* out, int n, int round) {
    const int next = (ep::rank() + 1) % ep::num_ranks();
    if (threadIdx.x == 0) {
        ep::net_put_nbi(data, data + 512, 64, next);        // A
        ep::net_quiet((ep::rank() + 2) % ep::num_ranks());  // quiet
        ep::net_atomic_add_u64_nbi(flag, 1, next);
        while (ep::ld_acquire_sys_u64(flag) == 0) {
        }
        out[0] = data[5];  // B
        ep::net_quiet();
    }
}

extern "C" __global__ void lanes_fill_while_lane_0_posts(int* data, uint64_t* flag, int* out, int n, int round) {
    const int warp = threadIdx.x / 32;
    data[512 + threadIdx.x] = 7;  // A
    if (threadIdx.x % 32 == 0) {
        ep::net_put_nbi(data + warp * 32, data + 512 + warp * 32, 128, 1 - ep::rank());  // B
        ep::net_quiet();
    }
}

extern "C" __global__ void lanes_read_while_lane_0_waits(int* data, uint64_t* flag, int* out, int n, int round) {
    const int warp = threadIdx.x / 32, from = 512 + warp * 32;
    if (threadIdx.x % 32 == 0) {
        ep::net_put_signal_nbi(data + warp * 32, data + from, 128, flag + warp, 1, 1 - ep::rank(), warp);  // A
        while (ep::ld_acquire_sys_u64(flag + warp) < 1) {                                                  // wait
        }
    }
    out[threadIdx.x] = data[threadIdx.x];  // B
}

extern "C" __global__ void get_not_complete_when_the_owner_hears(int* data, uint64_t* flag, int* out, int n,
                                                                 int round) {
    const int peer = 1 - ep::rank();
    if (threadIdx.x == 0) {
        ep::net_get_nbi(data + 512, data, 256, peer);      // A
        ep::net_atomic_add_u64_nbi(flag + 1, 1, peer, 0);  // done
        ep::net_quiet(peer, 0);
        while (ep::ld_acquire_sys_u64(flag + 1) < 1) {
        }
        data[0] = 2;  // B
    }
}

extern "C" __global__ void all_senders_into_one_slot(int* data, uint64_t* flag, int* out, int n, int round) {
    if (threadIdx.x != 0) return;
    if (ep::rank() > 0) ep::net_put_signal_nbi(data, data + 512, 256, flag + ep::rank(), 1, 0, 0);  // A B
    for (int r = 1; ep::rank() == 0 && r < ep::num_ranks(); r++)
        while (ep::ld_acquire_sys_u64(flag + r) == 0) {
        }
}

// ---- more of blocks and ranks ---------------------------------------------------------------------------------------

extern "C" __global__ void fence_before_the_barrier(int* data, uint64_t* flag, int* out, int n, int round) {
    data[64 * blockIdx.x + threadIdx.x] = 1;  // A
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd((unsigned*)flag, 1);  // count
        while (ep::ld_acquire_gpu_u32((unsigned*)flag) < gridDim.x) {
        }
    }
    __syncthreads();
    out[threadIdx.x] = data[64 * (1 - blockIdx.x) + threadIdx.x];  // B
}

extern "C" __global__ void histogram_without_atomics(int* data, uint64_t* flag, int* out, int n, int round) {
    __shared__ int bins[4];
    if (threadIdx.x < 4) bins[threadIdx.x] = 0;
    __syncthreads();
    bins[threadIdx.x % 4]++;  // A B
    __syncthreads();
    if (threadIdx.x < 4) out[threadIdx.x] = bins[threadIdx.x];
}

extern "C" __global__ void waits_in_front_of_its_own_barrier(int* data, uint64_t* flag, int* out, int n, int round) {
    if (threadIdx.x == 0)
        while (ep::ld_acquire_gpu_u64(flag) == 0) {  // wait
        }
    __syncthreads();  // barrier
    if (threadIdx.x == 32) ep::st_release_gpu_u64(flag, 1);
}

extern "C" __global__ void everyone_waits_first_with_a_limit(int* data, uint64_t* flag, int* out, int n, int round) {
    if (threadIdx.x != 0) return;
    ep::wait_until_ge(flag, 1, {ep::kPhaseUser, -1, 0});          // A
    ep::signal_add(flag, 1, (ep::rank() + 1) % ep::num_ranks());  // S
}

extern "C" __global__ void counter_that_passed_its_value(int* data, uint64_t* flag, int* out, int n, int round) {
    unsigned* const count = (unsigned*)flag;
    if (threadIdx.x < 3) atomicAdd(count, 1u);  // add
    if (threadIdx.x == 32)
        while (atomicAdd(count, 0u) != 2u) {  // A
        }
}

extern "C" __global__ void volatile_sum_under_a_bare_lock(int* data, uint64_t* flag, int* out, int n, int round) {
    volatile int* const sum = data;
    if (threadIdx.x != 0) return;
    while (atomicCAS(&lock_word, 0, 1) != 0) {  // take
    }
    *sum = *sum + 1;            // A B
    atomicExch(&lock_word, 0);  // give
}

extern "C" __global__ void misaligned_put_after_its_signal(int* data, uint64_t* flag, int* out, int n, int round) {
    if (threadIdx.x != 0) return;
    const int peer = 1 - ep::rank();
    ep::signal_add(flag, 1, peer);                                     // S
    ep::put_thread(data + 1, (const char*)(data + 32) + 1, 16, peer);  // A
    ep::wait_until_ge(flag, 1, {ep::kPhaseUser, peer, -1});
    out[0] = data[1];  // B
}

// ---- bulk copies by TMA ---------------------------------------------------------------------------------------------

extern "C" __global__ void tma_row_filled_again(int* data, uint64_t* flag, int* out, int n, int round) {
    __shared__ alignas(128) int row[32];
    if (threadIdx.x >= 32) return;
    for (int i = 0; i < 3; i++) {
        row[threadIdx.x] = i;  // B
        ep::tma_fence();
        __syncwarp();
        ep::tma_store(data + 32 * i, row, 128);  // A
        ep::tma_commit();
    }
    ep::tma_wait_written<0>();
}

extern "C" __global__ void tma_wait_always_for_phase_0(int* data, uint64_t* flag, int* out, int n, int round) {
    __shared__ alignas(128) int row[32];
    __shared__ uint64_t barrier;
    if (threadIdx.x >= 32) return;
    if (threadIdx.x == 0) ep::tma_barrier_init(&barrier);
    __syncwarp();
    for (int i = 0; i < 2; i++) {
        ep::tma_load(row, data + 32 * i, 128, &barrier);  // A
        ep::tma_arrive(&barrier, 128);
        ep::tma_wait(&barrier, 0);                     // wait
        out[32 * i + threadIdx.x] = row[threadIdx.x];  // B
        __syncwarp();
    }
}
