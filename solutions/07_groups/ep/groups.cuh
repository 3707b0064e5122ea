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
    // EXERCISE-BEGIN 1a
    // Rounded up.
    return (rows + group_rows - 1) / group_rows;
    // EXERCISE-END 1a
}

// Whether row `index` is the last one of its group, if there are `rows` rows.
EP_DEVICE bool completes_group(int index, int rows, int group_rows) {
    // EXERCISE-BEGIN 1b
    // There are no more rows, or it is full.
    return index + 1 == rows || (index + 1) % group_rows == 0;
    // EXERCISE-END 1b
}

struct GroupItem {
    int owner;  // the rank to which the group returns: never this one
    int group;
};

// The `item`th group that this rank sends, counting from 0, in the order in which they are sent. The items
// g * (num_ranks() - 1) up to (g + 1) * (num_ranks() - 1) - 1 are group g of every other rank, once each. No two ranks send
// the same item to the same owner, so that all links are busy all the time.
EP_DEVICE GroupItem group_item(int item) {
    // EXERCISE-BEGIN 2
    const int others = num_ranks() - 1, group = item / others;
    return {(rank() + 1 + (item + group) % others) % num_ranks(), group};
    // EXERCISE-END 2
}

// One thread, after all of the group has been written: tells the owner that group `group` of this rank is there.
EP_DEVICE void signal_group(uint64_t* arrived, int max_groups, int group, int owner, uint64_t epoch) {
    // EXERCISE-BEGIN 3
    uint64_t* const flag = arrived + static_cast<int64_t>(rank()) * max_groups + group;
    st_release_sys_u64(peer_ptr(flag, owner), epoch);
    // EXERCISE-END 3
}

// One thread waits for group `group` of rank `from`, and may then read its rows. False if it did not come in time.
EP_DEVICE bool wait_for_group(const uint64_t* arrived, int max_groups, int group, int from, uint64_t epoch) {
    // EXERCISE-BEGIN 4
    const uint64_t* const flag = arrived + static_cast<int64_t>(from) * max_groups + group;
    return wait_until_ge(flag, epoch, {kPhaseCombine, from, group});
    // EXERCISE-END 4
}

}  // namespace ep
