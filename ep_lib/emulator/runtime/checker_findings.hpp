// Names of missing synchronisation, as reports show them.
#pragma once
#include <stddef.h>

#include "machine.hpp"

namespace epemu {

constexpr const char* kSyncwarp = "missing __syncwarp";
constexpr const char* kSyncwarpAmongMany = "missing __syncwarp (__syncthreads if other warps take part)";
constexpr const char* kSyncthreads = "missing __syncthreads";
constexpr const char* kGridBarrier = "a barrier of the grid (grid.sync()) between the two";
constexpr const char* kDivergentBarrier = "divergent barrier: one __syncthreads that all threads of the block reach";
constexpr const char* kSyncwarpBeforeCredit =
    "missing __syncwarp between the read and its credit, which must follow it";
constexpr const char* kSyncthreadsBeforeCredit =
    "missing __syncthreads between the read and its credit, which must follow it";
constexpr const char* kCreditOfSibling =
    "another thread of the reader's block has given the credit; it covers the reader's work only after a barrier";
constexpr const char* kEachSignal =
    "wait (acquire) for the signal of each put: another one does not say that this one has arrived";
constexpr const char* kReleaseAcquire = "release/acquire or a fence";
constexpr const char* kWait = "wait for the writer's signal (release/acquire) before the read";
constexpr const char* kWaitFirst =
    "wait (acquire) before the read, then __syncwarp or __syncthreads for the other threads";
constexpr const char* kWaitRound =
    "wait for this round's signal: for a value that grows with each round (a count: round x signals a round)";
constexpr const char* kCredit = "credit before reuse";
constexpr const char* kOneStore = "one store for both words, as one load reads them: nothing keeps two stores together";
constexpr const char* kQuiet = "quiet, fence or put_signal between data and signal";
constexpr const char* kDataFirst = "data before its signal, and a quiet, fence or release between them";
constexpr const char* kAtomicSignal =
    "an atomic access to the signal (release to set it, acquire to wait for it) on both sides";
constexpr const char* kWaitWritten =
    "tma_wait_written between a bulk store and the signal that tells of it (it follows the wait)";
constexpr const char* kCopyWait = "__pipeline_wait_prior(0)";
constexpr const char* kStoresAndLooks =
    "each of the two looks at a word that the other one stores, and both are in what that is to keep for one";
constexpr const char* kOneAtomicLock =
    "a lock that one atomic takes (atom_cas_acquire from 0 to 1, until it gives 0) and st_release of 0 gives back; or "
    "all "
    "rules of Dekker, Peterson or the bakery, with __threadfence_system (fence.sc) between each store and its looks";
constexpr const char* kMeetAgain =
    "a second barrier by number at the end of each round, which no warp passes before the reader has read";
constexpr const char* kLanesThatCome =
    "the operation outside of the branch, or a mask of the lanes that come to it (of __ballot_sync before the branch)";
constexpr const char* kReused = "slot reused";
constexpr const char* kOvertakes = "signal overtakes data";

constexpr const char* kFences[] = {"__threadfence_block()", "__threadfence()", "__threadfence_system()"};
constexpr const char* kScopes[] = {"block", "gpu", "sys"};
constexpr const char* kReach[] = {"threads of its own block only", "threads of its own GPU only", "everyone"};
constexpr const char* kOtherIs[] = {"in the same block", "in another block", "on another rank"};

inline const char* warp_barrier(size_t threads) { return threads > kWarpSize ? kSyncwarpAmongMany : kSyncwarp; }

}  // namespace epemu
