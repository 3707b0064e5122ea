// The names of what can be missing, as reports have them.
#pragma once
#include <stddef.h>

#include "machine.hpp"

namespace epemu {

inline constexpr const char* kSyncwarp = "missing __syncwarp";
inline constexpr const char* kSyncwarpAmongMany = "missing __syncwarp (__syncthreads if other warps take part)";
inline constexpr const char* kSyncthreads = "missing __syncthreads";
inline constexpr const char* kSyncwarpBeforeCredit =
    "missing __syncwarp between the read and its credit, which comes after it";
inline constexpr const char* kSyncthreadsBeforeCredit =
    "missing __syncthreads between the read and its credit, which comes after it";
inline constexpr const char* kCreditOfMate =
    "another thread of the reader's block has given the credit; it covers the reader's work only after a barrier";
inline constexpr const char* kEachSignal =
    "wait (acquire) for the signal of each put: another one does not say that this one has arrived";
inline constexpr const char* kReleaseAcquire = "release/acquire or a fence";
inline constexpr const char* kWait = "wait for the writer's signal (release/acquire) before the read";
inline constexpr const char* kWaitFirst =
    "wait (acquire) before the read, then __syncwarp or __syncthreads for the other threads";
inline constexpr const char* kCredit = "credit before reuse";
inline constexpr const char* kQuiet = "quiet, fence or put_signal between data and signal";
inline constexpr const char* kDataFirst = "data before its signal, and a quiet, fence or release between them";
inline constexpr const char* kAtomicSignal =
    "an atomic access to the signal (release to set it, acquire to wait for it) on both sides";
inline constexpr const char* kReused = "slot reused";
inline constexpr const char* kOvertakes = "signal overtakes data";

inline const char* warp_barrier(size_t threads) { return threads > kWarpSize ? kSyncwarpAmongMany : kSyncwarp; }

}  // namespace epemu
