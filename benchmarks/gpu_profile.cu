// Notebook 06's dispatch, rung 4, with a clock in it: 06_dispatch.cu itself, whose calls are noted (gpu_profile.py).
//
// Lane 0 of each warp notes when its warp begins a token, when it has sent its last one, and in the last block when it
// has signalled and when it has waited for the others. A store is noted when it has left the thread, not when it arrives.
#include <ep/tma.cuh>
#include <moe/common/dispatch.cuh>
#include <moe/common/layout.cuh>
#include <moe/common/notify.cuh>

constexpr int kMostWarps = 64, kMostMarks = 64;
enum Mark : int { kToken, kSent, kSignalled, kWaited };

// For each warp how many marks there are, and these: nanoseconds * 4 + which.
__device__ unsigned long long profile[kMostWarps][1 + kMostMarks];

EP_DEVICE void mark(Mark what) {
    if (ep::lane_id() != 0) return;
    unsigned long long* const mine = profile[static_cast<int>(blockIdx.x) * ep::warps_in_block() + ep::warp_id()];
    if (mine[0] < kMostMarks) mine[++mine[0]] = ep::globaltimer_ns() * 4 + what;
}

template <typename T>
EP_DEVICE T marked(T result, Mark what) {
    mark(what);
    return result;
}

EP_DEVICE void signal_all_and_mark(const ep::Signals& signals, int kind, uint64_t tag = 0) {
    ep::signal_all(signals, kind, tag);
    mark(kSignalled);
}

#define find_row_ptrs(...) (mark(kToken), ep::find_row_ptrs(__VA_ARGS__))
#define is_last_block(...) (mark(kSent), ep::is_last_block(__VA_ARGS__))
#define signal_all(...) signal_all_and_mark(__VA_ARGS__)
#define wait_for_all(...) marked(ep::wait_for_all(__VA_ARGS__), kWaited)
#include "../tutorial_kernels/06_dispatch.cu"
