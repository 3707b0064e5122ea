// === right_every_lane_waits
// EXERCISE-BEGIN 1: Every lane waits for the packet and for the signal itself.
uint64_t bits = 0;
const int first = r * my.experts_per_rank;
for (int e = 0; e < my.experts_per_rank; ++e) {
    for (int k = 0; k < count; ++k) {
        if (choices[k] == first + e) bits |= uint64_t{1} << e;
    }
}
return bits;
// EXERCISE-BEGIN 2
if (lane_id() != 31) return;
for (int r = 0; r < num_ranks(); ++r) {
    send_packet(&my.routes[slot_of(my, rank(), token)], wanted_on(my, choices, count, r), my.epoch, r);
}
// EXERCISE-BEGIN 4
const int64_t slot = slot_of(my, source, token);
bool ok = wait_packet(my.routes + slot, my.epoch, bits, {kPhaseLayout, source, token});
if (ok && *bits) ok = wait_until_ge(my.arrived + slot, my.epoch, {kPhaseDispatch, source, token});
if (!__all_sync(kFullWarp, ok)) return false;
for (int e = 0; e < my.experts_per_rank; ++e) {
    if ((*bits >> e & 1) == 0) continue;
    const int64_t row = static_cast<int64_t>(e) * num_ranks() * my.max_tokens + slot;
    for (int i = lane_id(); i < my.row_vectors; i += kWarpSize) {
        my.out[row * my.row_vectors + i] = my.rows[slot * my.row_vectors + i];
    }
}
return true;
// === right_in_turn
// Each warp waits for a token of all ranks before it sends its next one: as fast, where all ranks begin together.
// EXERCISE-BEGIN 5
for (int token = first_warp; token < my.max_tokens; token += all_warps) {
    const bool exists = token < my.num_tokens;
    const int* const choices = topk_idx + static_cast<int64_t>(token) * my.top_k;
    tell_warp(my, choices, exists ? my.top_k : 0, token);
    if (exists) send_row_warp(my, x + static_cast<int64_t>(token) * my.row_vectors, choices, my.top_k, token);
    for (int source = 0; source < num_ranks(); ++source) {
        uint64_t bits = 0;
        if (!receive_warp(my, source, token, &bits)) return;
        if (lane_id() == 0) my.wanted[slot_of(my, source, token)] = bits;
    }
}
// === right_row_behind_its_packet
// The row goes out right behind its packet, ranks from the last to the first, and signals are added up.
// EXERCISE-BEGIN 3
const int64_t slot = slot_of(my, rank(), token);
for (int r = num_ranks() - 1; r >= 0; --r) {
    if (wanted_on(my, choices, count, r) == 0) continue;
    int4* const target = peer_ptr(my.rows, r) + slot * my.row_vectors;
    for (int i = lane_id(); i < my.row_vectors; i += kWarpSize) target[i] = row[i];
}
__syncwarp();
if (lane_id() == 5) {
    for (int r = 0; r < num_ranks(); ++r) {
        if (wanted_on(my, choices, count, r)) st_release_sys_u64(peer_ptr(my.arrived, r) + slot, my.epoch);
    }
}
// EXERCISE-BEGIN 5
for (int token = first_warp; token < my.max_tokens; token += all_warps) {
    const int* const choices = topk_idx + static_cast<int64_t>(token) * my.top_k;
    const int count = token < my.num_tokens ? my.top_k : 0;
    tell_warp(my, choices, count, token);
    if (count) send_row_warp(my, x + static_cast<int64_t>(token) * my.row_vectors, choices, count, token);
}
for (int i = num_ranks() * my.max_tokens - 1 - first_warp; i >= 0; i -= all_warps) {
    uint64_t bits = 0;
    if (!receive_warp(my, i / my.max_tokens, i % my.max_tokens, &bits)) return;
    if (lane_id() == 9) my.wanted[i] = bits;
}
// === wrong_number_of_all: 1, 2, 5: the bit's number counts from the first of them
// EXERCISE-BEGIN 1: The expert's number among all.
-        if (choices[k] >= 0 && choices[k] / my.experts_per_rank == r) bits |= 1ull << choices[k] % my.experts_per_rank;
+        if (choices[k] >= 0 && choices[k] / my.experts_per_rank == r) bits |= 1ull << choices[k];
// === wrong_minus_one: 1, 2, 5: the bits for rank 0 are wrong
// EXERCISE-BEGIN 1: -1 / experts_per_rank is 0, which is a rank.
-        if (choices[k] >= 0 && choices[k] / my.experts_per_rank == r) bits |= 1ull << choices[k] % my.experts_per_rank;
+        if (choices[k] / my.experts_per_rank == r) bits |= 1ull << (choices[k] & 63) % my.experts_per_rank;
// === wrong_tells_some: 2, 5: DeadlockError
// EXERCISE-BEGIN 2: Ranks that do not want the token hear nothing.
-        send_packet(my.routes + slot_of(my, rank(), token), wanted_on(my, choices, count, r), my.epoch, r);
+        const uint64_t bits = wanted_on(my, choices, count, r);
+        if (bits != 0) send_packet(my.routes + slot_of(my, rank(), token), bits, my.epoch, r);
// === wrong_same_tag: 2, 5: DeadlockError
// EXERCISE-BEGIN 2: The tag of the first epoch, for ever.
-        send_packet(my.routes + slot_of(my, rank(), token), wanted_on(my, choices, count, r), my.epoch, r);
+        send_packet(my.routes + slot_of(my, rank(), token), wanted_on(my, choices, count, r), 1, r);
// === wrong_slot_of_the_receiver: 2, 5: DeadlockError
// EXERCISE-BEGIN 2: The slot of the rank that is told, instead of this one's.
-        send_packet(my.routes + slot_of(my, rank(), token), wanted_on(my, choices, count, r), my.epoch, r);
+        send_packet(my.routes + slot_of(my, r, token), wanted_on(my, choices, count, r), my.epoch, r);
// === wrong_no_syncwarp: 3, 5: rows of the experts are wrong|published nothing|a __syncwarp; then each rank's
// EXERCISE-BEGIN 3: The signals may overtake other lanes' stores.
-    for (int n = 0; n < num_ranks(); ++n) {
-        const int r = (rank() + 1 + n) % num_ranks();  // not all to rank 0 first
+    for (int r = 0; r < num_ranks(); ++r) {
@@
-    __syncwarp();  // a lane's release covers the other lanes' stores only if they come before it
// === wrong_row_per_expert: 3, 5: a row crosses once
// EXERCISE-BEGIN 3: The row for each expert of a rank that wants it, not once to the rank.
const int64_t slot = slot_of(my, rank(), token);
for (int r = 0; r < num_ranks(); ++r) {
    for (int expert = r * my.experts_per_rank; expert < (r + 1) * my.experts_per_rank; ++expert) {
        bool wanted = false;
        for (int k = 0; k < count; ++k) wanted |= choices[k] == expert;
        if (wanted) put_warp(my.rows + slot * my.row_vectors, row, my.row_vectors * sizeof(int4), r);
    }
}
__syncwarp();
for (int r = lane_id(); r < num_ranks(); r += kWarpSize) {
    if (wanted_on(my, choices, count, r) != 0) signal_set(my.arrived + slot, my.epoch, r);
}
// === wrong_tells_twice: 2, 5: each word once is right
// EXERCISE-BEGIN 2: Two packets for each token and rank, in case that one is lost.
-        send_packet(my.routes + slot_of(my, rank(), token), wanted_on(my, choices, count, r), my.epoch, r);
+        TaggedWord* const packet = my.routes + slot_of(my, rank(), token);
+        for (int again = 0; again < 2; ++again) send_packet(packet, wanted_on(my, choices, count, r), my.epoch, r);
// === wrong_shuffle_only: 4, 5: missing __syncwarp|rows of the experts are wrong
// EXERCISE-BEGIN 4: A shuffle hands over the answer, not what lane 0 acquired.
-    if (lane_id() == 0) ok = wait_packet(my.routes + slot, my.epoch, &found, {kPhaseLayout, source, token});
+    if (lane_id() == 0) {
+        ok = wait_packet(my.routes + slot, my.epoch, &found, {kPhaseLayout, source, token});
+        if (ok && found) ok = wait_until_ge(my.arrived + slot, my.epoch, {kPhaseDispatch, source, token});
+    }
@@
-    if (*bits == 0) return true;
-    if (!wait_until_ge_warp(my.arrived + slot, my.epoch, {kPhaseDispatch, source, token})) return false;
// === wrong_one_expert: 4, 5: rows of the experts are wrong
// EXERCISE-BEGIN 4: Only the first of the experts gets the row.
-    for (uint64_t left = *bits; left != 0; left &= left - 1) {
-        const int64_t row = (__ffsll(left) - 1) * static_cast<int64_t>(num_ranks()) * my.max_tokens + slot;
-        copy_bytes<kWarpUnroll>(my.out + row * my.row_vectors, my.rows + slot * my.row_vectors,
-                                my.row_vectors * sizeof(int4), lane_id(), kWarpSize);
-    }
+    const int64_t row = (__ffsll(*bits) - 1) * static_cast<int64_t>(num_ranks()) * my.max_tokens + slot;
+    copy_bytes<kWarpUnroll>(my.out + row * my.row_vectors, my.rows + slot * my.row_vectors, my.row_vectors * sizeof(int4),
+                            lane_id(), kWarpSize);
// === wrong_waits_for_ever: 4: waits in a polling loop
// EXERCISE-BEGIN 4: No limit while it waits for the packet.
-    uint64_t found = 0;
-    int ok = 1;
-    if (lane_id() == 0) ok = wait_packet(my.routes + slot, my.epoch, &found, {kPhaseLayout, source, token});
-    if (!__shfl_sync(kFullWarp, ok, 0)) return false;
+    uint64_t found = 0, seen = 0;
+    if (lane_id() == 0) {
+        while (seen != my.epoch) ld_relaxed_sys_u64x2(&my.routes[slot].data, &found, &seen);
+    }
// === wrong_real_tokens_only: 5: PeerTimeout
// EXERCISE-BEGIN 5: No rank learns which tokens do not exist.
const auto choices_of = [&](int token) { return topk_idx + static_cast<int64_t>(token) * my.top_k; };
for (int token = first_warp; token < my.num_tokens; token += all_warps) {
    tell_warp(my, choices_of(token), my.top_k, token);
    send_row_warp(my, x + static_cast<int64_t>(token) * my.row_vectors, choices_of(token), my.top_k, token);
}
for (int i = first_warp; i < num_ranks() * my.max_tokens; i += all_warps) {
    uint64_t bits = 0;
    if (!receive_warp(my, i / my.max_tokens, i % my.max_tokens, &bits)) return;
    if (lane_id() == 0) my.wanted[i] = bits;
}
// === wrong_all_by_each_warp: 5: on the virtual clock
// EXERCISE-BEGIN 5: Every warp does all of the work.
const auto choices_of = [&](int token) { return topk_idx + static_cast<int64_t>(token) * my.top_k; };
for (int token = 0; token < my.max_tokens; ++token) {
    tell_warp(my, choices_of(token), token < my.num_tokens ? my.top_k : 0, token);
}
for (int token = 0; token < my.num_tokens; ++token) {
    send_row_warp(my, x + static_cast<int64_t>(token) * my.row_vectors, choices_of(token), my.top_k, token);
}
for (int i = first_warp; i < num_ranks() * my.max_tokens; i += all_warps) {
    uint64_t bits = 0;
    if (!receive_warp(my, i / my.max_tokens, i % my.max_tokens, &bits)) return;
    if (lane_id() == 0) my.wanted[i] = bits;
}
// === wrong_one_warp: 5: on the virtual clock
// EXERCISE-BEGIN 5: The first warp does all of the work.
if (first_warp != 0) return;
const auto choices_of = [&](int token) { return topk_idx + static_cast<int64_t>(token) * my.top_k; };
for (int token = 0; token < my.max_tokens; ++token) {
    tell_warp(my, choices_of(token), token < my.num_tokens ? my.top_k : 0, token);
}
for (int token = 0; token < my.num_tokens; ++token) {
    send_row_warp(my, x + static_cast<int64_t>(token) * my.row_vectors, choices_of(token), my.top_k, token);
}
for (int i = 0; i < num_ranks() * my.max_tokens; ++i) {
    uint64_t bits = 0;
    if (!receive_warp(my, i / my.max_tokens, i % my.max_tokens, &bits)) return;
    if (lane_id() == 0) my.wanted[i] = bits;
}
// === wrong_one_rank_per_lane: 2, 5: DeadlockError
// EXERCISE-BEGIN 2: No loop: rank 32 and those behind it are told nothing.
-    for (int r = lane_id(); r < num_ranks(); r += kWarpSize) {
+    const int r = lane_id();
+    if (r < num_ranks()) {
// === wrong_choices_of_8_bits: 1: are wrong
// EXERCISE-BEGIN 1: Expert 256 is taken for expert 0.
-        if (choices[k] >= 0 && choices[k] / my.experts_per_rank == r) bits |= 1ull << choices[k] % my.experts_per_rank;
+        const int expert = static_cast<unsigned char>(choices[k]);
+        if (choices[k] >= 0 && expert / my.experts_per_rank == r) bits |= 1ull << expert % my.experts_per_rank;
// === wrong_wanted_if_any: 5: slots say that other experts want their token
// EXERCISE-BEGIN 5: Leaves the bits of the epoch before where no rank wants the token.
for (int token = first_warp; token < my.max_tokens; token += all_warps) {
    const bool exists = token < my.num_tokens;
    tell_warp(my, exists ? topk_idx + static_cast<int64_t>(token) * my.top_k : nullptr, exists ? my.top_k : 0, token);
}
for (int token = first_warp; token < my.num_tokens; token += all_warps)
    send_row_warp(my, x + static_cast<int64_t>(token) * my.row_vectors, topk_idx + static_cast<int64_t>(token) * my.top_k, my.top_k, token);
for (int i = first_warp; i < num_ranks() * my.max_tokens; i += all_warps) {
    uint64_t bits = 0;
    if (!receive_warp(my, i / my.max_tokens, i % my.max_tokens, &bits)) return;
    if (lane_id() == 0 && bits != 0) my.wanted[i] = bits;
}
// === wrong_bits_unset: 4: slots say that other experts want their token
// EXERCISE-BEGIN 4: Leaves the caller's bits as they were where no rank wants the token.
-    *bits = __shfl_sync(kFullWarp, found, 0);
-    if (*bits == 0) return true;
+    found = __shfl_sync(kFullWarp, found, 0);
+    if (found == 0) return true;
+    *bits = found;
@@
-        copy_bytes<kWarpUnroll>(my.out + row * my.row_vectors, my.rows + slot * my.row_vectors,
-                                my.row_vectors * sizeof(int4), lane_id(), kWarpSize);
+        copy_bytes<kWarpUnroll>(my.out + row * my.row_vectors, my.rows + slot * my.row_vectors, my.row_vectors * sizeof(int4), lane_id(), kWarpSize);
// === wrong_row_that_never_came: 4: never came, and receive_warp was true
// EXERCISE-BEGIN 4: True after the limit of its second wait.
-    if (!wait_until_ge_warp(my.arrived + slot, my.epoch, {kPhaseDispatch, source, token})) return false;
+    if (!wait_until_ge_warp(my.arrived + slot, my.epoch, {kPhaseDispatch, source, token})) return true;
@@
-        copy_bytes<kWarpUnroll>(my.out + row * my.row_vectors, my.rows + slot * my.row_vectors,
-                                my.row_vectors * sizeof(int4), lane_id(), kWarpSize);
+        copy_bytes<kWarpUnroll>(my.out + row * my.row_vectors, my.rows + slot * my.row_vectors, my.row_vectors * sizeof(int4), lane_id(), kWarpSize);
// === wrong_thread_waits_for_its_warp: 1, 2, 3, 5: wait in __syncwarp|waits in __syncwarp
// EXERCISE-BEGIN 1: Who asks alone waits for the other lanes.
     uint64_t bits = 0;
+    __syncwarp();
// === wrong_lanes_of_one_dimension: 2, 5: packets were sent; each word once is right|deadlock: 
// EXERCISE-BEGIN 2: In a block of two dimensions threadIdx.x is no number of a thread.
-    for (int r = lane_id(); r < num_ranks(); r += kWarpSize) {
+    for (int r = threadIdx.x % 32; r < num_ranks(); r += kWarpSize) {
// === wrong_barrier_after_the_packet: 4: divergent barrier|say that other experts want|wait in __syncthreads|in the test's barrier()
// EXERCISE-BEGIN 4: One warp receives, and waits for all warps.
     *bits = __shfl_sync(kFullWarp, found, 0);
+    __syncthreads();
