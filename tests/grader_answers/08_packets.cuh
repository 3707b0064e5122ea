// === right_by_hand
// EXERCISE-BEGIN 1: Without poll_until, one load at a time, words from the last to the first.
TaggedWord* const theirs = peer_ptr(mine, peer);
st_relaxed_sys_u64x2(reinterpret_cast<uint64_t*>(theirs), data, tag);
// EXERCISE-BEGIN 2
uint64_t word, seen;
const uint64_t start = globaltimer_ns();
for (;;) {
    for (int poll = 0; poll < 64; ++poll) {
        ld_relaxed_sys_u64x2(&packet->data, &word, &seen);
        if (seen != tag) continue;
        *data = word;
        return true;
    }
    if (has_fault()) return false;
    const uint64_t limit = detail::timeout_ns() ? detail::timeout_ns() : kDefaultTimeoutNs;
    if (globaltimer_ns() - start > limit) {
        record_fault(kFaultTimeout, info, seen, tag);
        return false;
    }
}
// EXERCISE-BEGIN 3
for (int base = (words - 1) / kWarpSize * kWarpSize; base >= 0; base -= kWarpSize) {
    const int i = base + lane_id();
    if (i < words) send_packet(&mine[i], source[i], tag, peer);
}
// EXERCISE-BEGIN 4
int failed = 0;
for (int i = lane_id(); i < words; i += kWarpSize) {
    uint64_t word;
    if (wait_packet(&packets[i], tag, &word, info)) {
        target[i] = word;
    } else {
        failed = 1;
    }
}
__syncwarp();
return !__any_sync(kFullWarp, failed);
// === right_two_looks_at_once
// EXERCISE-BEGIN 2: Two loads on their way, one behind the other.
uint64_t seen = 0;
const auto done = [&] {
    uint64_t words[2], tags[2];
    for (int i = 0; i < 2; ++i) ld_relaxed_sys_u64x2(&packet->data, words + i, tags + i);
    const int i = tags[0] == tag ? 0 : 1;
    *data = words[i];
    seen = tags[i];
    return seen == tag;
};
const auto gave_up = [&] { record_fault(kFaultTimeout, info, seen, tag); };
return poll_until(done, gave_up);
// === wrong_two_exchanges: 1, 3: a packet is one store
// EXERCISE-BEGIN 1: Data, then tag, by two atomics of 8 bytes: two accesses all the same.
TaggedWord* const theirs = peer_ptr(mine, peer);
atomicExch_system(reinterpret_cast<unsigned long long*>(&theirs->data), static_cast<unsigned long long>(data));
atomicExch_system(reinterpret_cast<unsigned long long*>(&theirs->tag), static_cast<unsigned long long>(tag));
// === wrong_volatile_words: 3: a packet is one store
// EXERCISE-BEGIN 3: Two volatile stores of 8 bytes, by hand.
for (int i = lane_id(); i < words; i += kWarpSize) {
    volatile TaggedWord* const theirs = peer_ptr(mine + i, peer);
    theirs->data = source[i];
    theirs->tag = tag;
}
// === wrong_release: 1, 3: One 16-byte store, st_relaxed_sys_u64x2
// EXERCISE-BEGIN 1: Right, and what packets are there to avoid: the release waits for the data's way there and back.
TaggedWord* const theirs = peer_ptr(mine, peer);
st_relaxed_sys_u64(&theirs->data, data);
st_release_sys_u64(&theirs->tag, tag);
// === wrong_plain_store: 1: a plain access
// EXERCISE-BEGIN 1: The compiler may split it, delay it, or leave it out.
*peer_ptr(mine, peer) = TaggedWord{data, tag};
// === wrong_tag_first: 1, 3: data first, tag second
// EXERCISE-BEGIN 1: The tag in the first word.
st_relaxed_sys_u64x2(&peer_ptr(mine, peer)->data, tag, data);
// === wrong_own_copy: 1, 3: into the peer's copy of the packet
// EXERCISE-BEGIN 1: Into this rank's own packet.
st_relaxed_sys_u64x2(&mine->data, data, tag);
(void)peer;
// === wrong_at_least: 2, 4: until the tag is this one
// EXERCISE-BEGIN 2: Takes whatever lies there if its tag is larger.
-    return look_until(
+    return poll_until(
@@
-            return seen == tag;
+            return seen >= tag;
// === wrong_looks_by_atomics: 2, 4: the data may be older than the tag
// EXERCISE-BEGIN 2: The tag by an atomic, the data by a volatile load: two looks.
uint64_t seen = 0;
unsigned long long* const word = reinterpret_cast<unsigned long long*>(const_cast<uint64_t*>(&packet->tag));
const bool ok = poll_until([&] {
    seen = atomicAdd_system(word, 0ull);
    return seen == tag;
}, [&] { record_fault(kFaultTimeout, info, seen, tag); });
if (ok) *data = *const_cast<volatile uint64_t*>(&packet->data);
return ok;
// === wrong_waits_for_ever: 2, 4: poll_until has the limit
// EXERCISE-BEGIN 2: No limit: a peer that is gone takes this GPU along.
uint64_t seen = 0;
while (seen != tag) ld_relaxed_sys_u64x2(&packet->data, data, &seen);
(void)info;
return true;
// === wrong_vote_of_the_last: 4: was told 1 of 1 times that the packets are there; 0 is right
// EXERCISE-BEGIN 4: What the last packet said is what counts.
-    for (int i = lane_id(); i < words && ok; i += kWarpSize) {
+    for (int i = lane_id(); i < words; i += kWarpSize) {
// === wrong_first_look_reported: 2, 4: was in the packet when the wait gave up
// EXERCISE-BEGIN 2: Reports what it saw before it waited.
uint64_t seen = 0, first = 0;
ld_relaxed_sys_u64x2(&packet->data, data, &first);
return poll_until(
    [&] {
        ld_relaxed_sys_u64x2(&packet->data, data, &seen);
        return seen == tag;
    },
    [&] { record_fault(kFaultTimeout, info, first, tag); });
// === wrong_says_nothing: 2, 4: after the limit no fault was recorded
// EXERCISE-BEGIN 2: Gives up without saying why.
return poll_until(
    [&] {
        uint64_t seen;
        ld_relaxed_sys_u64x2(&packet->data, data, &seen);
        return seen == tag;
    },
    [&] { (void)info; });
// === wrong_says_the_wrong_thing: 2, 4: but the wait was for 3
// EXERCISE-BEGIN 2: Seen and expected are swapped.
-    return look_until(
+    return poll_until(
@@
-        [&] { record_fault(kFaultTimeout, info, seen, tag); });
+        [&] { record_fault(kFaultTimeout, info, tag, seen); });
// === wrong_first_32_words: 3: Lane l takes words l, l + 32
// EXERCISE-BEGIN 3: A warp has 32 lanes, a message any number of words.
if (lane_id() < words) send_packet(mine + lane_id(), source[lane_id()], tag, peer);
// === wrong_tag_of_its_own: 3: all of them have the same tag
// EXERCISE-BEGIN 3: A different tag for each packet.
for (int i = lane_id(); i < words; i += kWarpSize) send_packet(mine + i, source[i], tag + i, peer);
// === wrong_same_packet: 3: packet i is word i
// EXERCISE-BEGIN 3: Every word into the lane's first packet.
for (int i = lane_id(); i < words; i += kWarpSize) send_packet(mine + lane_id(), source[i], tag, peer);
// === wrong_each_lane_for_itself: 4: was told 1 of 1 times that the packets are there; 0 is right
// EXERCISE-BEGIN 4: A lane knows only of its own packets.
bool ok = true;
for (int i = lane_id(); i < words && ok; i += kWarpSize) ok = wait_packet(packets + i, tag, target + i, info);
__syncwarp();
return ok;
// === wrong_leaves_early: 4: All lanes stay until the vote
// EXERCISE-BEGIN 4: A lane that gives up leaves, and the vote of the others waits for it.
for (int i = lane_id(); i < words; i += kWarpSize) {
    uint64_t data;
    if (!wait_packet(packets + i, tag, &data, info)) return false;
    target[i] = data;
}
const bool all = __all_sync(kFullWarp, 1) != 0;
__syncwarp();
return all;
// === wrong_no_syncwarp: 4: missing __syncwarp
// EXERCISE-BEGIN 4: The vote hands over an answer, but orders no memory.
-    const bool all = __all_sync(kFullWarp, ok) != 0;
-    __syncwarp();
-    return all;
+    return __all_sync(kFullWarp, ok) != 0;
// === wrong_lane_0_waits: 4: All lanes stay until the vote and return the same
// EXERCISE-BEGIN 4: Lane 0's packets have come, so the others' will have?
uint64_t data;
int ok = lane_id() == 0 ? wait_packet(packets, tag, &data, info) : 0;
ok = __shfl_sync(kFullWarp, ok, 0);
__syncwarp();
for (int i = lane_id(); i < words && ok; i += kWarpSize) {
    uint64_t seen;
    ld_relaxed_sys_u64x2(&packets[i].data, target + i, &seen);
}
__syncwarp();
return ok;
// === wrong_tag_of_32_bits: 2, 4: words are wrong
// EXERCISE-BEGIN 2: Tags have 64 bits.
-    return look_until(
+    return poll_until(
@@
-            return seen == tag;
+            return static_cast<uint32_t>(seen) == static_cast<uint32_t>(tag);
// === wrong_lanes_of_the_block: 3: DeadlockError|words are wrong
// EXERCISE-BEGIN 3: A warp that is not the first of its block.
for (int i = thread_in_block(); i < words; i += kWarpSize) send_packet(mine + i, source[i], tag, peer);
// === wrong_every_lane_sends_all: 3: each word once is right
// EXERCISE-BEGIN 3: Each word once.
for (int i = lane_id(); i < words; ++i) send_packet(mine + i, source[i], tag, peer);
// === wrong_packet_of_8_bits: 3: words are wrong|DeadlockError
// EXERCISE-BEGIN 3: Word 256 overwrites word 0.
for (int i = lane_id(); i < words; i += kWarpSize) send_packet(mine + static_cast<uint8_t>(i), source[i], tag, peer);
// === wrong_barrier_before_it_sends: 3: divergent barrier
    // EXERCISE-BEGIN 3: One warp sends, and waits for all warps.
    __syncthreads();
    for (int i = lane_id(); i < words; i += kWarpSize) send_packet(mine + i, source[i], tag, peer);
// === wrong_lanes_of_one_dimension: 3: deadlock: 
    // EXERCISE-BEGIN 3: In a block of two dimensions threadIdx.x is no number of a thread.
    for (int i = threadIdx.x % 32; i < words; i += kWarpSize) send_packet(mine + i, source[i], tag, peer);
// === wrong_barrier_unless_two_dimensions: 4: divergent barrier
// EXERCISE-BEGIN 4: A barrier of the block, where one warp has waited, in blocks of one dimension.
     const bool all = __all_sync(kFullWarp, ok) != 0;
+    if (blockDim.y > 1)
@@
     __syncwarp();
+    else
+        __syncthreads();
// === wrong_barrier_after_the_vote: 4: divergent barrier
// EXERCISE-BEGIN 4: A barrier of the block, where one warp has waited.
-    __syncwarp();
+    __syncthreads();
// === wrong_no_zero_word: 2: words are wrong
// EXERCISE-BEGIN 2: A word of 0 is data, too.
-            ld_relaxed_sys_u64x2(&packet->data, data, &seen);
+            uint64_t found;
+            ld_relaxed_sys_u64x2(&packet->data, &found, &seen);
+            if (seen == tag && found) *data = found;
// === wrong_target_keeps_zeros: 4: words are wrong
// EXERCISE-BEGIN 4: A word of 0 is data, too.
-        if (ok) target[i] = data;
+        if (ok && data) target[i] = data;
// === wrong_words_of_10_bits: 3: DeadlockError|words are wrong
    // EXERCISE-BEGIN 3: Of 1024 words it sends none.
    for (int i = lane_id(); i < (words & 0x3ff); i += kWarpSize) send_packet(mine + i, source[i], tag, peer);
