// === right_by_hand
// One lane sends; lanes 0 and 31 share nothing; another loop over the bits.
// EXERCISE-BEGIN 1
if (ep::lane_id() == 0) {
    const int here = ep::rank() / t.mates;
    for (int node = num_nodes(t) - 1; node >= 0; --node) {
        int k = 0;
        for (int token = 0; node != here && token < t.count; ++token) {
            const unsigned wanted = wanted_in(t, token, node);
            if (wanted == 0) continue;
            const int64_t slot = int64_t(here) * t.count + k++;
            ep::net_put_nbi(row_of(relay.rows, t, slot), row_of(t.rows, t, token), t.words * 4, partner_in(t, node));
            ep::net_fence(partner_in(t, node));
            ep::net_put_signal_nbi(relay.rows, t.rows, 0, relay.labels + slot, label_of(token, wanted),
                                   partner_in(t, node), 0, ep::NetSignal::kSet);
        }
    }
}
// EXERCISE-BEGIN 2
const int here = ep::rank() / t.mates;
for (int node = num_nodes(t) - 1; node >= 0; --node) {
    for (int k = 0; node != here && k < relay.comes[node]; ++k) {
        const int64_t slot = int64_t(node) * t.count + k;
        uint64_t label;
        while ((label = ep::ld_acquire_sys_u64(relay.labels + slot)) == 0) {
        }
        for (int r = 0; r < t.mates; ++r) {
            if (wanted_of(label) >> r & 1) {
                store_row_warp(t, relay.rows + slot * t.words, partner_in(t, node), token_of(label), here * t.mates + r);
            }
        }
    }
}
return true;
// === right_rank_by_rank
// Sums rank by rank in registers of one lane's words, sent back from the last to the first.
// EXERCISE-BEGIN 3
const int here = node_of(t, ep::rank());
for (int i = ep::lane_id(); i < t.words; i += ep::kWarpSize) {
    sum[i] = 0.0f;
    for (int r = 0; r < t.mates; ++r) {
        const float* const row = ep::peer_ptr(t.arrived, here * t.mates + r) + (int64_t(source) * t.count + token) * t.words;
        if (wanted >> r & 1) sum[i] += row[i];
    }
}
__syncwarp();
// EXERCISE-BEGIN 4
const int here = node_of(t, ep::rank());
for (int node = num_nodes(t) - 1; node >= 0; --node) {
    if (node == here) continue;
    for (int k = relay.comes[node] - 1; k >= 0; --k) {
        const int64_t mine = int64_t(node) * t.count + k, theirs = int64_t(here) * t.count + k;
        float* const sum = staging.rows + mine * t.words;
        node_sum_warp(t, sum, partner_in(t, node), token_of(relay.labels[mine]), wanted_of(relay.labels[mine]));
        if (ep::lane_id() == 7) {
            ep::net_put_signal_nbi(back.rows + theirs * t.words, sum, t.words * 4, back.labels + theirs,
                                   relay.labels[mine], partner_in(t, node), 0, ep::NetSignal::kSet);
        }
    }
}
// === wrong_leaves_zero_sums_out: 3: sums of rank 0 are wrong
// A sum of 0 is a sum.
// EXERCISE-BEGIN 3
-        sum[i] = total;
+        if (total != 0.0f) sum[i] = total;
// === wrong_waits_for_a_node: 2: the wait that failed is about dispatch, rank 1
// Nodes send nothing: ranks do.
// EXERCISE-BEGIN 2
-            if (!ep::wait_until_ge_warp(relay.labels + slot, 1, {ep::kPhaseDispatch, source, k})) return false;
+            if (!ep::wait_until_ge_warp(relay.labels + slot, 1, {ep::kPhaseDispatch, node, k})) return false;
// === wrong_slots_of_the_target: 1: in the slots of your node at the partner
// The slots of the node that it goes to, where this rank is nobody's partner.
// EXERCISE-BEGIN 1
-        int64_t slot = int64_t(here) * t.count;
+        int64_t slot = int64_t(node) * t.count;
// === wrong_slot_of_the_token: 1: the partner waits for a label
// Leaves holes: the partner looks at the first slots only.
// EXERCISE-BEGIN 1
             if (!wanted) continue;
+            slot = int64_t(here) * t.count + token;
@@
-            ++slot;
// === wrong_same_slot: 1: the partner waits for a label
// Every message in the first slot.
// EXERCISE-BEGIN 1
-            ++slot;
// === wrong_two_operations: 1: rows handed on|signal overtakes data|in the slots for partners
// The row, and then the label: they may arrive the other way round.
// EXERCISE-BEGIN 1
-            ep::net_put_signal_nbi(row_of(relay.rows, t, slot), row_of(t.rows, t, token), t.words * sizeof(float),
-                                   relay.labels + slot, label_of(token, wanted), partner_in(t, node), 0,
+            ep::net_put_nbi(row_of(relay.rows, t, slot), row_of(t.rows, t, token), t.words * sizeof(float),
+                            partner_in(t, node));
+            ep::net_put_signal_nbi(relay.rows, t.rows, 0, relay.labels + slot, label_of(token, wanted), partner_in(t, node), 0,
// === wrong_all_wanted: 1: labels in the slots for partners|rows handed on
// Everybody in the node gets the row.
// EXERCISE-BEGIN 1
-                                   relay.labels + slot, label_of(token, wanted), partner_in(t, node), 0,
+                                   relay.labels + slot, label_of(token, (1u << t.mates) - 1), partner_in(t, node), 0,
// === wrong_once_per_rank: 1: One message per token and other node
// A message for each rank that needs the token.
// EXERCISE-BEGIN 1
             if (!wanted) continue;
+            for (unsigned left = wanted; left; left &= left - 1) {
@@
-                                   relay.labels + slot, label_of(token, wanted), partner_in(t, node), 0,
+                                       relay.labels + slot, label_of(token, left & -left), partner_in(t, node), 0,
@@
         }
     }
+    }
// === wrong_row_is_mine: 2: the row is one of the source's
// The row becomes one of the partner's own.
// EXERCISE-BEGIN 2
-                store_row_warp(t, row_of(relay.rows, t, slot), source, token_of(label), to);
+                store_row_warp(t, row_of(relay.rows, t, slot), ep::rank(), token_of(label), to);
// === wrong_row_of_the_slot: 2: Wait for each slot's own label
// The slot is not the token.
// EXERCISE-BEGIN 2
-                store_row_warp(t, row_of(relay.rows, t, slot), source, token_of(label), to);
+                store_row_warp(t, row_of(relay.rows, t, slot), source, int(k), to);
// === wrong_to_all_mates: 2: for the ranks of this node
// To all ranks of the node.
// EXERCISE-BEGIN 2
-            for (unsigned left = wanted_of(label); left; left &= left - 1) {
+            for (unsigned left = (1u << t.mates) - 1; left; left &= left - 1) {
// === wrong_waits_for_the_first: 2: Wait for each slot's own label
// Only the first message is waited for.
// EXERCISE-BEGIN 2
-            if (!ep::wait_until_ge_warp(relay.labels + slot, 1, {ep::kPhaseDispatch, source, k})) return false;
+            if (k == 0 && !ep::wait_until_ge_warp(relay.labels + slot, 1, {ep::kPhaseDispatch, source, k})) return false;
// === wrong_descending: 3, 4: Ascending ranks
// The other way round: other last bits.
// EXERCISE-BEGIN 3
-        for (unsigned left = wanted; left; left &= left - 1) total += ep::peer_ptr(row, first + __ffs(left) - 1)[i];
+        for (int r = t.mates - 1; r >= 0; --r) {
+            if (wanted >> r & 1) total += ep::peer_ptr(row, first + r)[i];
+        }
// === wrong_all_mates: 3, 4: sums of rank
// Also those that have no result of this token.
// EXERCISE-BEGIN 3
-        for (unsigned left = wanted; left; left &= left - 1) total += ep::peer_ptr(row, first + __ffs(left) - 1)[i];
+        for (int r = 0; r < t.mates; ++r) total += ep::peer_ptr(row, first + r)[i];
// === wrong_my_own_copy: 3, 4: sums of rank
// Adds this rank's own row again and again.
// EXERCISE-BEGIN 3
-        for (unsigned left = wanted; left; left &= left - 1) total += ep::peer_ptr(row, first + __ffs(left) - 1)[i];
+        for (unsigned left = wanted; left; left &= left - 1) total += row[i];
// === wrong_no_syncwarp: 3, 4: missing __syncwarp
// One lane posts what the others have not stored.
// EXERCISE-BEGIN 3
-    __syncwarp();  // all lanes have stored their part of the sum
// === wrong_one_staging: 4: One place in staging for each sum
// The next sum overwrites what the NIC has not read.
// EXERCISE-BEGIN 4
-            float* const sum = row_of(staging.rows, t, slot);
+            float* const sum = row_of(staging.rows, t, 0);
@@
             }
+            __syncwarp();
// === wrong_slots_of_their_node: 4: the slot of your node in the partner's back
// The slots of the source's node.
// EXERCISE-BEGIN 4
-            const int64_t slot = int64_t(node) * t.count + k, theirs = int64_t(here) * t.count + k;
+            const int64_t slot = int64_t(node) * t.count + k, theirs = int64_t(node) * t.count + k;
@@
             }
+            __syncwarp();
// === wrong_slot_of_the_sum: 4: the slot of your node in the partner's back
// Token numbers, where the source looks at the first slots.
// EXERCISE-BEGIN 4
-            const int64_t slot = int64_t(node) * t.count + k, theirs = int64_t(here) * t.count + k;
+            const int64_t slot = int64_t(node) * t.count + k;
@@
             const uint64_t label = relay.labels[slot];
+            const int64_t theirs = int64_t(here) * t.count + token_of(label);
@@
             }
+            __syncwarp();
// === wrong_token_of_8_bits: 1: labels in the slots for partners
// Token 256 goes as token 0.
// EXERCISE-BEGIN 1
-                                   relay.labels + slot, label_of(token, wanted), partner_in(t, node), 0,
+                                   relay.labels + slot, label_of(token & 255, wanted), partner_in(t, node), 0,
// === wrong_a_lane_per_node: 1: One message per token and other node
// Each lane has one node: the 33rd has none.
// EXERCISE-BEGIN 1
-    for (int node = ep::lane_id(); node < num_nodes(t); node += ep::kWarpSize) {
-        if (node == here) continue;
+    if (const int node = ep::lane_id(); node < num_nodes(t) && node != here) {
// === wrong_label_of_1: 2: DeadlockError
// Token 0 for the first rank of the node alone has the label 1.
// EXERCISE-BEGIN 2
-            if (!ep::wait_until_ge_warp(relay.labels + slot, 1, {ep::kPhaseDispatch, source, k})) return false;
+            if (!ep::wait_until_ge_warp(relay.labels + slot, 2, {ep::kPhaseDispatch, source, k})) return false;
// === wrong_the_last_wait_decides: 2: never came, those behind it did, and forward_warp returned true
// Goes on after a wait that failed, and the last one decides.
// EXERCISE-BEGIN 2
const int here = node_of(t, ep::rank());
bool ok = true;
for (int node = 0; node < num_nodes(t); ++node) {
    if (node == here) continue;
    const int source = partner_in(t, node);
    for (int64_t k = 0; k < relay.comes[node]; ++k) {
        const int64_t slot = int64_t(node) * t.count + k;
        ok = ep::wait_until_ge_warp(relay.labels + slot, 1, {ep::kPhaseDispatch, source, k});
        const uint64_t label = relay.labels[slot];
        for (unsigned left = wanted_of(label); left; left &= left - 1)
            store_row_warp(t, row_of(relay.rows, t, slot), source, token_of(label), first_rank_of(t, here) + __ffs(left) - 1);
    }
}
return ok;
// === wrong_begins_with_the_first: 3, 4: sums of rank
// A sum that begins with its first number: -0.0 stays -0.0.
// EXERCISE-BEGIN 3
-        float total = 0.0f;
-        for (unsigned left = wanted; left; left &= left - 1) total += ep::peer_ptr(row, first + __ffs(left) - 1)[i];
+        float total = ep::peer_ptr(row, first + __ffs(wanted) - 1)[i];
+        for (unsigned left = wanted & (wanted - 1); left; left &= left - 1) total += ep::peer_ptr(row, first + __ffs(left) - 1)[i];
// === wrong_token_of_16_bits: 1: labels in the slots for partners|rows handed on
// The label has 32 bits for the token.
// EXERCISE-BEGIN 1
-                                   relay.labels + slot, label_of(token, wanted), partner_in(t, node), 0,
+                                   relay.labels + slot, label_of(static_cast<uint16_t>(token), wanted), partner_in(t, node), 0,
