// The other half of every test of exercise 06_arrivals: many blocks write into the memory of all ranks, epoch after epoch,
// and end with the learner's functions. What is not the learner's is the grader's own.
#include <calls/ex06_arrivals.cuh>
#include <grader.cuh>

namespace {

using given::LastBlock, given::Signals;

// The numbers of one run; ex06_arrivals.py sets others than these defaults (job_of).
struct Job {
    int64_t words = 40;    // from each rank to each rank
    int64_t kind = 1;      // of the signal
    int64_t masked = 0;    // ranks that are left out
    int64_t ahead = 0;     // by how much the grader's signals are ahead: 0 or 1
    int64_t delay = 0;     // how often block 0 lets others run before it writes
    int64_t late = 0;      // the first of the ranks that are delayed
    int64_t blocks = 3;    // blocks that take part; the grid's further blocks do nothing
    int64_t failing = 0;   // bit b: in a thread of block b (modulo 64), `ok` is false
    int64_t fails = 33;    // the number of that thread
    int64_t learners = 0;  // which functions are the learner's: bits of Part
    int64_t unit = 1;      // the step of epochs and tags: 1, or more than 32 bits hold
    int64_t absent = -1;   // a rank that is not left out, and does not come; -1: none
};

enum Part { kSignal = 1, kWait = 2, kLast = 4 };

constexpr int kKinds = 3;
constexpr int kGaveUp = 1 << 16;  // added to the note of wrong tags by a thread whose wait failed

EP_DEVICE void signal_everybody(const Job& job, const Signals& signals, uint64_t tag) {
    if (job.learners & kSignal) return piece_signal_all(signals, static_cast<int>(job.kind), tag);
    const int64_t mine = job.kind * ep::num_ranks() + ep::rank();
    for (int peer = ep::thread_in_block(); peer < ep::num_ranks(); peer += ep::threads_in_block()) {
        if (signals.leave_out(peer)) continue;
        *ep::peer_ptr(signals.tags + mine, peer) = tag;
        ep::st_release_sys_u64(ep::peer_ptr(signals.flags + mine, peer), signals.epoch + job.ahead);
    }
}

EP_DEVICE bool wait_for_everybody(const Job& job, const Signals& signals) {
    if (job.learners & kWait) {
        Signals before = signals;  // those of the operation before, which waits for this one's epoch
        before.epoch -= 2 * job.unit;
        return piece_wait_for_all(before, static_cast<int>(job.kind), signals.epoch, ep::kPhaseDispatch);
    }
    for (int peer = ep::thread_in_block(); peer < ep::num_ranks(); peer += ep::threads_in_block()) {
        if (signals.leave_out(peer)) continue;
        const uint64_t* const flag = signals.flags + job.kind * ep::num_ranks() + peer;
        while (ep::ld_acquire_sys_u64(flag) < signals.epoch) {  // role: the receiver, which waits for your signal
        }
    }
    __syncthreads();
    return true;
}

EP_DEVICE LastBlock which_is_last(const Job& job, uint32_t* finished, bool ok) {
    const uint32_t blocks = static_cast<uint32_t>(job.blocks);
    if (job.learners & kLast) return piece_last_block(finished, blocks, ok);
    __shared__ uint32_t before;
    __syncthreads();
    if (ep::thread_in_block() == 0) {
        ep::fence_sys();
        before = ep::atom_add_acq_rel_gpu_u32(finished, 1);
        if (before + 1 == blocks) ep::st_relaxed_gpu_u32(finished, 0);
    }
    __syncthreads();
    return before + 1 == blocks ? LastBlock::kYes : LastBlock::kNo;
}

}  // namespace

//   flags, tags   symmetric [kKinds, ranks], [2, kKinds, ranks]
//   inbox         symmetric [2, ranks, words]: by the parity of the epoch
//   source, out   [epochs, words], [epochs, ranks, words]
//   noted         [epochs, 5]: blocks that were the last, their answer, threads that were told otherwise, tags that were
//                 wrong, faults that are not about the absent rank, or words that block 0 found wrong
extern "C" __global__ void examine(int task, uint64_t* flags, uint64_t* tags, uint64_t* inbox, uint32_t* finished,
                                   const uint64_t* source, uint64_t* out, int* noted, const int64_t* numbers,
                                   int epoch) {
    if (task == 0) return canary(noted);
    const Job& job = *reinterpret_cast<const Job*>(numbers);
    if (blockIdx.x >= job.blocks) return;
    const int ranks = ep::num_ranks(), me = ep::rank(), thread = ep::thread_in_block();
    const int64_t words = job.words;
    // Even epochs, so that a signal may be one ahead and still not be that of the next launch. Tags are kept twice.
    const Signals signals = {flags, tags + epoch % 2 * kKinds * ranks, static_cast<uint64_t>(2 * epoch * job.unit),
                             static_cast<uint64_t>(job.masked)};
    uint64_t* const area = inbox + epoch % 2 * ranks * words;
    const int64_t first = blockIdx.x * ep::threads_in_block() + thread, step = job.blocks * ep::threads_in_block();
    if (blockIdx.x == 0 && me >= job.late) let_others_run(job.delay);
    for (int64_t i = first; i < ranks * words; i += step) {
        const int to = static_cast<int>(i / words);
        if (signals.leave_out(to)) continue;
        uint64_t* const theirs = ep::peer_ptr(area + me * words, to);
        theirs[i % words] = source[(epoch - 1) * words + i % words];  // role: the sender of a row, in another block
    }
    const bool ok = (job.failing >> blockIdx.x % 64 & 1) == 0 || thread != job.fails;
    const LastBlock last = which_is_last(job, finished, ok);
    __shared__ int answer;
    if (thread == 0) answer = static_cast<int>(last);
    __syncthreads();
    int* const notes = noted + (epoch - 1) * 5;
    if (static_cast<int>(last) != answer) atomicAdd(notes + 2, 1);
    if (last == LastBlock::kNo) {
        // A block that has not signalled itself waits for its own rank, too.
        if (blockIdx.x != 0 || !(job.learners & kWait) || job.absent >= 0) return;
        if (!wait_for_everybody(job, signals)) atomicAdd(notes + 3, kGaveUp);
        for (int64_t i = thread; i < words; i += ep::threads_in_block()) {
            const auto row = area[me * words + i];  // role: the receiver, which reads its own rank's rows
            if (row != source[(epoch - 1) * words + i]) atomicAdd(notes + 4, 1);
        }
        return;
    }
    if (thread == 0) {
        atomicAdd(notes, 1);
        notes[1] = answer;
    }
    const uint64_t first_tag = 1000 * (epoch - 1) * job.unit;  // so one of them is 0, which is no other tag
    signal_everybody(job, signals, first_tag + me);
    const bool came = wait_for_everybody(job, signals);
    if (!came) atomicAdd(notes + 3, kGaveUp);
    if (job.absent >= 0) {  // otherwise the host's error names the awaited rank
        __syncthreads();    // no thread records a fault any more
        if (thread == 0) notes[4] = !blames({ep::kPhaseDispatch, static_cast<int>(job.absent), job.kind});
        if (thread == 0) forget_fault();
    }
    if (!came) return;
    // No barrier here: the learner's function must let each thread read every rank's writes.
    for (int r = thread; r < ranks; r += ep::threads_in_block()) {
        if (signals.leave_out(r)) continue;
        const uint64_t tag = signals.tags[job.kind * ranks + r];  // role: the receiver, which reads the tag
        if (tag != first_tag + r) atomicAdd(notes + 3, 1);
    }
    for (int64_t i = thread; i < ranks * words; i += ep::threads_in_block()) {
        const int64_t other = (i + words) % (ranks * words);  // a word for which another thread has waited
        if (signals.leave_out(static_cast<int>(other / words))) continue;
        out[(epoch - 1) * ranks * words + other] = area[other];  // role: the receiver, which reads the rows
    }
}
