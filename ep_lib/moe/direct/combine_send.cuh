// Rows on their way back: what <moe/direct/combine_push.cu> and <moe/direct/combine_pull.cu> do with rows that are not in
// symmetric memory.
//
// Rows of one source lie together on this rank, in the source's own order, so they are cut into groups of consecutive
// rows of one source. Warps take groups as they come: TMA loads rows from where the experts left them (<ep/tma.cuh>)
// and stores them where their owner adds them up; then a signal tells the owner that the group is there.
//
// `arrived` needs no clearing, because epochs only grow. A sender waits for no other rank.
#pragma once
#include <ep/groups.cuh>
#include <ep/tma.cuh>
#include <moe/common/epoch.cuh>
#include <moe/direct/packed_rows.cuh>
#include <moe/direct/tokens.cuh>

namespace ep::direct {

struct SendArgs {
    int4* returned;     // symmetric [ranks * max_tokens, row_vectors]
    uint64_t* arrived;  // symmetric [ranks, max_groups]: the epoch of the last group that has come
    int max_tokens;
    int max_groups;  // max_tokens / group_rows, rounded up
    int group_rows;
    int blocks;  // number of blocks that send
    int warps;   // warps of a sending block that send
    int stages;  // rows in flight per sending warp, at least 2
};

// A row on its way back. In shared memory, one per stage.
struct SentRow {
    int owner;       // the rank of its token; -1: there are no more rows
    int send_index;  // the row's index among the owner's rows on this rank
    int row;         // the row's index among all rows on this rank
    int group;       // the group that this row completes; -1: none
};

// Bytes of dynamic shared memory: the rows, and a SentRow and a barrier for each row, of 16 bytes each.
EP_HOST_DEVICE size_t send_rows_shared(int warps, int stages, int row_vectors) {
    return static_cast<size_t>(warps) * stages * row_vectors * sizeof(int4);
}
EP_HOST_DEVICE size_t send_records_shared(int warps, int stages) {
    return warps * stages * (sizeof(SentRow) + 2 * sizeof(uint64_t));
}

namespace detail {

// Hands out rows to one sending warp, group by group, on request. Consecutive groups belong to different owners, so all
// links are busy all the time. All lanes call together and get the same. kWithOwn: also rows of this rank's own tokens.
template <bool kWithOwn = false>
class Groups {
  public:
    EP_DEVICE Groups(uint32_t* next_group, int group_rows, const int* received)
        : next_group_(next_group), group_rows_(group_rows), received_(load_per_rank(received)) {
        int most = 0, before = 0;
        for (int r = 0; r < num_ranks(); ++r) {
            const int rows = of(received_, r);
            if (kWithOwn || r != rank()) most = max(most, rows);
            if (r % kWarpSize == lane_id()) first_row_.of[r / kWarpSize] = before;
            before += rows;
        }
        num_items_ = num_groups(most, group_rows) * (num_ranks() - !kWithOwn);
        take();
    }

    EP_DEVICE SentRow next() {
        while (row_ == end_) {
            const int item = static_cast<int>(__shfl_sync(kFullWarp, ahead_, 0));
            if (item >= num_items_) return {-1, 0, 0, -1};
            take();
            if constexpr (kWithOwn) {  // as group_item, with one owner more
                const int group = item / num_ranks();
                item_ = {(rank() + item + group) % num_ranks(), group};
            } else {
                item_ = group_item(item);
            }
            row_ = item_.group * group_rows_;
            rows_ = of(received_, item_.owner);
            end_ = max(row_, min(row_ + group_rows_, rows_));
        }
        const int send_index = row_++;
        const bool is_last = completes_group(send_index, rows_, group_rows_);
        return {item_.owner, send_index, of(first_row_, item_.owner) + send_index, is_last ? item_.group : -1};
    }

  private:
    EP_DEVICE void take() {
        if (lane_id() == 0) ahead_ = atom_add_relaxed_gpu_u32(next_group_, 1);
    }
    EP_DEVICE static int of(const PerRank& values, int r) {
        int value = 0;
#pragma unroll
        for (int i = 0; i < kRanksPerLane; ++i) {
            const int here = __shfl_sync(kFullWarp, values.of[i], r % kWarpSize);
            if (i == r / kWarpSize) value = here;
        }
        return value;
    }

    uint32_t* const next_group_;
    const int group_rows_;
    PerRank received_, first_row_;  // by owner: the number of its tokens' rows here, and the first of them
    uint32_t ahead_ = 0;            // the next group, taken in advance; only in lane 0
    int num_items_;
    GroupItem item_ = {0, 0};
    int rows_ = 0;  // rows of the group's owner
    int row_ = 0, end_ = 0;
};

}  // namespace detail

// One block: sends rows of `y` until none is left; all are written when it returns. A warp waits for a row's store only
// after it has started the next one. kPacked: as FP8 (<moe/direct/packed_rows.cuh>).
//   memory, records   shared memory as above, at multiples of kTmaSharedAlignment and of 16
//   received          [ranks]   by owner: the number of its tokens' rows here
//   target(row)       where a row goes, as this rank addresses it
template <bool kPacked = false, typename Target>
EP_DEVICE void send_rows(const SendArgs& args, const Workspace& workspace, uint64_t epoch, int4* memory, void* records,
                         const int4* y, int row_vectors, const int* received, const Target& target) {
    if (num_ranks() == 1 || warp_id() >= args.warps) return;
    const int before_mine = warp_id() * args.stages;
    int4* const rows = memory + static_cast<size_t>(before_mine) * row_vectors;
    SentRow* const all_sent = static_cast<SentRow*>(records);
    SentRow* const sent = all_sent + before_mine;
    uint64_t* const barriers = reinterpret_cast<uint64_t*>(all_sent + args.warps * args.stages) + before_mine;
    const uint32_t row_bytes = row_vectors * sizeof(int4);
    const uint32_t sent_bytes = kPacked ? packed_vectors(row_vectors) * sizeof(int4) : row_bytes;
    TmaRing ring(barriers, args.stages);
    detail::Groups<> groups(&workspace.state->next_item, args.group_rows, received);
    const auto fill = [&](int stage) {
        const SentRow next = groups.next();
        if (lane_id() == 0) sent[stage] = next;
        if (next.owner >= 0) {
            tma_load(rows + stage * row_vectors, y + static_cast<int64_t>(next.row) * row_vectors, row_bytes,
                     barriers + stage);
            tma_arrive(barriers + stage, row_bytes);
        }
        __syncwarp();
    };
    const auto signal = [&](const SentRow& out) {
        if (out.group < 0 || lane_id() != 0) return;
        signal_group(args.arrived, args.max_groups, out.group, out.owner, epoch);
    };
    int free_stage = args.stages - 1;
    for (int stage = 0; stage < free_stage; ++stage) fill(stage);
    SentRow before = {-1, 0, 0, -1};
    for (;; ring.next()) {
        const SentRow out = sent[ring.stage];
        if (out.owner < 0) break;
        ring.wait();
        if constexpr (kPacked) {
            pack_row_warp(rows + ring.stage * row_vectors, row_vectors);
            tma_fence();  // TMA reads what lanes wrote, and later loads another row there
            __syncwarp();
        }
        tma_store(target(out), rows + ring.stage * row_vectors, sent_bytes);
        tma_commit();
        tma_wait_written<1>();
        signal(before);
        before = out;
        fill(free_stage);
        free_stage = ring.stage;
    }
    tma_wait_written<0>();
    signal(before);
}

// One warp's knowledge of which groups of rows have come back. All lanes call together.
class Returns {
  public:
    //   complete  [ranks] or null: by rank, the last epoch all of whose groups have come
    //   own       whether this rank's own rows come in groups, too
    EP_DEVICE Returns(const SendArgs& args, const uint64_t* complete, uint64_t epoch, bool own = false)
        : args_(args), complete_(complete), epoch_(epoch), own_(own) {}

    // Waits until the groups with a token's rows are there, and may be read by TMA. False if they did not come in time.
    EP_DEVICE bool wait_for(const detail::PerRank& send_indices) {
        bool failed = false;
#pragma unroll
        for (int i = 0; i < detail::kRanksPerLane; ++i) {
            const int r = lane_id() + i * kWarpSize;
            if (send_indices.of[i] < 0 || (r == rank() && !own_) || has_all_[i]) continue;
            has_all_[i] = complete_ && ld_acquire_sys_u64(complete_ + r) >= epoch_;
            if (has_all_[i]) continue;
            const int group = send_indices.of[i] / args_.group_rows;
            failed |= !wait_for_group(args_.arrived, args_.max_groups, group, r, epoch_);
        }
        const bool any_failed = __any_sync(kFullWarp, failed);
        tma_fence();
        __syncwarp();
        return !any_failed;
    }

  private:
    const SendArgs& args_;
    const uint64_t* const complete_;
    const uint64_t epoch_;
    const bool own_;
    bool has_all_[detail::kRanksPerLane] = {};  // for this lane's ranks: all groups have come, so no flag is read again
};

}  // namespace ep::direct
