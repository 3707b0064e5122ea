// === right_by_hand
// EXERCISE-BEGIN 1: One lane sends; lanes 0 and 31 share nothing; another loop over the bits.
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
// EXERCISE-BEGIN 3: Sums rank by rank in registers of one lane's words, sent back from the last to the first.
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
// EXERCISE-BEGIN 3: A sum of 0 is a sum.
-        sum[i] = total;
+        if (total != 0.0f) sum[i] = total;
// === wrong_waits_for_a_node: 2: the wait that failed is about dispatch, rank 1
// EXERCISE-BEGIN 2: Nodes send nothing: ranks do.
-            if (!ep::wait_until_ge_warp(relay.labels + slot, 1, {ep::kPhaseDispatch, source, k})) return false;
+            if (!ep::wait_until_ge_warp(relay.labels + slot, 1, {ep::kPhaseDispatch, node, k})) return false;
// === wrong_slots_of_the_target: 1: in the slots of your node at the partner
// EXERCISE-BEGIN 1: The slots of the node that it goes to, where this rank is no partner.
-        int64_t slot = int64_t(here) * t.count;
+        int64_t slot = int64_t(node) * t.count;
// === wrong_slot_of_the_token: 1: the partner waits for a label
// EXERCISE-BEGIN 1: Leaves holes: the partner looks at the first slots only.
             if (!wanted) continue;
+            slot = int64_t(here) * t.count + token;
@@
-            ++slot;
// === wrong_same_slot: 1: the partner waits for a label
// EXERCISE-BEGIN 1: Every message in the first slot.
-            ++slot;
// === wrong_two_operations: 1: rows handed on|signal overtakes data|in the slots for partners
// EXERCISE-BEGIN 1: The row, and then the label: they may arrive the other way round.
-            ep::net_put_signal_nbi(row_of(relay.rows, t, slot), row_of(t.rows, t, token), t.words * sizeof(float),
-                                   relay.labels + slot, label_of(token, wanted), partner_in(t, node), 0,
+            ep::net_put_nbi(row_of(relay.rows, t, slot), row_of(t.rows, t, token), t.words * sizeof(float),
+                            partner_in(t, node));
+            ep::net_put_signal_nbi(relay.rows, t.rows, 0, relay.labels + slot, label_of(token, wanted), partner_in(t, node), 0,
// === wrong_all_wanted: 1: labels in the slots for partners|rows handed on
// EXERCISE-BEGIN 1: Everybody in the node gets the row.
-                                   relay.labels + slot, label_of(token, wanted), partner_in(t, node), 0,
+                                   relay.labels + slot, label_of(token, (1u << t.mates) - 1), partner_in(t, node), 0,
// === wrong_once_per_rank: 1: One message per token and other node
// EXERCISE-BEGIN 1: A message for each rank that needs the token.
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
// EXERCISE-BEGIN 2: The row becomes one of the partner's own.
-                store_row_warp(t, row_of(relay.rows, t, slot), source, token_of(label), to);
+                store_row_warp(t, row_of(relay.rows, t, slot), ep::rank(), token_of(label), to);
// === wrong_row_of_the_slot: 2: Wait for each slot's own label
// EXERCISE-BEGIN 2: The slot is not the token.
-                store_row_warp(t, row_of(relay.rows, t, slot), source, token_of(label), to);
+                store_row_warp(t, row_of(relay.rows, t, slot), source, int(k), to);
// === wrong_to_all_mates: 2: for the ranks of this node
// EXERCISE-BEGIN 2: To all ranks of the node.
-            for (unsigned left = wanted_of(label); left; left &= left - 1) {
+            for (unsigned left = (1u << t.mates) - 1; left; left &= left - 1) {
// === wrong_waits_for_the_first: 2: Wait for each slot's own label
// EXERCISE-BEGIN 2: Only the first message is waited for.
-            if (!ep::wait_until_ge_warp(relay.labels + slot, 1, {ep::kPhaseDispatch, source, k})) return false;
+            if (k == 0 && !ep::wait_until_ge_warp(relay.labels + slot, 1, {ep::kPhaseDispatch, source, k})) return false;
// === wrong_descending: 3, 4: Ascending ranks
// EXERCISE-BEGIN 3: The other way round: other last bits.
-        for (unsigned left = wanted; left; left &= left - 1) total += ep::peer_ptr(row, first + __ffs(left) - 1)[i];
+        for (int r = t.mates - 1; r >= 0; --r) {
+            if (wanted >> r & 1) total += ep::peer_ptr(row, first + r)[i];
+        }
// === wrong_all_mates: 3, 4: sums of rank
// EXERCISE-BEGIN 3: Also those that have no result of this token.
-        for (unsigned left = wanted; left; left &= left - 1) total += ep::peer_ptr(row, first + __ffs(left) - 1)[i];
+        for (int r = 0; r < t.mates; ++r) total += ep::peer_ptr(row, first + r)[i];
// === wrong_my_own_copy: 3, 4: sums of rank
// EXERCISE-BEGIN 3: Adds this rank's own row again and again.
-        for (unsigned left = wanted; left; left &= left - 1) total += ep::peer_ptr(row, first + __ffs(left) - 1)[i];
+        for (unsigned left = wanted; left; left &= left - 1) total += row[i];
// === wrong_no_syncwarp: 3, 4: missing __syncwarp
// EXERCISE-BEGIN 3: One lane posts what the others have not stored.
-    __syncwarp();  // all lanes have stored their part of the sum
// === wrong_one_staging: 4: One place in staging for each sum
// EXERCISE-BEGIN 4: The next sum overwrites what the NIC has not read.
-            float* const sum = row_of(staging.rows, t, slot);
+            float* const sum = row_of(staging.rows, t, 0);
@@
             }
+            __syncwarp();
// === wrong_slots_of_their_node: 4: the slot of your node in the partner's back
// EXERCISE-BEGIN 4: The slots of the source's node.
-            const int64_t slot = int64_t(node) * t.count + k, theirs = int64_t(here) * t.count + k;
+            const int64_t slot = int64_t(node) * t.count + k, theirs = int64_t(node) * t.count + k;
@@
             }
+            __syncwarp();
// === wrong_slot_of_the_sum: 4: the slot of your node in the partner's back
// EXERCISE-BEGIN 4: Token numbers, where the source looks at the first slots.
-            const int64_t slot = int64_t(node) * t.count + k, theirs = int64_t(here) * t.count + k;
+            const int64_t slot = int64_t(node) * t.count + k;
@@
             const uint64_t label = relay.labels[slot];
+            const int64_t theirs = int64_t(here) * t.count + token_of(label);
@@
             }
+            __syncwarp();
// === wrong_token_of_8_bits: 1: labels in the slots for partners
// EXERCISE-BEGIN 1: Token 256 goes as token 0.
-                                   relay.labels + slot, label_of(token, wanted), partner_in(t, node), 0,
+                                   relay.labels + slot, label_of(token & 255, wanted), partner_in(t, node), 0,
// === wrong_a_lane_per_node: 1: One message per token and other node
// EXERCISE-BEGIN 1: Each lane has one node: the 33rd has none.
-    for (int node = ep::lane_id(); node < num_nodes(t); node += ep::kWarpSize) {
-        if (node == here) continue;
+    if (const int node = ep::lane_id(); node < num_nodes(t) && node != here) {
// === wrong_label_of_1: 2: DeadlockError
// EXERCISE-BEGIN 2: Token 0 for the first rank of the node alone has the label 1.
-            if (!ep::wait_until_ge_warp(relay.labels + slot, 1, {ep::kPhaseDispatch, source, k})) return false;
+            if (!ep::wait_until_ge_warp(relay.labels + slot, 2, {ep::kPhaseDispatch, source, k})) return false;
// === wrong_the_last_wait_decides: 2: never came, those behind it did, and forward_warp returned true
// EXERCISE-BEGIN 2: Goes on after a wait that failed, and the last one decides.
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
// EXERCISE-BEGIN 3: A sum that begins with its first number: -0.0 stays -0.0.
-        float total = 0.0f;
-        for (unsigned left = wanted; left; left &= left - 1) total += ep::peer_ptr(row, first + __ffs(left) - 1)[i];
+        float total = ep::peer_ptr(row, first + __ffs(wanted) - 1)[i];
+        for (unsigned left = wanted & (wanted - 1); left; left &= left - 1) total += ep::peer_ptr(row, first + __ffs(left) - 1)[i];
// === wrong_token_of_16_bits: 1: labels in the slots for partners|rows handed on
// EXERCISE-BEGIN 1: The label has 32 bits for the token.
-                                   relay.labels + slot, label_of(token, wanted), partner_in(t, node), 0,
+                                   relay.labels + slot, label_of(static_cast<uint16_t>(token), wanted), partner_in(t, node), 0,
