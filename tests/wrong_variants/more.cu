// More mistakes, each in a kernel of its own; test_checker_more.py says what the checker must call them. All have the
// arguments of kernels.cuh, and `sums` of 64 floats.
#include <ep/net.cuh>
#include <ep/signal.cuh>

#define KERNEL(name) extern "C" __global__ void name(int* data, uint64_t* flag, int* out, float* sums, int n)

KERNEL(credit_before_the_others_read) {
    const int peer = 1 - ep::rank();
    for (uint64_t round = 1; round <= 4; ++round) {
        if (threadIdx.x == 0) {
            while (ep::ld_acquire_sys_u64(flag + 1) + 1 < round) {
            }
        }
        __syncthreads();
        ep::peer_ptr(data, peer)[threadIdx.x] = round;
        __syncthreads();
        if (threadIdx.x == 0) {
            ep::st_release_sys_u64(ep::peer_ptr(flag, peer), round);
            while (ep::ld_acquire_sys_u64(flag) < round) {
            }
        }
        __syncthreads();
        out[threadIdx.x] += data[threadIdx.x];  // read
        if (threadIdx.x == 0) ep::st_release_sys_u64(ep::peer_ptr(flag + 1, peer), round);
    }
}

// Right: what comes from the peer is the credit too, two slots are enough.
KERNEL(each_other_is_the_credit) {
    const int peer = 1 - ep::rank();
    for (uint64_t round = 0; round < 4; ++round) {
        int *source = data + 512 + (round % 2) * 64, *slot = data + (round % 2) * 64;
        source[threadIdx.x] = round;
        __syncthreads();
        if (threadIdx.x == 0) {
            ep::net_put_signal_nbi(slot, source, 256, flag + round % 2, round + 1, peer, 0, ep::NetSignal::kSet);
            while (ep::ld_acquire_sys_u64(flag + round % 2) < round + 1) {
            }
        }
        __syncthreads();
        out[threadIdx.x] += slot[threadIdx.x];
        __syncthreads();
    }
}

KERNEL(lanes_fill_while_lane_0_posts) {
    const int peer = 1 - ep::rank(), warp = threadIdx.x / 32;
    data[512 + threadIdx.x] = 7;  // fill
    if (ep::lane_id() == 0) {
        ep::net_put_signal_nbi(data + warp * 32, data + 512 + warp * 32, 128, flag + warp, 1, peer, 0);  // post
        while (ep::ld_acquire_sys_u64(flag + warp) < 1) {
        }
    }
    __syncwarp();
    out[threadIdx.x] = data[threadIdx.x];
}

KERNEL(lanes_read_while_lane_0_waits) {
    const int peer = 1 - ep::rank(), warp = threadIdx.x / 32;
    data[512 + threadIdx.x] = 7;
    __syncwarp();
    if (ep::lane_id() == 0) {
        ep::net_put_signal_nbi(data + warp * 32, data + 512 + warp * 32, 128, flag + warp, 1, peer, warp);
        while (ep::ld_acquire_sys_u64(flag + warp) < 1) {  // wait
        }
    }
    out[threadIdx.x] = data[threadIdx.x];  // read
}

KERNEL(blocks_count_without_fence) {
    data[blockIdx.x * 64 + threadIdx.x] = 1;
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(reinterpret_cast<unsigned long long*>(flag), 1ull);  // signal
        while (*reinterpret_cast<volatile uint64_t*>(flag) < gridDim.x) {
        }
    }
    __syncthreads();
    out[blockIdx.x * 64 + threadIdx.x] = data[(gridDim.x - 1 - blockIdx.x) * 64 + threadIdx.x];
}

KERNEL(barrier_in_loops_of_different_length) {
    __shared__ int tile[64];
    tile[threadIdx.x] = threadIdx.x;
    for (unsigned i = 0; i < 1 + threadIdx.x / 32; ++i) {
        __syncthreads();  // inner
        tile[threadIdx.x] += 1;
    }
    __syncthreads();  // outer
    out[threadIdx.x] = tile[63 - threadIdx.x];
}

KERNEL(get_is_not_complete_when_the_owner_hears) {
    const int peer = 1 - ep::rank();
    data[threadIdx.x] = 1;
    __syncthreads();
    if (threadIdx.x == 0) {
        ep::net_atomic_add_u64_nbi(flag, 1, peer, 0);
        while (ep::ld_acquire_sys_u64(flag) < 1) {
        }
        ep::net_get_nbi(data + 512, data, 256, peer, 0);   // get
        ep::net_atomic_add_u64_nbi(flag + 1, 1, peer, 0);  // done
        ep::net_quiet(peer, 0);
        while (ep::ld_acquire_sys_u64(flag + 1) < 1) {
        }
    }
    __syncthreads();
    data[threadIdx.x] = 2;
    out[threadIdx.x] = data[512 + threadIdx.x];
}

KERNEL(all_wait_before_they_signal) {
    const int next = (ep::rank() + 1) % ep::num_ranks();
    if (threadIdx.x == 0) {
        while (ep::ld_acquire_sys_u64(flag) == 0) {
        }
        ep::st_release_sys_u64(ep::peer_ptr(flag, next), 1);
    }
}

KERNEL(floats_in_any_order) { atomicAdd(sums, 1.0f / (1 + threadIdx.x + 64 * ep::rank())); }

KERNEL(all_senders_into_one_slot) {
    data[512 + threadIdx.x] = ep::rank();
    __syncthreads();
    if (threadIdx.x == 0) {
        ep::net_put_signal_nbi(data, data + 512, 256, flag + ep::rank(), 1, 0, 0);
        for (int r = 0; ep::rank() == 0 && r < ep::num_ranks(); ++r) {
            while (ep::ld_acquire_sys_u64(flag + r) == 0) {
            }
        }
    }
    __syncthreads();
    if (ep::rank() == 0) out[threadIdx.x] = data[threadIdx.x];
}

KERNEL(sent_on_before_it_came) {
    const int next = (ep::rank() + 1) % ep::num_ranks();
    if (ep::rank() == 0) data[threadIdx.x] = 5;
    __syncthreads();
    if (threadIdx.x == 0 && ep::rank() < 2) ep::net_put_signal_nbi(data, data, 256, flag, 1, next, 0);  // post
    if (threadIdx.x == 0 && ep::rank() > 0) {
        while (ep::ld_acquire_sys_u64(flag) == 0) {
        }
    }
    __syncthreads();
    out[threadIdx.x] = data[threadIdx.x];
}

KERNEL(last_word_as_signal) {
    const int peer = 1 - ep::rank();
    data[512 + threadIdx.x] = 9;
    __syncthreads();
    if (threadIdx.x == 0) {
        ep::net_put_nbi(data, data + 512, 256, peer, 0);
        while (*reinterpret_cast<volatile int*>(data + 63) == 0) {
        }
    }
    __syncthreads();
    out[threadIdx.x] = data[threadIdx.x];
}

KERNEL(vector_from_an_odd_place) {
    const int4 v = *reinterpret_cast<const int4*>(ep::peer_ptr(data, 1 - ep::rank()) + 1 + threadIdx.x * 4);  // read
    out[threadIdx.x] = v.x;
}

KERNEL(put_beyond_the_array) {
    if (threadIdx.x == 0) ep::net_put_nbi(data + 961, data, 256, 1 - ep::rank(), 0);  // post
}

KERNEL(put_to_a_rank_too_far) {
    if (threadIdx.x == 0) ep::net_put_nbi(data, data, 256, ep::rank() + 1, 0);  // post
}
