// === right_by_hand
// No helper of put.cuh, signal.cuh or wait.cuh: loops of bytes, a fence and a relaxed add, raw polling.
// EXERCISE-BEGIN 1
char* to = peer_ptr(static_cast<char*>(target), peer);
for (size_t i = 0; i < bytes; ++i) to[i] = static_cast<const char*>(source)[i];
fence_sys();
atom_add_relaxed_sys_u64(peer_ptr(signal, peer), increment);
// EXERCISE-BEGIN 2
while (ld_acquire_sys_u64(signal) < expected) {
}
return true;
// EXERCISE-BEGIN 3
char* to = peer_ptr(static_cast<char*>(target), peer);
for (size_t i = lane_id(); i < bytes; i += kWarpSize) to[i] = static_cast<const char*>(source)[i];
__syncwarp();
fence_sys();
if (lane_id() == kWarpSize - 1) atom_add_relaxed_sys_u64(peer_ptr(signal, peer), increment);
// EXERCISE-BEGIN 4
for (int i = 0; i < count; ++i) {
    char* to = peer_ptr(static_cast<char*>(writes[i].target), peer);
    const char* from = static_cast<const char*>(writes[i].source);
    for (size_t k = lane_id(); k < writes[i].bytes; k += kWarpSize) to[k] = from[k];
}
__syncwarp();
if (lane_id() == 0) red_add_release_sys_u64(peer_ptr(signal, peer), increment);
// EXERCISE-BEGIN 5a
char* slot = pipe.slots + round % pipe.num_slots * pipe.slot_bytes;
while (ld_acquire_sys_u64(pipe.credits) + pipe.num_slots <= round) {
}
char* to = peer_ptr(slot, peer);
for (size_t i = lane_id(); i < pipe.slot_bytes; i += kWarpSize) to[i] = static_cast<const char*>(source)[i];
__syncwarp();
if (lane_id() == 0) red_add_release_sys_u64(peer_ptr(pipe.arrived, peer), 1);
return true;
// EXERCISE-BEGIN 5b
const char* slot = pipe.slots + round % pipe.num_slots * pipe.slot_bytes;
while (ld_acquire_sys_u64(pipe.arrived) <= round) {
}
for (size_t i = lane_id(); i < pipe.slot_bytes; i += kWarpSize) static_cast<char*>(target)[i] = slot[i];
__syncwarp();
if (lane_id() == 0) red_add_release_sys_u64(peer_ptr(pipe.credits, peer), 1);
return true;
// === right_one_way_or_another
// Odd but right: every function built on the one for many writes; each lane waits for itself; the last lane signals.
// EXERCISE-BEGIN top
#include <ep/peer.cuh>
#include <ep/signal.cuh>
#include <ep/wait.cuh>
namespace ep {
EP_DEVICE void copy_by_rows(char* to, const char* from, size_t bytes) {
    for (size_t row = 0; row < bytes; row += kWarpSize)
        if (row + lane_id() < bytes) to[row + lane_id()] = from[row + lane_id()];
}
}  // namespace ep
// EXERCISE-BEGIN 1
for (size_t left = bytes; left > 0; --left)
    peer_ptr(static_cast<char*>(target), peer)[left - 1] = static_cast<const char*>(source)[left - 1];
__threadfence_system();
atomicAdd_system(reinterpret_cast<unsigned long long*>(peer_ptr(signal, peer)), increment);
// EXERCISE-BEGIN 2
for (;;) {
    const uint64_t seen = *reinterpret_cast<const volatile uint64_t*>(signal);
    __threadfence_system();
    if (seen >= expected) return true;
}
// EXERCISE-BEGIN 3
copy_by_rows(peer_ptr(static_cast<char*>(target), peer), static_cast<const char*>(source), bytes);
const int votes = __popc(__ballot_sync(kFullWarp, 1));
__syncwarp();
if (lane_id() == votes - 1) signal_add(signal, increment, peer);
// EXERCISE-BEGIN 4
for (int i = count - 1; i >= 0; --i) {
    copy_by_rows(peer_ptr(static_cast<char*>(writes[i].target), peer), static_cast<const char*>(writes[i].source),
                 writes[i].bytes);
    __syncwarp();
}
write_and_signal_warp(nullptr, nullptr, 0, signal, increment, peer);
// EXERCISE-BEGIN 5a
const uint64_t turn = round / pipe.num_slots, index = round % pipe.num_slots;
// The credits of all rounds before the one that was in this slot last, and of that one.
const uint64_t needed = turn == 0 ? 0 : (turn - 1) * pipe.num_slots + index + 1;
if (!wait_for_signal(pipe.credits, needed, peer)) return false;
__syncwarp();
const Write write = {pipe.slots + index * pipe.slot_bytes, source, pipe.slot_bytes};
write_many_and_signal_warp(&write, 1, pipe.arrived, 1, peer);
return true;
// EXERCISE-BEGIN 5b
if (!wait_for_signal(pipe.arrived, round + 1, peer)) return false;
copy_by_rows(static_cast<char*>(target), pipe.slots + round % pipe.num_slots * pipe.slot_bytes, pipe.slot_bytes);
write_and_signal_warp(nullptr, nullptr, 0, pipe.credits, 1, peer);
return true;
// === wrong_signal_first: 1: had not arrived: which comes first
// EXERCISE-BEGIN 1: The signal overtakes the data.
signal_add(signal, increment, peer);
put_thread(target, source, bytes, peer);
// === wrong_no_syncwarp: 3, 4, 5: is there a __syncwarp()
// EXERCISE-BEGIN 3: Lane 0 signals when its own part is written, not when the warp's is.
-    __syncwarp();  // lane 0's release covers the other lanes' stores only if they come before it
// EXERCISE-BEGIN 4
-    __syncwarp();  // once, for all writes
// === wrong_sets_the_signal: 1: instead of growing by it
// EXERCISE-BEGIN 1: Two rounds, or two senders, and the count is wrong.
put_thread(target, source, bytes, peer);
signal_set(signal, increment, peer);
// === wrong_size: 3, 5: bytes of the message are wrong
// EXERCISE-BEGIN 3: Copies whole words only, and forgets the bytes that are left over.
char* to = peer_ptr(static_cast<char*>(target), peer);
const char* from = static_cast<const char*>(source);
for (size_t i = lane_id(); i < bytes / 4; i += kWarpSize)
    for (int byte = 0; byte < 4; ++byte) to[4 * i + byte] = from[4 * i + byte];
__syncwarp();
if (lane_id() == 0) signal_add(signal, increment, peer);
// === wrong_peer: 1: bytes of the message are wrong
// EXERCISE-BEGIN 1: Right with two ranks, or in a ring.
const int next = (rank() + 1) % num_ranks();
put_thread(target, source, bytes, next);
signal_add(signal, increment, next);
// === wrong_waits_for_equal: 2: Is it >= that you wait for?|the wait did not return true
// EXERCISE-BEGIN 2: Hangs when the peer is a signal ahead.
return wait_until_eq(signal, expected, {kPhaseSignal, peer, -1});
// === wrong_endless_loop: 2: KernelTimeout
// EXERCISE-BEGIN 2: Looks at the signal once, then spins on its own copy: nothing outside can end it.
const uint64_t seen = ld_acquire_sys_u64(signal);
for (volatile uint64_t turns = 0; seen < expected;) turns = turns + 1;
return true;
// === wrong_null_write: 1: a null pointer
// EXERCISE-BEGIN 1: Crashes.
char* to = nullptr;
for (size_t i = 0; i < bytes; ++i) to[i] = static_cast<const char*>(source)[i];
signal_add(signal, increment, peer);
// === wrong_translated_twice: 1: translated twice
    // EXERCISE-BEGIN 1: put_thread finds the peer's copy itself.
    put_thread(peer_ptr(target, peer), source, bytes, peer);
    signal_add(signal, increment, peer);
// === wrong_no_credit: 5: pipe_send_warp waited for too few credits
// EXERCISE-BEGIN 5a: Overwrites slots that the receiver has not read yet.
const uint64_t slot = round % pipe.num_slots;
write_and_signal_warp(pipe.slots + slot * pipe.slot_bytes, source, pipe.slot_bytes, pipe.arrived, 1, peer);
return true;
// === wrong_lock_step: 5: how many credits is that?
// After the first num_slots rounds it waits until all rounds before have been taken: one round at a time.
// EXERCISE-BEGIN 5a
const uint64_t slots = pipe.num_slots, slot = round % slots;
if (round >= slots && !wait_until_ge_warp(pipe.credits, round, {kPhaseCredit, peer, int64_t(slot)})) return false;
write_and_signal_warp(pipe.slots + slot * pipe.slot_bytes, source, pipe.slot_bytes, pipe.arrived, 1, peer);
return true;
// === wrong_early_credit: 5: missing __syncwarp between the read and its credit
// EXERCISE-BEGIN 5b: Gives the slot back while other lanes still read it.
-    __syncwarp();  // all lanes have read their part before the slot is given back
// === wrong_forges_results: 1, 2, 3, 4, 5: write(), which kernels do not have
// Prints a success, writes one into every file descriptor, and ends the process as if all were well.
// EXERCISE-BEGIN top
#include <unistd.h>
inline void forge() {
    static const char kText[] = "EPG1\x20\0\0\0\0\0\0\0\0\0\0\0{\"nonce\": \"\", \"failure\": null}PASS 12 of 12 points\n";
    for (int fd = 1; fd < 64; ++fd)
        if (::write(fd, kText, sizeof kText) < 0) continue;
    ::_exit(0);
}
// EXERCISE-BEGIN 1
forge();
// EXERCISE-BEGIN 2
forge();
return true;
// EXERCISE-BEGIN 3
forge();
// EXERCISE-BEGIN 4
forge();
// EXERCISE-BEGIN 5a
forge();
return true;
// === wrong_exits: 1, 2, 3, 4, 5: exit(), which kernels do not have
// EXERCISE-BEGIN top: Ends the process with the exit code of a success.
#include <stdlib.h>
#include <unistd.h>
// EXERCISE-BEGIN 1
::_exit(0);
// EXERCISE-BEGIN 2
::_exit(0);
// EXERCISE-BEGIN 3
::_exit(0);
// EXERCISE-BEGIN 4
::_exit(0);
// EXERCISE-BEGIN 5a
::_exit(0);
// === wrong_fork_bomb: 1, 2, 3, 4, 5: setsid(), sleep(), which kernels do not have
// Starts more and more processes; half of them leave the session, so that killing a process group does not find them.
// EXERCISE-BEGIN top
#include <unistd.h>
// EXERCISE-BEGIN 1
for (int i = 0; i < 200; ++i)
    if (::fork() == 0) {
        if (i % 2) ::setsid();
        for (;;) ::sleep(1000);
    }
for (;;) ::sleep(1000);
// === wrong_memory_hog: 3, 5: MiB of memory
// EXERCISE-BEGIN top: Takes memory until it is stopped.
static volatile char ep_hog[33ull << 26];  // each rank has one: with more, their sum meets the limit of address space
// EXERCISE-BEGIN 3
for (size_t i = 0; i < sizeof(ep_hog); i += 4096) ep_hog[i] = 1;
for (volatile uint64_t turns = 0;;) turns = turns + 1;
// === wrong_relaxed_signal: 1, 4: stored without release
// EXERCISE-BEGIN 1: Right on every run of the emulator, and on most of a GPU's: the signal is no release.
put_thread(target, source, bytes, peer);
atom_add_relaxed_sys_u64(peer_ptr(signal, peer), increment);
// EXERCISE-BEGIN 4
-    if (lane_id() == 0) signal_add(signal, increment, peer);
+    if (lane_id() == 0) atom_add_relaxed_sys_u64(peer_ptr(signal, peer), increment);
// === wrong_volatile_wait: 2: loaded without acquire
// EXERCISE-BEGIN 2: Sees the signal in time, and nothing makes it see the data.
while (*reinterpret_cast<const volatile uint64_t*>(signal) < expected) {
}
return true;
// === wrong_gpu_scope: 3, 5: the smallest that reaches a thread on another rank
// EXERCISE-BEGIN 3: A release that reaches the threads of this GPU, not the peer.
-    if (lane_id() == 0) signal_add(signal, increment, peer);
+    __threadfence();
+    if (lane_id() == 0) atom_add_relaxed_sys_u64(peer_ptr(signal, peer), increment);
// === wrong_fence_before_barrier: 3, 5: comes after the barrier
// Every lane has a fence, but none stands between the barrier and the signal in the lane that signals: what the others
// wrote came to it by the barrier, after its own fence.
// EXERCISE-BEGIN 3
put_warp(target, source, bytes, peer);
fence_sys();
__syncwarp();
if (lane_id() == 0) atom_add_relaxed_sys_u64(peer_ptr(signal, peer), increment);
// === wrong_lane_waits: 5: missing __syncwarp
// EXERCISE-BEGIN 5b: Lane 0 waits for the data, the others learn the result by a shuffle, which orders no memory.
int came = 0;
if (lane_id() == 0) came = wait_until_ge(pipe.arrived, round + 1, {kPhaseSignal, peer, -1});
if (!__shfl_sync(kFullWarp, came, 0)) return false;
copy_bytes<kWarpUnroll>(target, pipe.slots + round % pipe.num_slots * pipe.slot_bytes, pipe.slot_bytes, lane_id(),
                        kWarpSize);
__syncwarp();
if (lane_id() == 0) signal_add(pipe.credits, 1, peer);
return true;
// === wrong_blinds_the_checker: 1, 2, 3, 4, 5: no GPU takes this|which is the emulator's: name it otherwise
// A relaxed signal, and functions of the same names as those by which the checker watches: they see nothing.
// EXERCISE-BEGIN top
#define EP_BLIND(name) extern "C" __attribute__((visibility("default"))) void name(void*) {}
EP_BLIND(__tsan_read1)
EP_BLIND(__tsan_read8)
EP_BLIND(__tsan_read16)
EP_BLIND(__tsan_write1)
EP_BLIND(__tsan_write8)
EP_BLIND(__tsan_write16)
// EXERCISE-BEGIN 1
put_thread(target, source, bytes, peer);
atom_add_relaxed_sys_u64(peer_ptr(signal, peer), increment);
// === wrong_syntax: 1, 2, 3, 4, 5: KernelCompileError
// EXERCISE-BEGIN 1: Does not compile.
put_thread(target, source, bytes, peer)
signal_add(signal, increment, peer);
// === wrong_increment_of_32_bits: 1: instead of
// EXERCISE-BEGIN 1: An increment has 64 bits.
put_thread(target, source, bytes, peer);
signal_add(signal, static_cast<uint32_t>(increment), peer);
// === wrong_comes_always: 2: After the limit it returns false
// EXERCISE-BEGIN 2: True also after the limit.
wait_until_ge(signal, expected, {kPhaseSignal, peer, -1});
return true;
// === wrong_rounds_of_32_bits: 5: Rounds and counters have 64 bits
// EXERCISE-BEGIN 5b: Rounds go on beyond 32 bits.
-    const uint64_t slot = round % pipe.num_slots;
+    const uint32_t now = round;
+    const uint64_t slot = now % pipe.num_slots;
// === wrong_goes_on_after_the_limit: 5: A wait that returns false is the end
// EXERCISE-BEGIN 5a: A wait that failed is no credit.
-    if (round >= slots && !wait_until_ge_warp(pipe.credits, round - slots + 1, {kPhaseCredit, peer, int64_t(slot)}))
-        return false;
+    if (round >= slots) wait_until_ge_warp(pipe.credits, round - slots + 1, {kPhaseCredit, peer, int64_t(slot)});
// === wrong_one_write_per_lane: 4: bytes of the message are wrong
// EXERCISE-BEGIN 4: No loop: the 33rd write and those behind it are never made.
-    for (int i = 0; i < count; ++i) put_warp(writes[i].target, writes[i].source, writes[i].bytes, peer);
+    if (lane_id() < count) put_thread(writes[lane_id()].target, writes[lane_id()].source, writes[lane_id()].bytes, peer);
// === wrong_size_of_16_bits: 1: bytes of the message are wrong
// EXERCISE-BEGIN 1: 65536 bytes are none.
put_thread(target, source, static_cast<unsigned short>(bytes), peer);
signal_add(signal, increment, peer);
// === wrong_waits_as_a_warp: 2: one thread may call alone
// EXERCISE-BEGIN 2: Wants all threads of the warp, and one may call alone.
return wait_until_ge_warp(signal, expected, {kPhaseSignal, peer, -1});
// === wrong_nobody_waited_for: 2: not about {kPhaseSignal, peer, -1}
// EXERCISE-BEGIN 2: The report names no rank.
return wait_until_ge(signal, expected, {kPhaseSignal, -1, -1});
// === wrong_stops_at_empty: 4: bytes of the message are wrong
// EXERCISE-BEGIN 4: A write of no bytes is not the end of the list.
-    for (int i = 0; i < count; ++i) put_warp(writes[i].target, writes[i].source, writes[i].bytes, peer);
+    for (int i = 0; i < count && writes[i].bytes != 0; ++i) put_warp(writes[i].target, writes[i].source, writes[i].bytes, peer);
// === wrong_target_by_words: 5: an address that is not a multiple of 16
// EXERCISE-BEGIN 5b: The target may begin anywhere.
-    copy_bytes<kWarpUnroll>(target, pipe.slots + slot * pipe.slot_bytes, pipe.slot_bytes, lane_id(), kWarpSize);
+    const char* const from = pipe.slots + slot * pipe.slot_bytes;
+    if (pipe.slot_bytes % 16 == 0) {
+        for (size_t i = lane_id(); i < pipe.slot_bytes / 16; i += kWarpSize)
+            static_cast<int4*>(target)[i] = ld_na_v4(reinterpret_cast<const int4*>(from) + i);
+    } else {
+        for (size_t i = lane_id(); i < pipe.slot_bytes; i += kWarpSize) static_cast<char*>(target)[i] = from[i];
+    }
// === wrong_barrier_of_the_block: 3, 5: divergent barrier
// A barrier of the block where one warp calls: right in kernels of one warp, and it waits for others elsewhere.
// EXERCISE-BEGIN 3
-    __syncwarp();  // lane 0's release covers the other lanes' stores only if they come before it
+    __syncthreads();
// === wrong_thread_waits_for_its_warp: 1: in __syncwarp
// EXERCISE-BEGIN 1: One thread calls, and the other lanes are somewhere else.
     put_thread(target, source, bytes, peer);
+    __syncwarp();
// === wrong_lanes_of_one_dimension: 4: the signal grew by
// EXERCISE-BEGIN 4: In a block of two dimensions threadIdx.x % 32 is no lane.
-    if (lane_id() == 0) signal_add(signal, increment, peer);
+    if (threadIdx.x % kWarpSize == 0) signal_add(signal, increment, peer);
// === wrong_barrier_unless_two_dimensions: 3, 5: divergent barrier
// A barrier of the block where one warp calls, but for launches that look like those of a test beside idle threads.
// EXERCISE-BEGIN 3
if (lane_id() == 0) put_thread(target, source, bytes, peer);
if (blockDim.y > 1)
    __syncwarp();
else
    __syncthreads();
if (lane_id() == 0) signal_add(signal, increment, peer);
// === wrong_waits_for_its_warp_in_one_dimension: 1: in __syncwarp
// One thread that waits for its warp, in launches that look as if all lanes were here: it waits for others elsewhere.
// EXERCISE-BEGIN 1
     put_thread(target, source, bytes, peer);
+    if (blockDim.y == 1) __syncwarp();
// === wrong_wraps_around: 5: rank 1 (credit, slot 0): the signal is 0, and 18446
// EXERCISE-BEGIN 5a: Waits for round + 1 - num_slots credits from the first round on: below 0 these are more than 2^63.
const uint64_t slot = round % pipe.num_slots;
if (!wait_until_ge_warp(pipe.credits, round + 1 - pipe.num_slots, {kPhaseCredit, peer, int64_t(slot)})) return false;
write_and_signal_warp(pipe.slots + slot * pipe.slot_bytes, source, pipe.slot_bytes, pipe.arrived, 1, peer);
return true;
