// The other half of every test of exercise 05_pipeline: both ends of every ring, with the learner's functions as a part.
// A rank's block p sends to rank p, its block ranks + p receives from it. All other code is the grader's own, and uses
// only 05_bounce_buffer.cuh.
#include <calls/ex05_pipeline.cuh>
#include <grader.cuh>

namespace {

// The numbers of one run; ex05_pipeline.py sets others than these defaults (job_of).
struct Job {
    int64_t max_rows = 12, row_bytes = 48, num_slots = 2, slot_rows = 2;  // of Streams and Ring
    int64_t learners = 0;  // which functions are the learner's: bits of Part
    int64_t order = 0;     // of the grader's own two ends, of Order
    int64_t delay = 0;     // how often the grader's receiver lets others run
    int64_t patient = 0;   // the grader's receiver begins when all slots are full
    int64_t reuse = 0;     // the staging buffer is used for something else afterwards
    int64_t first = 0;     // the first chunk that task 1 asks for
    int64_t alone = 0;     // 1: this rank only sends, and nothing to itself; 2: it does nothing
};

enum Part { kAsk = 1, kSendChunk = 2, kTakeChunk = 4, kSender = 8, kMerged = 16 };
enum Order { kAtOnce = 0, kReceiveFirst = 1, kSendFirst = 2 };

EP_DEVICE uint64_t credits_of(const Ring& ring, uint64_t chunk) {
    return chunk < uint64_t(ring.num_slots) ? 0 : chunk - ring.num_slots + 1;
}

// Lane 0 waits, and the warp goes on with what it saw.
GRADER_PART void wait_for_room(const Ring& ring, int peer, uint64_t chunk) {
    if (ep::lane_id() == 0) {
        while (ep::ld_acquire_sys_u64(ring.credits + peer) <
               credits_of(ring, chunk)) {  // role: the sender waits for your credit
        }
    }
    __syncwarp();
}

GRADER_PART void wait_for_arrival(const Ring& ring, int peer, uint64_t chunk) {
    if (ep::lane_id() == 0) {
        const uint64_t* arrival = arrived_of(ring, peer, chunk);
        while (ep::ld_acquire_sys_u64(arrival) < chunk + 1) {  // role: the receiver waits for the slot's arrival
        }
    }
    __syncwarp();
}

GRADER_PART void send_one(const Streams& streams, const Ring& ring, int peer, uint64_t chunk) {
    char* const staging = slot_of(ring.staging, streams, ring, peer, chunk);
    const size_t bytes = fill_slot(staging, streams, ring, peer, chunk);  // role: the sender fills a free slot
    if (ep::lane_id() != 0) return;
    char* const target = slot_of(ring.inbox, streams, ring, ep::rank(), chunk);
    uint64_t* const arrival = arrived_of(ring, ep::rank(), chunk);
    ep::net_put_signal_nbi(target, staging, bytes, arrival, chunk + 1, peer, 0,  // role: the sender's post
                           ep::NetSignal::kSet);
}

// Stands for the caller's next kernel, which may reuse the staging buffer.
GRADER_PART void reuse_staging(const Job& job, const Streams& streams, const Ring& ring, int peer) {
    if (!job.reuse) return;
    __syncwarp();
    char* const area = slot_of(ring.staging, streams, ring, peer, 0);
    const size_t bytes = ring.num_slots * slot_bytes(streams, ring);
    for (size_t i = ep::lane_id(); i < bytes; i += ep::kWarpSize) {
        area[i] = 0x5a;  // role: the caller, who uses the staging buffer for something else after your kernel
    }
}

GRADER_PART void sender(const Job& job, const Streams& streams, const Ring& ring, int peer) {
    if (job.learners & kSender) {
        piece_send_pipelined(streams, ring, peer);
    } else {
        const uint64_t chunks = num_chunks(streams, ring, peer);
        for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
            wait_for_room(ring, peer, chunk);
            if (job.learners & kSendChunk) {
                piece_send_chunk(streams, ring, peer, chunk);
            } else {
                send_one(streams, ring, peer, chunk);
            }
        }
        if (ep::lane_id() == 0) ep::net_quiet(peer);
    }
    reuse_staging(job, streams, ring, peer);
}

GRADER_PART void receiver(const Job& job, const Streams& streams, const Ring& ring, int peer, int peers_chunks,
                          uint64_t* most) {
    const int first = job.patient ? min(peers_chunks, ring.num_slots) : 0;
    for (int chunk = 0; chunk < first; ++chunk) wait_for_arrival(ring, peer, chunk);
    int rows = 0;
    bool is_last = false;
    for (uint64_t chunk = 0; !is_last; ++chunk) {
        wait_for_arrival(ring, peer, chunk);
        if (ep::lane_id() == 0) {
            let_others_run(job.delay);
            note_lead(arrived_of(ring, peer, 0), ring.num_slots, chunk, most);
        }
        ChunkHeader header;
        if (job.learners & kTakeChunk) {
            header = piece_take_chunk(streams, ring, peer, chunk, rows);
        } else {
            const char* slot = slot_of(ring.inbox, streams, ring, peer, chunk);
            header = empty_slot(slot, streams, peer, rows);  // role: the receiver takes the chunk out of its slot
            if (ep::lane_id() == 0) ep::net_atomic_add_u64_nbi(ring.credits + ep::rank(), 1, peer);
        }
        rows += header.rows;
        is_last = header.is_last;
    }
    if (ep::lane_id() == 0) streams.received[peer] = rows;
}

GRADER_PART void run(const Job& job, const Streams& streams, const Ring& ring, const int* chunks, uint64_t* noted) {
    const int ranks = ep::num_ranks(), block = static_cast<int>(blockIdx.x), peer = block % ranks;
    if (block >= 2 * ranks || job.alone == 2 || (job.alone && (block >= ranks || peer == ep::rank()))) return;
    const bool sends = block < ranks;
    uint64_t* const most = noted + peer;
    if (job.learners & kMerged) {
        if (!sends) return;
        if (ep::lane_id() == 0) *piece_woken_by_credits() = 0;
        piece_exchange_merged(streams, ring);
        if (ep::lane_id() == 0) noted[ranks + peer] = *piece_woken_by_credits();
        reuse_staging(job, streams, ring, peer);
        if (job.alone) forget_fault();
    } else if (job.order == kAtOnce) {
        if (sends) sender(job, streams, ring, peer);
        if (job.alone) return forget_fault();
        if (!sends) receiver(job, streams, ring, peer, chunks[peer], most);
    } else if (sends) {
        const bool sends_first = job.order == kSendFirst || peer == ep::rank();  // no rank waits for itself
        if (sends_first) sender(job, streams, ring, peer);
        receiver(job, streams, ring, peer, chunks[peer], most);
        if (!sends_first) sender(job, streams, ring, peer);
    }
}

// Task 1 alone: how many credits does each chunk need?
GRADER_PART void ask(const Ring& ring, int64_t first, int64_t chunks, uint64_t* noted) {
    if (blockIdx.x != 0 || ep::lane_id() != 0) return;
    for (int64_t i = 0; i < chunks; ++i) noted[i] = piece_credits_for(ring, first + i);
}

}  // namespace

extern "C" __global__ void examine(int task, char* inbox, char* staging, uint64_t* arrived, uint64_t* credits,
                                   const char* source, const int* counts, const int* chunks, char* out, int* received,
                                   uint64_t* noted, const int64_t* numbers) {
    if (task == 0) return canary(noted);
    const Job& job = *reinterpret_cast<const Job*>(numbers);
    const Streams streams = {source, counts, out, received, int(job.max_rows), int(job.row_bytes)};
    const Ring ring = {inbox, staging, arrived, credits, int(job.num_slots), int(job.slot_rows)};
    if (job.learners & kAsk) return ask(ring, job.first, job.max_rows, noted);
    run(job, streams, ring, chunks, noted);
}
