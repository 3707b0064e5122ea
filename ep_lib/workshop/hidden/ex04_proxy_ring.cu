// The other half of every test of exercise 04_proxy_ring: rank 0 pushes, with the learner's functions as a part, and
// rank 1 is the proxy, which the grader plays: as far away as a CPU is. What is not the learner's is the grader's own.
#include <calls/ex04_proxy_ring.cuh>
#include <grader.cuh>

namespace {

// The numbers of one run; ex04_proxy_ring.py sets others than these defaults (job_of).
struct Job {
    int64_t num_slots = 4;
    int64_t each = 3;      // pushes of a thread, or of a warp
    int64_t lanes = 0;     // of a warp that push; 0: threads push one by one
    int64_t learners = 0;  // which functions are the learner's: bits of Part
    int64_t delay = 0;     // how often the proxy lets others run before it takes a command
    int64_t batch = 1;     // commands for which it returns the credits together
    int64_t first = 0;     // number of the first command
    int64_t served = -1;   // the number of commands that the proxy takes and completes before it leaves
    int64_t total;         // commands
    int64_t lag;           // how many taken commands are not done yet
};

enum Part { kRoom = 1, kFill = 2, kPush = 4, kPushWarp = 8, kWait = 16, kFlush = 32 };

constexpr int kWords = 8;  // of a command
constexpr int kPeers = 7, kQueuePairs = 5;
constexpr int kWidePeer = 9361, kWideQueuePair = 13107;  // factors that make these numbers 16 bits wide
constexpr int kNoNumber = 3;                             // every third push of a thread asks for no number

struct Memory {
    ep::ProxyCommand* slots;  // [num_slots]
    uint64_t* counters;       // taken, completed, posted with their lines; then head, room
    uint64_t* payload;        // [total]: the data that each push announces, written before it
    uint64_t* results;        // [total]: what the proxy writes before it completes a command
    uint64_t* taken;          // [total, kWords + 1]: each command as the proxy found it, and its payload
    uint64_t* noted;          // [total, 2]: the number that a push told, and the result after the wait; + failed, and
                              // code, phase and peer of the fault that a wait left
};

EP_DEVICE ep::ProxyRing ring_of(const Job& job, const Memory& my) {
    auto* const credits = reinterpret_cast<ep::ProxyCredits*>(my.counters);
    return {my.slots, credits, reinterpret_cast<ep::ProxyProducer*>(credits + 1), static_cast<uint64_t>(job.num_slots),
            0};
}

// Every word differs from command to command; the lower half of `source` is the place of its payload. Waits name a rank's peer.
EP_DEVICE ep::ProxyCommand command_of(const Job& job, const Memory& my, uint64_t index) {
    const bool wide = job.learners == kFill;
    const uint64_t salt = my.payload[index];
    ep::ProxyCommand c = {};
    c.target = salt + 1;
    c.source = (wide ? salt << 32 : 0) | index;
    c.bytes = salt * 3 + 2;
    c.signal = salt * 5 + 3;
    c.value = salt * 7 + 4;
    c.op = ep::kProxyWrite;
    c.peer = static_cast<uint16_t>(index % kPeers * (wide ? kWidePeer : 1));
    c.queue_pair = static_cast<uint16_t>(index % kQueuePairs * (wide ? kWideQueuePair : 1));
    return c;
}

EP_DEVICE void fill(const ep::ProxyRing& ring, const ep::ProxyCommand& command, uint64_t number) {
    ep::ProxyCommand* const slot = ring.slots + number % ring.num_slots;
    slot->target = command.target;  // role: the push, which fills its slot after your function found room
    slot->source = command.source;
    slot->bytes = command.bytes;
    slot->signal = command.signal;
    slot->value = command.value;
    slot->op = command.op;
    slot->peer = command.peer;
    slot->queue_pair = command.queue_pair;
    ep::st_release_sys_u64(&slot->number, number + 1);
}

EP_DEVICE bool push(const Job& job, const ep::ProxyRing& ring, const ep::ProxyCommand& command, uint64_t* number) {
    if (job.learners & kPush) {
        return piece_proxy_push(ring, command,
                                static_cast<uint32_t>(command.source) % kNoNumber == kNoNumber - 1 ? nullptr : number);
    }
    *number = ep::atom_add_relaxed_gpu_u64(&ring.producer->head, 1);
    if (job.learners & kRoom) {
        if (!piece_proxy_wait_for_room(ring, *number, command.peer)) return false;
    } else if (*number >= ring.num_slots) {
        while (ep::ld_acquire_sys_u64(&ring.credits->taken) < *number - ring.num_slots + 1) {  // role: the push's wait
        }
    }
    if (job.learners & kFill) {
        piece_proxy_fill(ring, command, *number);
    } else {
        fill(ring, command, *number);
    }
    return true;
}

EP_DEVICE bool wait(const Job& job, const ep::ProxyRing& ring, uint64_t number) {
    if (job.learners & kFlush) return piece_proxy_flush(ring);
    if (job.learners & kWait) return piece_proxy_wait(ring, number);
    while (ep::ld_acquire_sys_u64(&ring.credits->completed) <= number) {  // role: the wait for a completion
    }
    return true;
}

EP_DEVICE void produce(const Job& job, const Memory& my) {
    const ep::ProxyRing ring = ring_of(job, my);
    const int thread = ep::thread_in_block();
    const int64_t warps = job.lanes > 0 ? job.total / (job.each * job.lanes) : 0;
    const int64_t threads = job.lanes > 0 ? warps * ep::kWarpSize : job.total / job.each;
    if (thread >= threads) return;
    // Pushes nothing, for which there is always room, and which takes no number.
    if (job.learners & kPushWarp && !piece_proxy_push_warp(ring, command_of(job, my, 0), 0, nullptr)) {
        atomicAdd(reinterpret_cast<unsigned long long*>(&my.noted[2 * job.total]), 1);
    }
    for (int64_t i = 0; i < job.each; ++i) {
        uint64_t index, number = ~uint64_t(0);  // a number that no push returns
        bool ok, mine = true;
        if (job.lanes > 0) {
            const int64_t warp = thread / ep::kWarpSize;
            mine = ep::lane_id() < job.lanes;
            index = (i * warps + warp) * job.lanes + (mine ? ep::lane_id() : 0);
        } else {
            index = i * threads + thread;
        }
        const ep::ProxyCommand command = command_of(job, my, index);
        uint64_t* const results = my.payload + job.total;  // the announced data: a copy, made by this thread
        if (mine) results[index] = my.payload[index] ^ 1;  // role: the data that the push announces
        if (job.lanes > 0) {
            ok = piece_proxy_push_warp(ring, command, static_cast<int>(job.lanes), &number);
        } else {
            ok = push(job, ring, command, &number);
        }
        if (mine) my.noted[2 * index] = number - job.first;
        if (ok && job.learners & (kWait | kFlush)) {
            ok = wait(job, ring, number);
            if (ok)
                my.noted[2 * index + 1] =
                    my.results[number - job.first];  // role: a read of what the command has brought
        }
        if (!ok) {
            atomicAdd(reinterpret_cast<unsigned long long*>(&my.noted[2 * job.total]), 1);
            return;
        }
    }
}

EP_DEVICE void serve(const Job& job, const Memory& mine) {
    constexpr int kThere = 0;
    const Memory my = {ep::peer_ptr(mine.slots, kThere),   ep::peer_ptr(mine.counters, kThere),
                       ep::peer_ptr(mine.payload, kThere), ep::peer_ptr(mine.results, kThere),
                       ep::peer_ptr(mine.taken, kThere),   nullptr};
    const ep::ProxyRing ring = ring_of(job, my);
    for (int64_t index = 0; index < job.served; ++index) {
        const int64_t number = job.first + index;
        const ep::ProxyCommand* const slot = ring.slots + number % ring.num_slots;
        const uint64_t published = number + 1;
        while (ep::ld_acquire_sys_u64(&slot->number) != published) {  // role: the wait for a slot's `number`
        }
        let_others_run(job.delay);
        const uint64_t* const words = reinterpret_cast<const uint64_t*>(slot);
        uint64_t* const to = my.taken + index * (kWords + 1);
        for (int i = 0; i < 6; ++i) {
            to[i] = words[i];  // role: the proxy, which copies the command out of its slot
        }
        const uint32_t place = static_cast<uint32_t>(to[1]);
        const uint32_t source = place < job.total ? place : 0;
        to[kWords] = my.payload[job.total + source];  // role: the proxy, which reads the data that was announced
        if ((index + 1) % job.batch == 0 || index + 1 == job.served) {
            ep::st_release_sys_u64(&ring.credits->taken, number + 1);
        }
        my.results[index] = 1000 + index;  // role: what the command brings
        if (index >= job.lag) ep::st_release_sys_u64(&ring.credits->completed, number + 1 - job.lag);
    }
    let_others_run(job.delay);
    ep::st_release_sys_u64(&ring.credits->completed, job.first + job.served);
}

}  // namespace

extern "C" __global__ void examine(int task, ep::ProxyCommand* slots, uint64_t* counters, uint64_t* payload,
                                   uint64_t* results, uint64_t* taken, uint64_t* noted, const int64_t* numbers) {
    if (task == 0) return canary(noted);
    const Job& job = *reinterpret_cast<const Job*>(numbers);
    const Memory my = {slots, counters, payload, results, taken, noted};
    if (ep::rank() == 0) {
        produce(job, my);
        meet_at_the_end();
        // If the proxy stays, the host's error names the failed wait.
        if (ep::thread_in_block() == 0 && job.served < job.total) note_fault(noted + 2 * job.total + 1);
    } else if (ep::thread_in_block() == 0) {
        serve(job, my);
    }
}
