// The guide's debugging kernels: is the shim initialised, which peers does it reach directly, what does a put cost?
// `ep-lib bench put` runs the last one, and the others before it when asked: ep-lib bench put --state.
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

// The same for the host, a thread a rank: found[peer] becomes 1 if loads and stores reach it, else 0.
extern "C" __global__ void find_p2p(char* buffer, int* found) {
    const int peer = threadIdx.x;
    if (blockIdx.x != 0 || peer >= ep::num_ranks()) return;
    found[peer] = nvshmemi_get_p2p_ptr(reinterpret_cast<uint64_t>(buffer), ep::rank(), peer) != 0;
}

namespace {

// One warp: a put to warm up, then `puts` of them between two looks at the clock, with one quiet at the end or one
// after every put. Lane 0 prints cycles per put and stores the totals: cycles of this SM, and nanoseconds. On the
// emulator both are virtual: they count steps, not time (ep_lib.simulate models nanoseconds).
template <bool kQuietAfterEach>
EP_DEVICE void time_puts(char* remote, const char* local, size_t bytes, int peer, int puts, int64_t* totals) {
    if (blockIdx.x != 0 || threadIdx.x >= ep::kWarpSize) return;
    const int lane = ep::lane_id();
    const uint64_t to = reinterpret_cast<uint64_t>(remote), from = reinterpret_cast<uint64_t>(local);
    nvshmemi_ibgda_put_nbi_warp(to, from, bytes, peer, 0, lane, 0);
    if (lane == 0) nvshmemi_ibgda_quiet(peer, 0);
    __syncwarp();

    const int64_t begin = clock64(), begin_ns = ep::globaltimer_ns();
    for (int i = 0; i < puts; ++i) {
        nvshmemi_ibgda_put_nbi_warp<true>(to, from, bytes, peer, 0, lane, i);
        if (kQuietAfterEach && lane == 0) nvshmemi_ibgda_quiet(peer, 0);
    }
    if (lane != 0) return;
    if (!kQuietAfterEach) nvshmemi_ibgda_quiet(peer, 0);
    totals[0] = clock64() - begin;
    totals[1] = ep::globaltimer_ns() - begin_ns;
    printf("%llu bytes to rank %d: %.1f cycles a put, %s\n", static_cast<unsigned long long>(bytes), peer,
           static_cast<double>(totals[0]) / puts, kQuietAfterEach ? "a quiet after each" : "one quiet");
}

}  // namespace

// As the guide measures: all puts, then one quiet.
extern "C" __global__ void benchmark_put(char* remote, const char* local, size_t bytes, int peer, int puts,
                                         int64_t* totals) {
    time_puts<false>(remote, local, bytes, peer, puts, totals);
}

// The guide advises against this: every put waits for its own round trip.
extern "C" __global__ void benchmark_put_quiet_each(char* remote, const char* local, size_t bytes, int peer, int puts,
                                                    int64_t* totals) {
    time_puts<true>(remote, local, bytes, peer, puts, totals);
}

// Messages there and back between two ranks: data with its signal, and the answer when the signal is seen. One thread of
// each; `first` begins. Signals count on from `base`, so that no reset is needed. Totals as above, of all rounds.
extern "C" __global__ void ping_pong(char* inbox, const char* outbox, size_t bytes, uint64_t* signal, uint64_t base,
                                     int rounds, int peer, int first, int64_t* totals) {
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    const int64_t begin = clock64(), begin_ns = ep::globaltimer_ns();
    for (uint64_t round = base + 1; round <= base + rounds; ++round) {
        for (int turn = 0; turn < 2; ++turn) {
            if ((turn == 0) == (first != 0)) {
                ep::net_put_signal_nbi(inbox, outbox, bytes, signal, round, peer, 0, ep::NetSignal::kSet);
            } else if (!ep::wait_until_ge(signal, round, {ep::kPhaseSignal, peer, -1})) {
                return;
            }
        }
    }
    ep::net_quiet(peer);
    totals[0] = clock64() - begin;
    totals[1] = ep::globaltimer_ns() - begin_ns;
}
