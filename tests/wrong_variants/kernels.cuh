// Small correct kernels, one idiom each. variants.py breaks one line of one of them at a time.
//
// All have the same arguments: `data` and `flag` are symmetric (1024 ints, 16 signals, zeroed), `out` is this rank's own,
// `n` ints are worked on, a multiple of the block. Functions are separated by lines of `//---- name`.

//---- block_sum
EP_DEVICE void block_sum(int* data, uint64_t* flag, int* out, int n) {
    __shared__ int partial[32];
    for (int round = 0; round < 2; ++round) {
        int sum = data[threadIdx.x] + round;
        for (int delta = 16; delta > 0; delta /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, delta);
        if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
        __syncthreads();  // partial is complete
        int total = 0;
        for (int w = 0; w < blockDim.x / 32; ++w) total += partial[w];
        out[round * blockDim.x + threadIdx.x] = total;
        __syncthreads();  // partial may be written again
    }
}

//---- reverse
EP_DEVICE void reverse(int* data, uint64_t* flag, int* out, int n) {
    __shared__ int tile[64];
    tile[threadIdx.x] = data[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}

//---- warp_rotate
EP_DEVICE void warp_rotate(int* data, uint64_t* flag, int* out, int n) {
    __shared__ int slots[64];
    int* mine = slots + threadIdx.x / 32 * 32;
    const int lane = threadIdx.x % 32;
    int value = data[threadIdx.x];
    for (int round = 0; round < 3; ++round) {
        mine[lane] = value;
        __syncwarp();  // written
        value = mine[(lane + 1) % 32];
        __syncwarp();  // read
    }
    out[threadIdx.x] = value;
}

//---- histogram
EP_DEVICE void histogram(int* data, uint64_t* flag, int* out, int n) {
    __shared__ int bins[8];
    if (threadIdx.x < 8) bins[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(&bins[threadIdx.x % 8], 1);
    __syncthreads();
    if (threadIdx.x < 8) out[threadIdx.x] = bins[threadIdx.x];
}

//---- exchange
EP_DEVICE void exchange(int* data, uint64_t* flag, int* out, int n) {
    const int peer = (ep::rank() + 1) % ep::num_ranks();
    for (int i = threadIdx.x; i < n; i += blockDim.x) ep::peer_ptr(data, peer)[i] = ep::rank() + i;
    __syncthreads();  // all have written
    if (threadIdx.x == 0) ep::st_release_sys_u64(ep::peer_ptr(flag, peer), 1);
    if (threadIdx.x == 0) {
        while (ep::ld_acquire_sys_u64(flag) == 0) {
        }
    }
    __syncthreads();  // all may read
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = data[i];
}

//---- exchange_fence
EP_DEVICE void exchange_fence(int* data, uint64_t* flag, int* out, int n) {
    const int peer = (ep::rank() + 1) % ep::num_ranks();
    for (int i = threadIdx.x; i < n; i += blockDim.x) ep::peer_ptr(data, peer)[i] = ep::rank() + i;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence_system();  // data before the flag
        *static_cast<volatile uint64_t*>(ep::peer_ptr(flag, peer)) = 1;
        while (*static_cast<volatile uint64_t*>(flag) == 0) {
        }
        __threadfence_system();  // the flag before the data
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = data[i];
}

//---- exchange_warp
EP_DEVICE void exchange_warp(int* data, uint64_t* flag, int* out, int n) {
    const int peer = (ep::rank() + 1) % ep::num_ranks(), warp = threadIdx.x / 32;
    ep::peer_ptr(data, peer)[threadIdx.x] = ep::rank();
    __syncwarp();  // written
    if (ep::lane_id() == 0) ep::red_add_release_sys_u64(ep::peer_ptr(flag, peer) + warp, 1);
    if (ep::lane_id() == 0) {
        while (ep::ld_acquire_sys_u64(flag + warp) == 0) {
        }
    }
    __syncwarp();  // arrived
    out[threadIdx.x] = data[threadIdx.x];
}

//---- rounds
EP_DEVICE void rounds(int* data, uint64_t* flag, int* out, int n) {
    const int peer = (ep::rank() + 1) % ep::num_ranks(),
              previous = (ep::rank() + ep::num_ranks() - 1) % ep::num_ranks();
    uint64_t* credit = flag + 1;
    int sum = 0;
    for (int round = 1; round <= 4; ++round) {
        if (threadIdx.x == 0) {
            while (ep::ld_acquire_sys_u64(credit) + 1 < round) {
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
        sum += data[threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 0) ep::st_release_sys_u64(ep::peer_ptr(credit, previous), round);
    }
    out[threadIdx.x] = sum;
}

//---- last_block
EP_DEVICE void last_block(int* data, uint64_t* flag, int* out, int n) {
    __shared__ bool last;
    data[blockIdx.x * blockDim.x + threadIdx.x] = blockIdx.x + threadIdx.x;
    __syncthreads();  // written
    if (threadIdx.x == 0) last = ep::atom_add_acq_rel_gpu_u64(flag, 1) + 1 == gridDim.x;
    __syncthreads();  // decided
    if (!last) return;
    int sum = 0;
    for (int b = 0; b < gridDim.x; ++b) sum += data[b * blockDim.x + threadIdx.x];
    out[threadIdx.x] = sum;
}

//---- broadcast
EP_DEVICE void broadcast(int* data, uint64_t* flag, int* out, int n) {
    if (blockIdx.x == 0) {
        data[threadIdx.x] = threadIdx.x;
        __syncthreads();
        if (threadIdx.x == 0) ep::st_release_gpu_u64(flag, 1);
    }
    while (ep::ld_acquire_gpu_u64(flag) == 0) {
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = data[threadIdx.x];
}

//---- count
EP_DEVICE void count(int* data, uint64_t* flag, int* out, int n) {
    uint64_t* counter = ep::peer_ptr(flag, 0);
    ep::red_add_relaxed_sys_u64(counter, 1);
}

//---- net_exchange
EP_DEVICE void net_exchange(int* data, uint64_t* flag, int* out, int n) {
    const int peer = (ep::rank() + 1) % ep::num_ranks();
    int* source = data + 512;
    for (int i = threadIdx.x; i < n; i += blockDim.x) source[i] = ep::rank() + i;
    __syncthreads();  // the source is ready
    if (threadIdx.x == 0) {
        ep::net_put_nbi(data, source, n * sizeof(int), peer, 0);
        ep::net_quiet(peer, 0);  // data before signal
        ep::net_atomic_add_u64_nbi(flag, 1, peer, 0);
        while (ep::ld_acquire_sys_u64(flag) == 0) {
        }
    }
    __syncthreads();  // arrived
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = data[i];
    source[threadIdx.x] = -1;
}

//---- net_fence_exchange
EP_DEVICE void net_fence_exchange(int* data, uint64_t* flag, int* out, int n) {
    const int peer = (ep::rank() + 1) % ep::num_ranks();
    data[512 + threadIdx.x] = ep::rank();
    __syncthreads();
    if (threadIdx.x == 0) {
        ep::net_put_nbi(data, data + 512, blockDim.x * sizeof(int), peer, 1);
        ep::net_fence(peer);  // data before signal
        ep::net_atomic_add_u64_nbi(flag, 1, peer, 1);
        while (ep::ld_acquire_sys_u64(flag) == 0) {
        }
    }
    __syncthreads();
    out[threadIdx.x] = data[threadIdx.x];
}

//---- net_put_signal
EP_DEVICE void net_put_signal(int* data, uint64_t* flag, int* out, int n) {
    const int peer = (ep::rank() + 1) % ep::num_ranks();
    data[512 + threadIdx.x] = ep::rank();
    __syncthreads();
    if (threadIdx.x == 0) {
        ep::net_put_signal_nbi(data, data + 512, 128, flag, 1, peer, 0);
        ep::net_put_signal_nbi(data + 32, data + 544, 128, flag, 1, peer, 0);
        while (ep::ld_acquire_sys_u64(flag) < 2) {
        }
    }
    __syncthreads();
    out[threadIdx.x] = data[threadIdx.x];
}

//---- net_rounds
EP_DEVICE void net_rounds(int* data, uint64_t* flag, int* out, int n) {
    const int peer = (ep::rank() + 1) % ep::num_ranks(),
              previous = (ep::rank() + ep::num_ranks() - 1) % ep::num_ranks();
    int sum = 0;
    for (int round = 1; round <= 3; ++round) {
        data[512 + threadIdx.x] = round;
        __syncthreads();
        if (threadIdx.x == 0) {
            while (ep::ld_acquire_sys_u64(flag + 1) + 1 < round) {
            }
            ep::net_put_signal_nbi(data, data + 512, blockDim.x * sizeof(int), flag, 1, peer, 0);
            while (ep::ld_acquire_sys_u64(flag) < round) {
            }
        }
        __syncthreads();
        sum += data[threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 0) {
            ep::net_atomic_add_u64_nbi(flag + 1, 1, previous, 1);
            ep::net_quiet();  // the source may be written again
        }
        __syncthreads();
    }
    out[threadIdx.x] = sum;
}

//---- exchange_ref
EP_DEVICE void exchange_ref(int* data, uint64_t* flag, int* out, int n) {
    const int peer = (ep::rank() + 1) % ep::num_ranks();
    for (int i = threadIdx.x; i < n; i += blockDim.x) ep::peer_ptr(data, peer)[i] = ep::rank() + i;
    __syncthreads();
    if (threadIdx.x == 0) {
        cuda::atomic_ref<uint64_t, cuda::thread_scope_system> theirs(*ep::peer_ptr(flag, peer));
        theirs.store(1, cuda::memory_order_release);
        cuda::atomic_ref<uint64_t, cuda::thread_scope_system> mine(*flag);
        while (mine.load(cuda::memory_order_acquire) == 0) {
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = data[i];
}

//---- write_vectors
EP_DEVICE void write_vectors(int* data, uint64_t* flag, int* out, int n) {
    int* theirs = ep::peer_ptr(data, (ep::rank() + 1) % ep::num_ranks());
    reinterpret_cast<int4*>(theirs + 0)[threadIdx.x] = make_int4(1, 2, 3, 4);
    theirs[960 + threadIdx.x] = 5;
}
