// The guide's debugging kernels: is the shim initialised, which peers does it reach directly, what does a put cost?
#include <ep/ibgda_shim.cuh>

#include <cstdio>

// One thread prints what init_efa_device_state has set.
extern "C" __global__ void print_ibgda_state() {
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    const auto* state = ibgda_get_state();
    printf("rank %d: num_rc_per_pe=%d num_devices_initialized=%d\n", ep::rank(), state->num_rc_per_pe,
           state->num_devices_initialized);
}

// One thread prints, for every rank, whether loads and stores reach it. `buffer` is any symmetric array.
extern "C" __global__ void print_p2p(char* buffer) {
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    for (int peer = 0; peer < ep::num_ranks(); ++peer) {
        const bool direct = nvshmemi_get_p2p_ptr(reinterpret_cast<uint64_t>(buffer), ep::rank(), peer) != 0;
        printf("rank %d -> rank %d: %s\n", ep::rank(), peer, direct ? "P2P" : "RDMA");
    }
}

// One warp: a put to warm up, then `puts` of them and one quiet between two looks at the clock. Lane 0 prints cycles a
// put and stores the total. On the emulator cycles are virtual: they count steps, not time.
extern "C" __global__ void benchmark_put(char* remote, const char* local, size_t bytes, int peer, int puts,
                                         int64_t* total_cycles) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    const int lane = ep::lane_id();
    const uint64_t to = reinterpret_cast<uint64_t>(remote), from = reinterpret_cast<uint64_t>(local);
    nvshmemi_ibgda_put_nbi_warp(to, from, bytes, peer, 0, lane, 0);
    if (lane == 0) nvshmemi_ibgda_quiet(peer, 0);
    __syncwarp();

    const int64_t begin = clock64();
    for (int i = 0; i < puts; ++i) nvshmemi_ibgda_put_nbi_warp<true>(to, from, bytes, peer, 0, lane, i);
    if (lane != 0) return;
    nvshmemi_ibgda_quiet(peer, 0);
    *total_cycles = clock64() - begin;
    printf("%llu bytes to rank %d: %.1f cycles a put\n", static_cast<unsigned long long>(bytes), peer,
           static_cast<double>(*total_cycles) / puts);
}
