// === right_by_hand
// EXERCISE-BEGIN 1a: Without the helpers.
return rows / group_rows + (rows % group_rows != 0);
// EXERCISE-BEGIN 1b
return index == rows - 1 || index % group_rows == group_rows - 1;
// EXERCISE-BEGIN 2
const int others = num_ranks() - 1, group = item / others;
int owner = rank() + 1 + item % others;
if (owner >= num_ranks()) owner -= num_ranks();
return {owner, group};
// EXERCISE-BEGIN 3
fence_sys();
st_relaxed_sys_u64(peer_ptr(arrived, owner) + rank() * max_groups + group, epoch);
// EXERCISE-BEGIN 4
const uint64_t* const flag = arrived + from * max_groups + group;
while (ld_acquire_sys_u64(flag) < epoch) {
    if (has_fault()) return false;
}
return true;
// === right_downwards
// EXERCISE-BEGIN 2: The other ranks downwards.
const int others = num_ranks() - 1;
return {(rank() + num_ranks() - 1 - item % others) % num_ranks(), item / others};
// === wrong_rounds_down: 1: 7 rows in groups of 3 are 2 groups
// EXERCISE-BEGIN 1a: The last rows are in no group.
return rows / group_rows;
// === wrong_one_for_none: 1: no rows in groups of
// EXERCISE-BEGIN 1a: No rows make a group.
return (rows - 1) / group_rows + 1;
// === wrong_fault: 4: the recorded fault is not about a group of combine
// EXERCISE-BEGIN 4: Says that it waits for a signal of its own.
const uint64_t* const flag = arrived + static_cast<int64_t>(from) * max_groups + group;
return wait_until_ge(flag, epoch, {kPhaseSignal, rank(), -1});
// === wrong_only_full: 1: row 6 does not complete its group
// EXERCISE-BEGIN 1b: A last group that is not full is never complete.
return (index + 1) % group_rows == 0;
// === wrong_to_itself: 2: group 0 of rank 0 goes to ranks [0]
// EXERCISE-BEGIN 2: This rank's own rows need no way home.
const int others = num_ranks() - 1, group = item / others;
return {(rank() + item % others) % num_ranks(), group};
// === wrong_all_to_rank_0: 2: two of them to the same one
// EXERCISE-BEGIN 2: Everybody begins with the same owner.
const int others = num_ranks() - 1, i = item % others;
return {i < rank() ? i : i + 1, item / others};
// === wrong_owner_by_owner: 2: items 1 to 1 are of groups [0], not 1
// EXERCISE-BEGIN 2: All groups of one owner, then those of the next.
const int others = num_ranks() - 1;
return {(rank() + 1 + item / others % others) % num_ranks(), item % others};
// === wrong_relaxed: 3: stored without release
// EXERCISE-BEGIN 3: Nothing says that the rows came before.
uint64_t* const flag = arrived + static_cast<int64_t>(rank()) * max_groups + group;
st_relaxed_sys_u64(peer_ptr(flag, owner), epoch);
// === wrong_gpu_scope: 3: sys is the smallest that reaches a thread on another rank
// EXERCISE-BEGIN 3: The owner is on another GPU.
uint64_t* const flag = arrived + static_cast<int64_t>(rank()) * max_groups + group;
st_release_gpu_u64(peer_ptr(flag, owner), epoch);
// === wrong_entry_of_the_owner: 3: Entry [rank()][group] of the owner's copy
// EXERCISE-BEGIN 3: The entry of the owner, not of the sender.
uint64_t* const flag = arrived + static_cast<int64_t>(owner) * max_groups + group;
st_release_sys_u64(peer_ptr(flag, owner), epoch);
// === wrong_adds: 3: was not there after the wait|the entry of rank
// EXERCISE-BEGIN 3: An epoch is stored, not counted.
uint64_t* const flag = arrived + static_cast<int64_t>(rank()) * max_groups + group;
red_add_release_sys_u64(peer_ptr(flag, owner), epoch);
// === wrong_equal: 4: until it is at least the epoch
// EXERCISE-BEGIN 4: A sender that is ahead never comes.
const uint64_t* const flag = arrived + static_cast<int64_t>(from) * max_groups + group;
return wait_until_eq(flag, epoch, {kPhaseCombine, from, group});
// === wrong_relaxed_look: 4: loaded without acquire
// EXERCISE-BEGIN 4: Sees the epoch, and perhaps not the rows.
const uint64_t* const flag = arrived + static_cast<int64_t>(from) * max_groups + group;
while (ld_relaxed_sys_u64(flag) < epoch) {
}
return true;
// === wrong_other_table: 4: Entry [from][group] of this rank's own copy
// EXERCISE-BEGIN 4: The sender's table, not one's own.
const uint64_t* const flag = arrived + static_cast<int64_t>(rank()) * max_groups + group;
return wait_until_ge(peer_ptr(flag, from), epoch, {kPhaseCombine, from, group});
// === wrong_epoch_of_32_bits: 3: DeadlockError|KernelTimeout|the entry of rank
// EXERCISE-BEGIN 3: An epoch has 64 bits.
uint64_t* const flag = arrived + static_cast<int64_t>(rank()) * max_groups + group;
st_release_sys_u64(peer_ptr(flag, owner), static_cast<uint32_t>(epoch));
// === wrong_has_come_always: 4: False after the limit
// EXERCISE-BEGIN 4: True also for a group that did not come.
const uint64_t* const flag = arrived + static_cast<int64_t>(from) * max_groups + group;
wait_until_ge(flag, epoch, {kPhaseCombine, from, group});
return true;
// === wrong_group_of_8_bits: 3: DeadlockError|the entry of rank
// EXERCISE-BEGIN 3: Group 256 is told as group 0.
uint64_t* const flag = arrived + static_cast<int64_t>(rank()) * max_groups + static_cast<uint8_t>(group);
st_release_sys_u64(peer_ptr(flag, owner), epoch);
// === wrong_item_of_8_bits: 2: are of groups [0], not 256
// EXERCISE-BEGIN 2: Item 256 is item 0 again.
+    item = static_cast<uint8_t>(item);
     const int others = num_ranks() - 1, group = item / others;
// === wrong_signals_as_a_warp: 3: waits in __syncwarp
// EXERCISE-BEGIN 3: One thread calls, and waits for its warp.
     uint64_t* const flag = arrived + static_cast<int64_t>(rank()) * max_groups + group;
+    __syncwarp();
// === wrong_waits_as_a_warp: 4: waits in __syncwarp
    // EXERCISE-BEGIN 4: One thread waits, and then for its warp.
    const uint64_t* const flag = arrived + static_cast<int64_t>(from) * max_groups + group;
    const bool ok = wait_until_ge(flag, epoch, {kPhaseCombine, from, group});
    __syncwarp();
    return ok;
// === wrong_groups_of_16_bits: 1: are 464 groups
    // EXERCISE-BEGIN 1a: Of 65536 groups and more it counts the rest only.
    // Rounded up.
    return static_cast<uint16_t>((rows + group_rows - 1) / group_rows);
// === wrong_row_of_16_bits: 1: its group
    // EXERCISE-BEGIN 1b: Rows from 65536 on are others.
    // There are no more rows, or it is full.
    return index + 1 == rows || static_cast<uint16_t>(index + 1) % group_rows == 0;
// === wrong_signal_of_10_bits: 3: DeadlockError|the entry of rank
    // EXERCISE-BEGIN 3: Group 1024 is told as group 0.
    uint64_t* const flag = arrived + static_cast<int64_t>(rank()) * max_groups + (group & 1023);
    st_release_sys_u64(peer_ptr(flag, owner), epoch);
// === wrong_wait_of_10_bits: 4: was not there after the wait
    // EXERCISE-BEGIN 4: Group 1024 is there as soon as group 0.
    const uint64_t* const flag = arrived + static_cast<int64_t>(from) * max_groups + (group & 1023);
    return wait_until_ge(flag, epoch, {kPhaseCombine, from, group});
