// What decides who runs next. The emulator runs one thing at a time, and a schedule says which: a seeded random walk
// (random_walk.cpp), random priorities (pct.cpp), or the order of a virtual clock (virtual_time.hpp).
//
// A new policy is one file: a class that derives from Schedule, or from QueueSchedule below, and a function
// make_NAME(Machine&) for it. Its NAME goes into EPEMU_POLICIES. Seeds take turns: seed 0 gets the first policy, 1 the
// second, and so on. Whatever a policy draws comes from Machine::random, so that a seed always gives the same run.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <memory>
#include <vector>

namespace epemu {

struct Block;
struct Fiber;
struct Machine;
struct NetOp;
struct PollSet;
struct Warp;

// What a run may do differently, besides who goes on.
enum class Choice : uint8_t {
    kPieces,   // how many more than one an operation of a NIC is cut into
    kDelay,    // 0: an operation is held up
    kPause,    // 0: a bulk copy stops between its read and its write
    kSplit,    // 0: lanes at __activemask go on apart
    kStore,    // which store a load reads: 0 the newest
    kVisible,  // when a store is seen by others: 0 at once
};

// How an event touches something, for schedules that compare runs: two conflict unless both read or both add.
enum class Touch : uint8_t { kRead, kWrite, kAdd };

#define EPEMU_POLICIES(policy) policy(random_walk) policy(pct)

class Schedule {
  public:
    explicit Schedule(Machine& m) : m_(m) {}
    virtual ~Schedule() = default;

    // ---- what a policy must say --------------------------------------------------------------------------------
    // One thing happens: the turn of a warp, or an event of the network. False if nothing can happen.
    virtual bool step() = 0;
    // These lanes of a warp can run from now on.
    virtual void ready(Warp* warp, uint32_t lanes) = 0;
    // The running thread is at a synchronising operation: another one may run first.
    virtual void synchronise() = 0;
    // The running thread has run for long, or asks that others run (it sleeps, or looks at the clock).
    virtual void preempt() = 0;
    virtual void yield() = 0;

    // ---- what it may want to know ------------------------------------------------------------------------------
    virtual void woke(Fiber* fiber);  // what it waited for has happened: it is ready
    virtual void admitted(Block*) {}
    virtual void finished(Block*) {}
    virtual void posted(NetOp*) {}  // by the running thread; it is in the network's lists
    // Whether all blocks of a grid become resident as soon as they fit, not only when the others wait.
    virtual bool needs_all_blocks() const { return false; }
    // A lane that the running one, which stops here, may hand over to without asking the scheduler; null for none.
    virtual Fiber* next_lane() { return nullptr; }

    // ---- choices, and what is done --------------------------------------------------------------------------------
    virtual uint32_t choose(Choice what, uint32_t options);  // one of 0 to options - 1
    virtual uint32_t choose_lanes();                         // any of a warp's
    virtual bool is_random() const { return true; }          // else each choice is given
    // The running thread looks at the seen[which]-th place again, or (`is_new`) for the first time. Whether it waits
    // until one of the places changes; asked only where this one has not.
    virtual bool looks(PollSet& seen, int which, bool is_new, bool is_same);
    virtual void only_looks(bool) {}  // the running thread, until it says no: ep::look_until of <ep/wait.cuh>
    virtual int polls_per_clock() const { return 64; }  // of ep::poll_until; on GPUs gpu/primitives.cuh says it
    virtual void stands_still() {}                      // only waits with a limit can still end
    virtual uint64_t rounds_of_quiescence(uint64_t usual) const { return usual; }
    virtual void touched(uintptr_t, size_t, Touch) {}  // by the running thread, or by the event of the network
    virtual void met(uintptr_t, size_t) {}             // plainly read; called where Machine::reads_matter
    virtual void join(Warp*, uint32_t) {}              // these threads have met
    virtual void join(Block*) {}
    virtual void join(const std::vector<Fiber*>&) {}
    virtual void fenced(int, int) {}  // the running thread, by rank and queue pair; -1: all
    virtual void quiet(int, int) {}   // it knows that what was posted so is complete
    virtual void hosts_met() {}

    // ---- time --------------------------------------------------------------------------------------------------
    virtual double now_ns() const;
    virtual void spend(double ns);  // by the running thread
    virtual void pass(double ns);   // for all, when no thread can run
    virtual void drain();           // everything that is in flight arrives, as far as it can

    // ---- a world of several processes --------------------------------------------------------------------------
    enum class Look { kNothing, kChanged, kAll };   // at which of the threads that poll
    virtual Look look() { return Look::kNothing; }  // asked between turns: what may others have done?
    virtual Look wait() { return Look::kNothing; }  // no thread can go on; kNothing: nor will one ever

  protected:
    static constexpr uint8_t kRepeatsToPark = 2;  // times that a loop must see everything unchanged
    Machine& m_;
};

// How rough a schedule is. Each seed draws its own: a bug that calm schedules hide shows in a stormy one, and the other
// way round (swarm testing: Groce et al., 2012).
struct ScheduleParameters {
    uint32_t preempt_one_in;  // synchronising operations, that the thread is preempted there
    uint32_t stall_one_in;    // preemptions, that the whole warp then waits for a long time
    uint32_t split_one_in;    // turns of a warp, that only some of its lanes run on
    uint32_t deliver_one_in;  // turns, that something happens on the network too
};

// Policies that keep the runnable warps in a list, pick one for each turn, and let its lanes run one after another.
class QueueSchedule : public Schedule {
  public:
    explicit QueueSchedule(Machine& m);
    void ready(Warp* warp, uint32_t lanes) override;
    Fiber* next_lane() override;

  protected:
    static constexpr int64_t kLongQuantum = 1 << 14;  // accesses
    static constexpr size_t kCrowd = 2048;            // runnable warps from which on there is order enough
    void run_turn(size_t index);                      // of a warp in the queue, with its lanes in a random rotation
    virtual void queued(const Warp*) {}
    virtual bool may_go_on(const Warp*) const { return true; }     // asked before each lane
    virtual int64_t draw_quantum() const { return kLongQuantum; }  // accesses until a lane is preempted

    ScheduleParameters parameters_;
    std::vector<Warp*> queue_;

  private:
    Warp* warp_ = nullptr;     // whose turn it is
    uint32_t lanes_left_ = 0;  // of its turn; bit i is lane (first_lane_ + i) % 32
    uint32_t first_lane_ = 0;
};

// The schedule of this machine's seed.
std::unique_ptr<Schedule> make_schedule(Machine& m);
std::unique_ptr<Schedule> make_real_time(Machine& m);  // where the machine has other processes, whatever the seed
// The place of a policy in EPEMU_POLICIES, by which seeds find it.
enum class Policy : uint64_t {
#define EPEMU_NAME(name) name,
    EPEMU_POLICIES(EPEMU_NAME)
#undef EPEMU_NAME
        kCount
};
inline Policy policy_of(uint64_t seed) { return static_cast<Policy>(seed % static_cast<uint64_t>(Policy::kCount)); }
#define EPEMU_DECLARE(name) std::unique_ptr<Schedule> make_##name(Machine& m);
EPEMU_POLICIES(EPEMU_DECLARE)
#undef EPEMU_DECLARE

int pct_depth(uint64_t seed);  // 0 if the seed's policy is not PCT

}  // namespace epemu
