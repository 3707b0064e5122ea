// The other half of every test of exercise 01_board: writers and readers around the learner's functions. What is not the
// learner's is the grader's own.
#include <calls/ex01_board.cuh>
#include <grader.cuh>

namespace {

using given::Board;

enum Part { kBegin = 1, kPublish = 2, kRead = 4 };

// The indices of `told` and of `wrong`; of several runs, the largest value of each counts.
enum Told { kBegan, kReads };
enum Wrong { kTogether, kTorn, kNoEdition, kTrace, kChanged, kLeft, kLeftWords };

constexpr int kAfterwards = -1;  // in place of a task

constexpr uint64_t kBefore = 7;  // the content of *number before a call

constexpr uint64_t kStep = 1 << 20;  // word i of the edition that ends with number n is n * kStep + i, so one may be 0

// The numbers of one run; ex01_board.py sets others than these defaults (job_of).
struct Job {
    int64_t learners = 0;  // bits of Part
    int64_t count = 0;     // words
    int64_t home = 0;
    int64_t actor = -1;   // the rank that does everything in turn; -1: all ranks do something at the same time
    int64_t writers = 0;  // ranks 0 to writers - 1 write, all others read
    int64_t first = 0;    // the number of the edition at the beginning
    int64_t ahead = 0;    // with several editions: added to the number at which the grader's writer ends
};

EP_DEVICE bool begin(const Job& job, const Board& board, uint64_t* number) {
    if (job.learners & kBegin) return piece_try_begin(board, number);
    uint64_t* const edition = ep::peer_ptr(board.edition, board.home);
    const uint64_t now = ep::ld_relaxed_sys_u64(edition);
    if (now % 2 != 0 || ep::atom_cas_relaxed_sys_u64(edition, now, now + 1) != now) return false;
    *number = now + 1;
    return true;
}

EP_DEVICE void end(const Job& job, const Board& board, const uint64_t* words, uint64_t number) {
    if (job.learners & kPublish) return piece_publish(board, words, number);
    ep::fence_sys();
    for (int i = 0; i < board.count; ++i) {
        ep::st_relaxed_sys_u64(ep::peer_ptr(board.words, board.home) + i, words[i]);  // role: the writer of the words
    }
    ep::st_release_sys_u64(ep::peer_ptr(board.edition, board.home), number + 1 + job.ahead);  // role: the writer
}

EP_DEVICE bool read(const Job& job, const Board& board, uint64_t* out, uint64_t* number) {
    if (job.learners & kRead) return piece_try_read(board, out, number);
    const uint64_t* const edition = ep::peer_ptr(board.edition, board.home);
    *number = ep::ld_acquire_sys_u64(edition);
    for (int i = 0; i < board.count; ++i) {
        out[i] = ep::ld_relaxed_sys_u64(ep::peer_ptr(board.words, board.home) + i);  // role: the reader of the words
    }
    ep::fence_sys();
    return *number % 2 == 0 && ep::ld_relaxed_sys_u64(edition) == *number;
}

EP_DEVICE void words_of(uint64_t number, int count, uint64_t* words) {
    for (int i = 0; i < count; ++i) words[i] = number * kStep + i;
}

// All at the same time: a rank writes an edition, or looks once.
EP_DEVICE void at_once(const Job& job, const Board& board, uint64_t* inside, uint64_t* mine, uint64_t* told,
                       uint64_t* wrong) {
    uint64_t number = kBefore;
    if (ep::rank() < job.writers) {
        if (!begin(job, board, &number)) {
            wrong[kTrace] = number != kBefore;
            return;
        }
        told[kBegan] = 1;
        if (job.writers > 1) {
            uint64_t* const count = ep::peer_ptr(inside, 0);
            wrong[kTogether] = ep::atom_add_acq_rel_sys_u64(count, 1);  // role: a writer that has begun
            ep::atom_add_acq_rel_sys_u64(count, ~uint64_t(0));
        }
        words_of(number + 1 + job.ahead, board.count, mine);
        if (job.writers > 1 && (job.learners & kPublish)) {  // no earlier writer changes the number now
            wrong[kChanged] = ep::ld_relaxed_sys_u64(ep::peer_ptr(board.edition, board.home)) != number;
        }
        end(job, board, mine, number);
    } else {
        if (!read(job, board, mine, &number)) return;
        told[kReads] = 1;
        wrong[kNoEdition] = number % 2;
        for (int i = 0; i < board.count; ++i) wrong[kTorn] |= mine[i] != number * kStep + i;
    }
}

// When all ranks are done: whether the board holds the edition of the last writer that began.
EP_DEVICE void afterwards(const Job& job, const Board& board, const uint64_t* told, uint64_t* wrong) {
    uint64_t number = job.first;
    for (int rank = 0; rank < ep::num_ranks(); ++rank) number += 2 * ep::peer_ptr(told, rank)[kBegan];
    wrong[kLeft] = *board.edition != number;
    for (int i = 0; i < board.count; ++i) wrong[kLeftWords] |= board.words[i] != number * kStep + i;
}

// One rank alone, in turn: records the result of each call.
EP_DEVICE void in_turn(const Job& job, const Board& board, uint64_t* mine, uint64_t* noted) {
    uint64_t number = kBefore, again;
    for (int round = 0; round < 2; ++round) {
        number = kBefore;
        words_of(~number, board.count, mine);  // other words than the board's
        *noted++ = read(job, board, mine, &number);
        *noted++ = number;
        for (int i = 0; i < board.count; ++i) *noted++ = mine[i];
        number = kBefore;
        *noted++ = begin(job, board, &number);
        *noted++ = number;
        *noted++ = ep::ld_relaxed_sys_u64(ep::peer_ptr(board.edition, board.home));
        again = kBefore;
        *noted++ = begin(job, board, &again);
        *noted++ = again;
        *noted++ = read(job, board, mine, &again);
        words_of(number + 1, board.count, mine);
        end(job, board, mine, number);
    }
}

}  // namespace

//   board   symmetric [words]      edition, inside   symmetric [1]
//   told    symmetric, see above                 mine    [words]      wrong, noted   see above
extern "C" __global__ void examine(int task, uint64_t* edition, uint64_t* board, uint64_t* inside, uint64_t* told,
                                   uint64_t* mine, uint64_t* wrong, uint64_t* noted, const int64_t* numbers) {
    if (task == 0) return canary(noted);
    const Job& job = *reinterpret_cast<const Job*>(numbers);
    const Board the_board = {edition, board, static_cast<int>(job.count), static_cast<int>(job.home)};
    if (task == kAfterwards) {
        if (ep::rank() == job.home) afterwards(job, the_board, told, wrong);
        return;
    }
    if (ep::thread_in_block() == 0) {
        if (job.actor < 0) {
            at_once(job, the_board, inside, mine, told, wrong);
        } else if (ep::rank() == job.actor) {
            in_turn(job, the_board, mine, noted);
        }
    }
    meet_at_the_end();
}
