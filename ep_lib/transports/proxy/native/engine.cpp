// The threads of the native proxy: poll the rings, take commands, post them, publish completions.
#include "engine.hpp"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace ep {
namespace proxy {

uint64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

namespace {

constexpr int kRoundsPerClock = 256;  // idle polls of all rings between two reads of the clock
constexpr long kNapNs = 50000;        // of a thread that has been idle for long

// A thread's counters; other threads read them while it runs.
struct alignas(64) Counts {
    std::atomic<uint64_t> commands{0}, batches{0}, bytes{0}, naps{0};
};

void add(std::atomic<uint64_t>& count, uint64_t value) {  // by its one writer
    count.store(count.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
}

struct Queue {
    ProxyRing ring;
    int number;
    uint64_t taken = 0, completed = 0;
    ProxyCommand batch[kBatch];  // copied out of their slots, and not yet posted: from `posted_of_batch` on
    int in_batch = 0, posted_of_batch = 0;
};

class Engine {
  public:
    Engine(const ProxyRing* rings, int num_rings, const Executor& executor, int threads, const int* cpus,
           uint64_t spin_ns, uint32_t* fault_word, uint32_t fault_code)
        : executor_(executor), spin_ns_(spin_ns), fault_word_(fault_word), fault_code_(fault_code), counts_(threads) {
        for (int t = 0; t < threads; t++) {
            std::vector<std::unique_ptr<Queue>> mine;
            for (int r = t; r < num_rings; r += threads) {
                mine.push_back(std::make_unique<Queue>());
                mine.back()->ring = rings[r];
                mine.back()->number = r;
                mine.back()->taken = __atomic_load_n(&rings[r].credits->taken, __ATOMIC_ACQUIRE);
                mine.back()->completed = mine.back()->taken;
            }
            threads_.emplace_back([this, t, cpu = cpus[t], queues = std::move(mine)]() mutable {
                if (cpu >= 0) pin(cpu);
                serve(queues, counts_[t]);
            });
        }
    }
    ~Engine() {
        stop_.store(true, std::memory_order_relaxed);
        for (std::thread& thread : threads_) thread.join();
        if (executor_.destroy) executor_.destroy(executor_.state);
    }

    const Counts& counts(int thread) const { return counts_[thread]; }
    const char* failure() {
        std::lock_guard<std::mutex> guard(failing_);
        return failure_.text;
    }

  private:
    void pin(int cpu) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        const int error = pthread_setaffinity_np(pthread_self(), sizeof set, &set);
        if (error) fail(Failure(), "a proxy thread cannot be pinned to CPU %d: %s", cpu, strerror(error));
    }

    template <class... Values>
    void fail(Failure failure, const char* format, Values... values) {
        if (format) failure(format, values...);
        {
            std::lock_guard<std::mutex> guard(failing_);
            if (!failure_.text[0]) failure_ = failure;
        }
        uint32_t none = 0;  // no kernel has recorded a fault yet
        if (fault_word_)
            __atomic_compare_exchange_n(fault_word_, &none, fault_code_, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    }

    // Whether a slot holds command `number`. In a sealed ring its parts come in any order.
    static bool is_full(const ProxyRing& ring, const ProxyCommand& slot, uint64_t number) {
        if (__atomic_load_n(&slot.number, __ATOMIC_ACQUIRE) != number + 1) return false;
        const uint64_t seal = (number + 1) << kProxySealShift;
        return !ring.sealed || ((__atomic_load_n(&slot.source, __ATOMIC_ACQUIRE) & ~kProxyOffsetMask) == seal &&
                                (__atomic_load_n(&slot.signal, __ATOMIC_ACQUIRE) & ~kProxyOffsetMask) == seal &&
                                __atomic_load_n(&slot.seal, __ATOMIC_ACQUIRE) == seal >> kProxySealShift);
    }

    // Copies full slots out of the ring, behind those that the executor has not accepted yet, and returns their
    // credits.
    static void take(Queue& q, Counts& counts) {
        const uint64_t mask = q.ring.num_slots - 1;
        uint64_t bytes = 0;
        if (q.posted_of_batch == q.in_batch) q.in_batch = q.posted_of_batch = 0;
        const int before = q.in_batch;
        while (q.in_batch < kBatch) {
            const ProxyCommand& slot = q.ring.slots[q.taken & mask];
            if (!is_full(q.ring, slot, q.taken)) break;
            ProxyCommand& command = q.batch[q.in_batch] = slot;
            if (q.ring.sealed) {
                command.source &= kProxyOffsetMask;
                command.signal &= kProxyOffsetMask;
            }
            bytes += command.bytes;
            q.in_batch++;
            q.taken++;
        }
        if (q.in_batch == before) return;
        __atomic_store_n(&q.ring.credits->taken, q.taken, __ATOMIC_RELEASE);
        add(counts.commands, q.in_batch - before);
        add(counts.batches, before == 0);
        add(counts.bytes, bytes);
    }

    // Returns whether there was progress; sets `failed` after a failure.
    bool advance(Queue& q, Counts& counts, bool* failed) {
        Failure failure;
        take(q, counts);
        bool any = false;
        if (q.posted_of_batch < q.in_batch) {
            const int n = executor_.post(executor_.state, q.number, q.batch + q.posted_of_batch,
                                         q.in_batch - q.posted_of_batch, &failure);
            if (n < 0) return *failed = true, fail(failure, nullptr), false;
            q.posted_of_batch += n;
            any = n > 0;
        }
        const int done = executor_.poll(executor_.state, q.number, &failure);
        if (done < 0) return *failed = true, fail(failure, nullptr), false;
        if (done) {
            q.completed += done;
            __atomic_store_n(&q.ring.credits->completed, q.completed, __ATOMIC_RELEASE);
        }
        return any || done;
    }

    void serve(std::vector<std::unique_ptr<Queue>>& queues, Counts& counts) {
        uint64_t idle_since = 0;
        int rounds = 0;
        bool failed = false;
        while (!failed && !stop_.load(std::memory_order_relaxed)) {
            bool any = false;
            for (auto& q : queues) any |= advance(*q, counts, &failed);
            if (any) {
                idle_since = 0;
                rounds = 0;
            } else if (++rounds % kRoundsPerClock == 0) {
                const uint64_t now = now_ns();
                if (!idle_since) idle_since = now;
                if (now - idle_since < spin_ns_) continue;
                add(counts.naps, 1);
                const timespec nap = {0, kNapNs};
                nanosleep(&nap, nullptr);
            }
        }
    }

    const Executor executor_;
    const uint64_t spin_ns_;
    uint32_t* const fault_word_;
    const uint32_t fault_code_;
    std::vector<Counts> counts_;
    std::vector<std::thread> threads_;
    std::atomic<bool> stop_{false};
    std::mutex failing_;
    Failure failure_;
};

}  // namespace
}  // namespace proxy
}  // namespace ep

using namespace ep::proxy;

extern "C" {

// Starts threads that serve the rings; `cpus`: each one's CPU, -1 if not pinned. Takes ownership of the executor. A
// failing thread stores `fault_code` to `fault_word`, if there is one, which waiting kernels poll.
Engine* ep_proxy_start(const ep::ProxyRing* rings, int num_rings, const Executor* executor, int threads,
                       const int* cpus, uint64_t spin_ns, uint32_t* fault_word, uint32_t fault_code) {
    return new Engine(rings, num_rings, *executor, threads, cpus, spin_ns, fault_word, fault_code);
}
// Ends the threads after each has finished the commands that it has begun to post.
void ep_proxy_stop(Engine* engine) { delete engine; }
// A thread's counters: commands, batches, bytes, naps.
void ep_proxy_counts(Engine* engine, int thread, uint64_t* four) {
    const auto& counts = engine->counts(thread);
    const std::atomic<uint64_t>* each[] = {&counts.commands, &counts.batches, &counts.bytes, &counts.naps};
    for (int i = 0; i < 4; i++) four[i] = each[i]->load(std::memory_order_relaxed);
}
// Why a thread has failed, or empty.
const char* ep_proxy_failure(Engine* engine) { return engine->failure(); }

// ---- The kernel's side, for programs without kernels: benchmarks, and tests of executors ------------------------------

// Pushes numbered copies of a command; `stamps`: store the time of the push in `value`. Waits for credits. Returns the
// number pushed within the limit.
uint64_t ep_proxy_push(const ep::ProxyRing* ring, const ep::ProxyCommand* command, uint64_t count, uint64_t pause_ns,
                       int stamps, uint64_t limit_ns) {
    uint64_t room = __atomic_load_n(&ring->credits->taken, __ATOMIC_ACQUIRE) + ring->num_slots;
    const uint64_t begin = now_ns(), mask = ring->num_slots - 1;
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t number = __atomic_fetch_add(&ring->producer->head, 1, __ATOMIC_RELAXED);
        for (int looks = 1; number >= room; looks++) {
            room = __atomic_load_n(&ring->credits->taken, __ATOMIC_ACQUIRE) + ring->num_slots;
            if (looks % kRoundsPerClock) continue;
            if (now_ns() - begin > limit_ns) return i;
            sched_yield();
        }
        ep::ProxyCommand* const slot = ring->slots + (number & mask);
        ep::ProxyCommand filled = *command;
        if (stamps) filled.value = now_ns();
        if (ring->sealed) {
            const uint64_t seal = (number + 1) << ep::kProxySealShift;
            filled.source |= seal;
            filled.signal |= seal;
            filled.seal = seal >> ep::kProxySealShift;
        }
        memcpy(static_cast<void*>(slot), &filled, offsetof(ep::ProxyCommand, number));
        __atomic_store_n(&slot->number, number + 1, __ATOMIC_RELEASE);
        for (const uint64_t until = pause_ns ? now_ns() + pause_ns : 0; until && now_ns() < until;) {
        }
    }
    return count;
}
// Waits until the first `count` commands are complete. Returns 0 after the limit.
int ep_proxy_await(const ep::ProxyRing* ring, uint64_t count, uint64_t limit_ns) {
    const uint64_t begin = now_ns();
    for (int looks = 1; __atomic_load_n(&ring->credits->completed, __ATOMIC_ACQUIRE) < count; looks++) {
        if (looks % kRoundsPerClock) continue;
        if (now_ns() - begin > limit_ns) return 0;
        sched_yield();
    }
    return 1;
}

}  // extern "C"
