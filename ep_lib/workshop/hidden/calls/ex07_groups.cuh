// What the test of 07_groups calls of the piece.
#include "piece.cuh"

namespace given {

// Mirrors the piece's.
struct GroupItem {
    int owner, group;
};

}  // namespace given

#ifdef GRADER_PIECE
EP_DEVICE given::GroupItem plain(const ep::GroupItem& item) { return {item.owner, item.group}; }
#endif

PIECE(int, num_groups, (int rows, int group_rows), ep::num_groups(rows, group_rows))
PIECE(bool, completes_group, (int index, int rows, int group_rows), ep::completes_group(index, rows, group_rows))
PIECE(given::GroupItem, group_item, (int item), plain(ep::group_item(item)))
PIECE(void, signal_group, (uint64_t* arrived, int max_groups, int group, int owner, uint64_t epoch),
      ep::signal_group(arrived, max_groups, group, owner, epoch))
PIECE(bool, wait_for_group, (uint64_t* arrived, int max_groups, int group, int from, uint64_t epoch),
      ep::wait_for_group(arrived, max_groups, group, from, epoch))
