// The other half of every test of exercise 03_batches. It calls the learner's kernels as functions, which the emulator
// allows: their blocks come first, then the receiver's.
#include <calls/ex03_batches.cuh>
#include <ep/ibgda_shim.cuh>
#include <ep/net.cuh>
#include <grader.cuh>

namespace {

// The numbers of one run; ex03_batches.py sets others than these defaults (job_of).
struct Job {
    int64_t to, from;                             // peers this rank sends to and receives from; -1: none
    int64_t bytes = 64, messages = 5, chunk = 1;  // of a message; messages of a channel; how many at a time
    int64_t channels = 1;                         // blocks that send, each with messages of its own
    int64_t each = 1;                             // the counter grows by this for each awaited message or chunk
    int64_t before = 0;                           // the counters at the start
};

struct Memory {
    char *inbox, *outbox, *staging;  // symmetric, as `counters`
    uint32_t* counters;              // one per channel; task 3: one per rank, then one per rank for "done"
    char* source;
    char* seen;       // the inbox as the receiver found it
    uint64_t* noted;  // [channels]: the largest number of a lane's quiets
};

EP_DEVICE void learner_sends(int task, const Job& job, const Memory& my) {
    const int bytes = int(job.bytes), messages = int(job.messages), to = int(job.to), chunk = int(job.chunk);
    if (ep::thread_in_block() < ep::kWarpSize) piece_quiets()[ep::lane_id()] = 0;
    if (task == 1) piece_send_staged(my.inbox, my.staging, my.source, bytes, messages, my.counters, to);
    if (task == 2) piece_send_batched(my.inbox, my.outbox, bytes, messages, my.counters, to);
    if (task == 3) piece_count_by_source(my.counters, messages, to);
    if (task == 4) piece_channel_send(my.inbox, my.outbox, bytes, messages, chunk, my.counters, to);
    // Threads that return early from the learner's kernel leave this kernel, too, so that a barrier there does not wait
    // for them.
    const int callers = task == 3 ? 1 : ep::kWarpSize;
    if (ep::thread_in_block() >= callers) return;
    __syncthreads();
    if (ep::thread_in_block() != 0) return;
    int most = 0;
    for (int lane = 0; lane < callers; ++lane) most = max(most, piece_quiets()[lane]);
    my.noted[blockIdx.x] = most;
    const int ranks = ep::num_ranks();
    if (task == 3) nvshmemi_ibgda_amo_nonfetch_add(my.counters + ranks + ep::rank(), 1, to, 5 + int(blockIdx.x));
    if (task != 2 && task != 4) return;
    const int64_t size = job.messages * job.bytes, at = task == 4 ? blockIdx.x * size : 0;
    for (int64_t i = at; i < at + size; ++i) {
        my.outbox[i] = static_cast<char>(my.outbox[i] ^ 1);  // role: the caller, who uses the outbox again
    }
}

// Reads the counters when every rank has signalled, by a counter of its own, that it is done.
EP_DEVICE void grader_looks(const Job& job, const Memory& my) {
    const int ranks = ep::num_ranks();
    if (ep::thread_in_block() != 0 || job.to != ep::rank()) return;
    for (int rank = 0; rank < ranks; ++rank) {
        const uint32_t* const done = my.counters + ranks + rank;
        while (ep::ld_acquire_sys_u32(done) < job.channels) {  // role: what waits until your kernels are done
        }
    }
    for (int rank = 0; rank < ranks; ++rank) my.noted[rank] = ep::ld_acquire_sys_u32(my.counters + rank);
}

// Each time the counter has grown far enough, reads `chunk` more messages, the last one first.
EP_DEVICE void grader_receives(const Job& job, const Memory& my, int channel) {
    if (ep::thread_in_block() != 0) return;
    const uint32_t* counter = my.counters + channel;
    for (int64_t begin = 0; begin < job.messages; begin += job.chunk) {
        const int64_t count = min(job.chunk, job.messages - begin);
        const uint32_t wanted = static_cast<uint32_t>((begin + count) * job.each);
        const uint32_t before = static_cast<uint32_t>(job.before);
        while (ep::ld_acquire_sys_u32(counter) - before < wanted) {  // role: the receiver waits for your counter
        }
        const int64_t at = (channel * job.messages + begin) * job.bytes;
        look_at(my.seen + at, my.inbox + at, count * job.bytes);
    }
}

}  // namespace

extern "C" __global__ void examine(int task, char* inbox, char* outbox, char* staging, uint32_t* counters, char* source,
                                   char* seen, uint64_t* noted, const int64_t* numbers) {
    if (task == 0) return canary(seen);
    const Job& job = *reinterpret_cast<const Job*>(numbers);
    const Memory my = {inbox, outbox, staging, counters, source, seen, noted};
    const int block = static_cast<int>(blockIdx.x), channels = static_cast<int>(job.channels);
    if (block < channels) {
        if (job.to >= 0) learner_sends(task, job, my);
    } else if (task == 3) {
        if (block == channels) grader_looks(job, my);
    } else if (job.from >= 0) {
        grader_receives(job, my, block - channels);
    }
}
