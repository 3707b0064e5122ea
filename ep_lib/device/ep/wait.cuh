// Waiting for a peer, with a limit.
//
// A wait that can last for ever turns every bug and every crashed peer into a hung GPU. These waits give up after
// DeviceState.timeout_ns, record who waited for whom, where, what was seen and what was expected, and return false; the
// kernel then returns. It does not trap: a trap destroys the CUDA context and all data in it. The host raises PeerTimeout
// at the next synchronize(), or when it looks at the record's copy in its own memory, which waits for nothing.
//
//     if (!ep::wait_until_ge(flag, round, {ep::kPhaseSignal, peer, slot})) return;
//
// One thread waits and tells its warp or block (wait_until_ge_warp, wait_until_ge_block), or every thread waits itself.
#pragma once
#include <ep/memory.cuh>
#include <ep/peer.cuh>

namespace ep {

// The subject of a wait. Only read when the wait fails.
struct WaitInfo {
    Phase phase;
    int peer;      // the rank we wait for; -1: no particular one
    int64_t slot;  // the number of the flag, buffer or message; -1: there is only one
};

// Records a fault. The first one since the host last looked is kept; later ones are usually its consequences.
EP_DEVICE void record_fault(FaultCode code, const WaitInfo& info, uint64_t seen, uint64_t expected) {
    FaultRecord* record = detail::fault_record();
    uint32_t* const record_code = reinterpret_cast<uint32_t*>(&record->code);
    if (atom_cas_relaxed_sys_u32(record_code, kFaultNone, static_cast<uint32_t>(code)) != kFaultNone) return;
    record->rank = rank();  // the host reads these after the kernel has ended: no further order is needed
    record->peer = info.peer;
    record->phase = info.phase;
    record->slot = info.slot;
    record->seen = seen;
    record->expected = expected;
    detail::show_fault(record);
}

// True once this rank has a fault that the host has not collected yet.
EP_DEVICE bool has_fault() {
    return ld_relaxed_gpu_u32(reinterpret_cast<const uint32_t*>(&detail::fault_record()->code)) != kFaultNone;
}

// Calls `done` until it returns true, for code that waits for one of several things. After the limit it calls `gave_up`,
// which records the fault, and returns false. If this rank already has another fault, it returns false without calling
// `gave_up`. A wait for a `peer` that is known to be gone ends at once; a patient one goes on even if waits for other
// ranks cannot succeed any more.
template <typename Done, typename GaveUp>
EP_DEVICE bool poll_until(Done done, GaveUp gave_up, int peer = -1, bool is_patient = false) {
    uint64_t start = 0;
    for (;;) {
        const int polls = polls_per_clock();
#pragma unroll 1
        for (int poll = 0; poll < polls; ++poll) {
            if (done()) return true;
        }
        if (has_fault()) return false;  // something else failed: return now instead of waiting out the limit
        const uint64_t now = detail::limit_clock_ns();
        if (start == 0) start = now;
        if (now - start >= detail::wait_limit_ns(peer, is_patient)) {
            gave_up();
            return false;
        }
    }
}

// The same for a `done` that only reads memory, and keeps only the values read. A read that finds nothing new, even the
// first one, then has no effect: an exhaustive check makes no schedules for it alone.
template <typename Done, typename GaveUp>
EP_DEVICE bool look_until(Done done, GaveUp gave_up, int peer = -1, bool is_patient = false) {
    only_looks(true);
    const bool is_done = poll_until(done, gave_up, peer, is_patient);
    only_looks(false);
    return is_done;
}

namespace detail {

EP_DEVICE uint64_t load_flag(const uint64_t* flag) { return ld_acquire_sys_u64(flag); }
EP_DEVICE uint64_t load_flag(const uint32_t* flag) { return ld_acquire_sys_u32(flag); }

template <typename Flag, typename Condition>
EP_DEVICE bool wait_until(const Flag* flag, Condition done, uint64_t expected, const WaitInfo& info) {
    uint64_t seen;
    return look_until(
        [&] {
            seen = load_flag(flag);
            return done(seen);
        },
        [&] { record_fault(kFaultTimeout, info, seen, expected); }, info.peer);
}

}  // namespace detail

// Waits until *flag >= expected; the acquire makes everything visible that came before the signal's release.
// False after the limit, or if this rank has another fault already: return from the kernel then.
EP_DEVICE bool wait_until_ge(const uint64_t* flag, uint64_t expected, const WaitInfo& info) {
    return detail::wait_until(flag, [expected](uint64_t seen) { return seen >= expected; }, expected, info);
}

// The same for a 32-bit counter, as IBGDA's atomics have them.
EP_DEVICE bool wait_until_ge_u32(const uint32_t* flag, uint32_t expected, const WaitInfo& info) {
    return detail::wait_until(flag, [expected](uint64_t seen) { return seen >= expected; }, expected, info);
}

// The same for *flag == expected, for flags that carry a value and are reset (a count, an epoch).
EP_DEVICE bool wait_until_eq(const uint64_t* flag, uint64_t expected, const WaitInfo& info) {
    return detail::wait_until(flag, [expected](uint64_t seen) { return seen == expected; }, expected, info);
}

// Waits until *flag != 0 and passes on the value, for flags that carry data (a count + 1, say).
EP_DEVICE bool wait_until_nonzero(const uint64_t* flag, uint64_t* value, const WaitInfo& info) {
    const bool ok = detail::wait_until(flag, [](uint64_t seen) { return seen != 0; }, 1, info);
    *value = ok ? ld_acquire_sys_u64(flag) : 0;
    return ok;
}

// All 32 lanes call. Lane 0 polls and all learn the result; __syncwarp passes on what lane 0 acquired (a shuffle alone
// hands over a value, but orders no memory).
EP_DEVICE bool wait_until_ge_warp(const uint64_t* flag, uint64_t expected, const WaitInfo& info) {
    int ok = 0;
    if (lane_id() == 0) ok = wait_until_ge(flag, expected, info);
    ok = __shfl_sync(kFullWarp, ok, 0);
    __syncwarp();
    return ok != 0;
}

// For a warp that has two things to do and starts with whichever is possible first: waits until *first >=
// first_expected (bit 0 of the result) or *second >= second_expected (bit 1), or both. 0 after the limit; `info`
// describes the wait for *first.
EP_DEVICE int wait_until_either_ge_warp(const uint64_t* first, uint64_t first_expected, const uint64_t* second,
                                        uint64_t second_expected, const WaitInfo& info) {
    int ready = 0;
    if (lane_id() == 0) {
        const auto look = [&](uint64_t seen) {
            ready = (seen >= first_expected ? 1 : 0) | (detail::load_flag(second) >= second_expected ? 2 : 0);
            return ready != 0;
        };
        detail::wait_until(first, look, first_expected, info);
    }
    ready = __shfl_sync(kFullWarp, ready, 0);
    __syncwarp();
    return ready;
}

// All threads of the block call. Thread 0 polls; the barrier hands out the result and what it acquired.
EP_DEVICE bool wait_until_ge_block(const uint64_t* flag, uint64_t expected, const WaitInfo& info) {
    int failed = 0;
    if (thread_in_block() == 0) failed = !wait_until_ge(flag, expected, info);
    return __syncthreads_or(failed) == 0;
}

}  // namespace ep
