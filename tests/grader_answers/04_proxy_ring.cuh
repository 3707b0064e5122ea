// === right_by_hand
// EXERCISE-BEGIN 1: Raw polling, and word by word.
(void)peer;
while (ld_acquire_sys_u64(&ring.credits->taken) + ring.num_slots <= number) {
}
return true;
// EXERCISE-BEGIN 2
ProxyCommand* const slot = &ring.slots[number % ring.num_slots];
const uint64_t* const from = reinterpret_cast<const uint64_t*>(&command);
uint64_t* const to = reinterpret_cast<uint64_t*>(slot);
for (int i = 0; i < 6; ++i) to[i] = from[i];
__threadfence_system();
st_relaxed_sys_u64(&slot->number, number + 1);
// EXERCISE-BEGIN 4
const int lane = lane_id();
unsigned long long first = 0;
if (lane == 0 && count > 0) first = atomicAdd(reinterpret_cast<unsigned long long*>(&ring.producer->head), count);
first = __shfl_sync(kFullWarp, first, 0);
bool ok = true;
if (lane < count) ok = proxy_wait_for_room(ring, first + lane, command.peer);
if (number != nullptr) *number = first + lane;
if (ok && lane < count) proxy_fill(ring, command, first + lane);
return __all_sync(kFullWarp, ok) != 0;
// EXERCISE-BEGIN 5a
while (ld_acquire_sys_u64(&ring.credits->completed) <= number) {
}
return true;
// === right_in_library_words
// EXERCISE-BEGIN 1: The waits of <ep/wait.cuh>; a flush that waits for the last command.
const uint64_t needed = number < ring.num_slots ? 0 : number - ring.num_slots + 1;
return wait_until_ge(&ring.credits->taken, needed, {kPhaseProxy, peer, int64_t(number % ring.num_slots)});
// EXERCISE-BEGIN 3
uint64_t mine = atom_add_relaxed_gpu_u64(&ring.producer->head, 1);
if (number) *number = mine;
const bool ok = proxy_wait_for_room(ring, mine, command.peer);
if (ok) proxy_fill(ring, command, mine);
return ok;
// EXERCISE-BEGIN 5b
const uint64_t pushed = ld_relaxed_gpu_u64(&ring.producer->head);
return pushed == 0 || proxy_wait(ring, pushed - 1);
// === wrong_one_credit_too_few: 1, 3, 4: commands were lost|DeadlockError
// EXERCISE-BEGIN 1: Off by one: the command before the one that lay in the slot was taken, not that one.
if (number < ring.num_slots) return true;
return wait_until_ge(&ring.credits->taken, number - ring.num_slots, {kPhaseProxy, peer, -1});
// === wrong_one_credit_too_many: 1, 3, 4: has dealt with 0 commands of a ring, and 1 were expected
// EXERCISE-BEGIN 1: Waits until the proxy is further than it can be.
return wait_until_ge(&ring.credits->taken, number + 1 < ring.num_slots ? 0 : number - ring.num_slots + 2,
                     {kPhaseProxy, peer, -1});
// === wrong_wraps_around: 1, 3, 4: its proxy (proxy): the signal is 0, and 18446
// EXERCISE-BEGIN 1: The first commands wait for about 2 to the power 64 credits.
return wait_until_ge(&ring.credits->taken, number - ring.num_slots + 1, {kPhaseProxy, peer, -1});
// === wrong_relaxed_credit: 1, 3, 4: after your function found room
// EXERCISE-BEGIN 1: Sees the credit, and is ordered behind nothing.
(void)peer;
while (ld_relaxed_sys_u64(&ring.credits->taken) + ring.num_slots <= number) {
}
return true;
// === wrong_number_first: 2, 3, 4: commands were lost|words that are not theirs|before the data was there
// EXERCISE-BEGIN 2: The number, and then the command that it announces.
     ProxyCommand* const slot = ring.slots + number % ring.num_slots;
+    st_release_sys_u64(&slot->number, number + 1);
@@
-    slot->place = detail::call_site();
-    st_release_sys_u64(&slot->number, number + 1);
// === wrong_plain_number: 2, 3, 4: stored without release
// EXERCISE-BEGIN 2: All in order in the program, and in no order for anyone else.
ProxyCommand copy = command;
copy.number = number + 1;
ring.slots[number % ring.num_slots] = copy;
// === wrong_number_itself: 2, 3, 4: it says number + 1
// EXERCISE-BEGIN 2: Says number, not number + 1: an empty slot looks like command 0.
-    slot->place = detail::call_site();
-    st_release_sys_u64(&slot->number, number + 1);
+    st_release_sys_u64(&slot->number, number);
// === wrong_forgets_a_word: 2, 3, 4: with words that are not theirs
// EXERCISE-BEGIN 2: The peer and the queue pair stay those of the command before.
-    slot->peer = command.peer;
-    slot->queue_pair = command.queue_pair;
-    slot->place = detail::call_site();
// === wrong_reads_then_adds: 3: One addition reserves a number
// EXERCISE-BEGIN 3: Two threads read the same head.
-    const uint64_t mine = atom_add_relaxed_gpu_u64(&ring.producer->head, 1);
+    const uint64_t mine = ld_relaxed_gpu_u64(&ring.producer->head);
+    atom_add_relaxed_gpu_u64(&ring.producer->head, 1);
// === wrong_tells_the_next: 3: told its caller number
// EXERCISE-BEGIN 3: Tells the caller the number of the next command.
-    if (number != nullptr) *number = mine;
+    if (number != nullptr) *number = mine + 1;
// === wrong_does_not_wait: 3: wait for its slot
// EXERCISE-BEGIN 3: A push that takes its slot, free or not.
-    if (!proxy_wait_for_room(ring, mine, command.peer)) return false;
// === wrong_each_lane_for_itself: 4: do not follow each other in the order of the lanes|room for the last of
// EXERCISE-BEGIN 4: Right, but other warps' commands come in between.
bool ok = true;
if (lane_id() < count) ok = proxy_push(ring, command, number);
return __all_sync(kFullWarp, ok) != 0;
// === wrong_room_for_the_first: 4: room for the last of them
// EXERCISE-BEGIN 4: One look at the credit, for the first lane's slot: the others may be full.
-        ok = proxy_wait_for_room(ring, first + count - 1, command.peer);
+        ok = proxy_wait_for_room(ring, first, command.peer);
// === wrong_no_syncwarp: 4: missing __syncwarp
// EXERCISE-BEGIN 4: The shuffle hands over the number, and not what lane 0 acquired.
-    __syncwarp();  // all lanes have lane 0's credit now, and see its data
// === wrong_all_lanes_fill: 4: One addition for all lanes
// EXERCISE-BEGIN 4: Also the lanes that have no command.
-    if (lane == 0 && count > 0) {
-        first = atom_add_relaxed_gpu_u64(&ring.producer->head, count);
-        ok = proxy_wait_for_room(ring, first + count - 1, command.peer);
+    if (lane == 0) {
+        first = atom_add_relaxed_gpu_u64(&ring.producer->head, 32);
+        ok = proxy_wait_for_room(ring, first + 31, command.peer);
@@
-    if (ok && lane < count) proxy_fill(ring, command, first + lane);
+    if (ok) proxy_fill(ring, command, first + lane);
// === wrong_waits_for_taken: 5: What is taken may not be done yet
// EXERCISE-BEGIN 5a: Taken is not done.
return wait_until_ge(&ring.credits->taken, number + 1, {kPhaseProxy, -1, -1});
// === wrong_one_too_few: 5: what its command brought was not there
// EXERCISE-BEGIN 5a: Waits for the command before.
return wait_until_ge(&ring.credits->completed, number, {kPhaseProxy, -1, -1});
// === wrong_flush_of_taken: 5: What is taken may not be done yet
// EXERCISE-BEGIN 5b: Waits until all is taken.
return wait_until_ge(&ring.credits->taken, ld_relaxed_gpu_u64(&ring.producer->head), {kPhaseProxy, -1, -1});
// === wrong_room_in_32_bits: 1, 3, 4: no slot is filled|words that are not theirs|commands were lost|never|gave up|in vain
// EXERCISE-BEGIN 1: A ring that has served 2^32 commands.
-    const uint64_t needed = number - ring.num_slots + 1;
+    const uint32_t needed = number - ring.num_slots + 1;
// === wrong_gpu_scope: 2, 3, 4: the smallest that reaches
// EXERCISE-BEGIN 2: The proxy is on a CPU.
-    slot->place = detail::call_site();
-    st_release_sys_u64(&slot->number, number + 1);
+    st_release_gpu_u64(&slot->number, number + 1);
// === wrong_fills_after_the_limit: 3: a slot was filled that was not free
// EXERCISE-BEGIN 3: No room, and the slot is filled all the same.
const uint64_t mine = atom_add_relaxed_gpu_u64(&ring.producer->head, 1);
if (number != nullptr) *number = mine;
const bool ok = proxy_wait_for_room(ring, mine, command.peer);
proxy_fill(ring, command, mine);
return ok;
// === wrong_slot_of_8_bits: 2, 3: DeadlockError|commands
// EXERCISE-BEGIN 2: Command 256 takes slot 0 of 512.
-    ProxyCommand* const slot = ring.slots + number % ring.num_slots;
+    ProxyCommand* const slot = ring.slots + static_cast<uint8_t>(number % ring.num_slots);
@@
-    slot->place = detail::call_site();
// === wrong_tells_null: 3: KernelFault
// EXERCISE-BEGIN 3: `number` may be null, and is where the number is not asked for.
*number = atom_add_relaxed_gpu_u64(&ring.producer->head, 1);
if (!proxy_wait_for_room(ring, *number, command.peer)) return false;
proxy_fill(ring, command, *number);
return true;
// === wrong_done_always: 5: nothing that waited for it said so
// EXERCISE-BEGIN 5a: Waits, and says that it is done whatever the wait has said.
wait_until_ge(&ring.credits->completed, number + 1, {kPhaseProxy, -1, -1});
return true;
// === wrong_flush_is_always_true: 5: nothing that waited for it said so
// EXERCISE-BEGIN 5b: The same in a flush.
wait_until_ge(&ring.credits->completed, ld_relaxed_gpu_u64(&ring.producer->head), {kPhaseProxy, -1, -1});
return true;
// === wrong_gives_the_number_back: 3: a number that was reserved stays so
// EXERCISE-BEGIN 3: After the limit the next thread gets the same number.
-    if (!proxy_wait_for_room(ring, mine, command.peer)) return false;
+    if (!proxy_wait_for_room(ring, mine, command.peer)) {
+        atom_add_relaxed_gpu_u64(&ring.producer->head, ~0ull);
+        return false;
+    }
// === wrong_queue_pair_of_8_bits: 2: with words that are not theirs
// EXERCISE-BEGIN 2: A queue pair has 16 bits.
-    slot->queue_pair = command.queue_pair;
-    slot->place = detail::call_site();
+    slot->queue_pair = static_cast<uint8_t>(command.queue_pair);
// === wrong_peer_of_8_bits: 2: with words that are not theirs
// EXERCISE-BEGIN 2: A peer has 16 bits.
-    slot->peer = command.peer;
+    slot->peer = static_cast<uint8_t>(command.peer);
@@
-    slot->place = detail::call_site();
// === wrong_source_of_32_bits: 2: with words that are not theirs
// EXERCISE-BEGIN 2: An address has 64 bits.
-    slot->source = command.source;
+    slot->source = static_cast<uint32_t>(command.source);
@@
-    slot->place = detail::call_site();
// === wrong_says_minus_one: 1, 3, 4: names peer -1
// EXERCISE-BEGIN 1: The report of its wait names no peer.
if (number < ring.num_slots) return true;
return wait_until_ge(&ring.credits->taken, number - ring.num_slots + 1, {kPhaseProxy, -1, -1});
// === wrong_peer_of_nobody: 3: names peer 0
// EXERCISE-BEGIN 3: The report of its wait names rank 0, also where the command is for another one.
-    if (!proxy_wait_for_room(ring, mine, command.peer)) return false;
+    if (!proxy_wait_for_room(ring, mine, 0)) return false;
// === wrong_wait_of_the_warp: 5: wait in __syncwarp|waits in __syncwarp
// EXERCISE-BEGIN 5a: One thread waits, and the other lanes are somewhere else.
__syncwarp();
return wait_until_ge(&ring.credits->completed, number + 1, {kPhaseProxy, -1, -1});
// === wrong_number_0_untold: 3: told its caller number -1
// EXERCISE-BEGIN 3: The first command has number 0, which is told as any other.
-    if (number != nullptr) *number = mine;
+    if (number != nullptr && mine) *number = mine;
// === wrong_room_for_none: 4: Counts are unsigned
// EXERCISE-BEGIN 4: Waits for room for the last of no commands, which is number -1.
-    if (lane == 0 && count > 0) {
+    if (lane == 0) {
