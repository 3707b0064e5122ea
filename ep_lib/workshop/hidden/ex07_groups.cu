// The other half of every test of exercise 07_groups: rows go home in groups, over several epochs. What is not the
// learner's is the grader's own. Block 0 sends, block 1 receives: one thread of each, while the others do something else.
#include <calls/ex07_groups.cuh>
#include <grader.cuh>

namespace {

// The numbers of one run; ex07_groups.py sets others than these defaults (job_of).
struct Job {
    int64_t rows = 7, group_rows = 3;  // of each rank on each other rank
    int64_t max_groups = 6;
    int64_t row_words = 5;
    int64_t items = 0;     // task 2
    int64_t delay = 0;     // how often the sender lets others run before each group
    int64_t ahead = 0;     // by how much the grader's signals are ahead: 0 or 1
    int64_t learners = 0;  // which functions are the learner's: bits of Part
    int64_t unit = 1;      // the step of epochs: 1, or more than 32 bits hold
    int64_t silent = 0;    // nothing is sent: waits fail
};

enum Part { kGroups = 1, kOrder = 2, kSignal = 4, kWait = 8 };

constexpr int kManyGroups = (1 << 16) + 464;  // more than 16 bits count

EP_DEVICE int groups_of(const Job& job) {
    if (job.learners & kGroups) return piece_num_groups(static_cast<int>(job.rows), static_cast<int>(job.group_rows));
    return static_cast<int>((job.rows - 1) / job.group_rows + 1);
}

EP_DEVICE void tell(const Job& job, uint64_t* arrived, int group, int owner, uint64_t epoch) {
    epoch *= 2 * job.unit;  // so that a signal may be one ahead and still not be that of the next launch
    if (job.learners & kSignal)
        return piece_signal_group(arrived, static_cast<int>(job.max_groups), group, owner, epoch);
    ep::st_release_sys_u64(ep::peer_ptr(arrived + ep::rank() * job.max_groups + group, owner), epoch + job.ahead);
}

EP_DEVICE bool wait(const Job& job, uint64_t* arrived, int group, int from, uint64_t epoch) {
    epoch *= 2 * job.unit;
    if (job.learners & kWait) {
        return piece_wait_for_group(arrived, static_cast<int>(job.max_groups), group, from, epoch);
    }
    const uint64_t* const flag = arrived + from * job.max_groups + group;
    while (ep::ld_acquire_sys_u64(flag) < epoch) {  // role: the receiver, which waits for your signal
    }
    return true;
}

struct Memory {
    uint64_t *returned, *arrived;
    const uint64_t* source;
    uint64_t* out;
    int* noted;
};

EP_DEVICE void play(int task, const Job& job, const Memory& my, int epoch) {
    const int ranks = ep::num_ranks(), me = ep::rank(), rows = static_cast<int>(job.rows);
    if (blockIdx.x == 0 && epoch == 1 && (job.learners & kGroups)) {
        my.noted[0] = groups_of(job);
        my.noted[1 + rows] = piece_num_groups(0, static_cast<int>(job.group_rows));
        my.noted[2 + rows] =
            piece_num_groups(kManyGroups * static_cast<int>(job.group_rows), static_cast<int>(job.group_rows));
        for (int i = 0; i < rows; ++i)
            my.noted[1 + i] = piece_completes_group(i, rows, static_cast<int>(job.group_rows));
    }
    if (blockIdx.x == 0 && epoch == 1 && (job.learners & kOrder)) {
        for (int item = 0; item < job.items; ++item) {
            const given::GroupItem next = piece_group_item(item);
            my.noted[2 * item] = next.owner;
            my.noted[2 * item + 1] = next.group;
        }
    }
    if (task <= 2) return;
    if (job.silent && blockIdx.x == 0) return;
    uint64_t* const area = my.returned + epoch % 2 * ranks * job.rows * job.row_words;
    const int64_t group_words = job.group_rows * job.row_words, all = job.rows * job.row_words;
    const int groups = groups_of(job);
    for (int other = 1; other < ranks; ++other) {
        const int peer = (me + other) % ranks;
        for (int group = 0; group < groups; ++group) {
            const int64_t begin = group * group_words, end = min(begin + group_words, all);
            if (blockIdx.x == 0) {
                let_others_run(job.delay);
                uint64_t* const theirs = ep::peer_ptr(area + me * all, peer);
                for (int64_t i = begin; i < end; ++i) {
                    theirs[i] = my.source[(epoch - 1) * all + i];  // role: the sender, which writes the rows
                }
                tell(job, my.arrived, group, peer, epoch);
            } else {
                if (!wait(job, my.arrived, group, peer, epoch)) {
                    my.noted[0] = 1;
                    my.noted[1] = blames({ep::kPhaseCombine, peer, group});
                    return forget_fault();
                }
                uint64_t* const out = my.out + ((epoch - 1) * ranks + peer) * all;
                for (int64_t i = begin; i < end; ++i) {
                    out[i] = area[peer * all + i];  // role: the receiver, which reads the rows
                }
            }
        }
    }
}

constexpr int kAlone = 5;  // the thread that plays

}  // namespace

//   returned  symmetric [2, ranks, rows, row_words]: by the parity of the epoch
//   arrived   symmetric [ranks, max_groups]
//   source    [epochs, rows, row_words]        out  [epochs, ranks, rows, row_words]
//   noted     task 1: groups, and for each row whether it completes one, and
//   the groups of no rows and of kManyGroups * group_rows; 2: [items, 2] owner and group
extern "C" __global__ void examine(int task, uint64_t* returned, uint64_t* arrived, const uint64_t* source,
                                   uint64_t* out, int* noted, const int64_t* numbers, int epoch) {
    if (task == 0) return canary(noted);
    if (ep::thread_in_block() == kAlone) {
        play(task, *reinterpret_cast<const Job*>(numbers), {returned, arrived, source, out, noted}, epoch);
    }
    meet_at_the_end();
}
