// Exercise 07_groups, version 1. Leave this line: ep_lib reads it.
// Rows go home in groups: which group a row is in, whose turn it is, and the signal that a group is there.
//
// The rows that a rank received from one source lie together, in the source's own order. On the way back they are cut
// into groups of `group_rows` consecutive rows. As soon as a group is written, its owner gets a signal, and adds up
// tokens while later groups are still with their experts. <moe/direct/combine_send.cuh> and
// tutorial_kernels/07_combine.cu send and wait with these; exercise 07_groups lets you write them yourself.
//
//     arrived  symmetric [ranks, max_groups]: by the rank that sends, the epoch of the last group that came. Epochs only
//              grow, so nothing is ever cleared.
#pragma once
#include <ep/memory.cuh>
#include <ep/peer.cuh>
#include <ep/wait.cuh>

namespace ep {

// How many groups `rows` rows make; the last one may be shorter.
EP_DEVICE int num_groups(int rows, int group_rows) {
    // TASK 1a (2 points for 1a and 1b together): rows in groups
    // Rows over group_rows, rounded up.
    assert(!"Task 1a is still to do: rows in groups");
    return 0;
    // end of TASK 1a
}

// Whether row `index` is the last one of its group, if there are `rows` rows.
EP_DEVICE bool completes_group(int index, int rows, int group_rows) {
    // TASK 1b (2 points for 1a and 1b together): rows in groups
    // Two cases: the group is full, or there are no more rows.
    assert(!"Task 1b is still to do: rows in groups");
    return false;
    // end of TASK 1b
}

struct GroupItem {
    int owner;  // the rank to which the group returns: never this one
    int group;
};

// The `item`th group that this rank sends, counting from 0, in the order in which they are sent. The items
// g * (num_ranks() - 1) up to (g + 1) * (num_ranks() - 1) - 1 are group g of every other rank, once each. No two ranks send
// the same item to the same owner, so that all links are busy all the time.
EP_DEVICE GroupItem group_item(int item) {
    // TASK 2 (4 points): whose turn it is
    // The group is the easy part: there are num_ranks() - 1 items of each. For the owner, think of item 0 on all
    // ranks at once: if everybody begins with rank 0, one link carries everything and the others idle. Counted
    // from oneself, rank() + 1 + i for i = 0 to num_ranks() - 2 (modulo num_ranks()) names each other rank once,
    // and at any i all ranks name different ones.
    assert(!"Task 2 is still to do: whose turn it is");
    return {0, 0};
    // end of TASK 2
}

// One thread, after all of the group has been written: tells the owner that group `group` of this rank is there.
EP_DEVICE void signal_group(uint64_t* arrived, int max_groups, int group, int owner, uint64_t epoch) {
    // TASK 3 (3 points): tell the owner
    // The table is symmetric: which entry of the owner's copy is this rank's and this group's? Its rows were
    // written before by plain stores, and whoever sees the epoch will read them: so how must the epoch be
    // stored?
    assert(!"Task 3 is still to do: tell the owner");
    // end of TASK 3
}

// One thread waits for group `group` of rank `from`, and may then read its rows. False if it did not come in time.
EP_DEVICE bool wait_for_group(const uint64_t* arrived, int max_groups, int group, int from, uint64_t epoch) {
    // TASK 4 (3 points): wait for a group
    // This rank's own table, the entry of `from`. wait_until_ge(flag, epoch, {kPhaseCombine, from, group}) has
    // the acquire and the time limit. Why not "equal to the epoch"? The sender may be an epoch ahead.
    assert(!"Task 4 is still to do: wait for a group");
    return false;
    // end of TASK 4
}

}  // namespace ep
