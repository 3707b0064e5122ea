// Schedules decide which thread or network event is next. The emulator runs one at a time, and a schedule chooses: a
// seeded random walk (random_walk.cpp), random priorities (pct.cpp), or the order of a virtual clock
// (virtual_time.hpp).
//
// A new policy is one file: a class that derives from Schedule, or from QueueSchedule below, and a function
// make_NAME(Machine&) for it. Its NAME goes into EPEMU_POLICIES. Seeds take turns: seed 0 gets the first policy, 1 the
// second, and so on. A policy draws its random numbers from Machine::random, so that a seed always gives the same run.
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

// Choices of a run besides the next thread.
enum class Choice : uint8_t {
    kPieces,   // the number of pieces of a NIC operation, minus one
    kDelay,    // 0: an operation is delayed
    kPause,    // 0: a bulk copy stops between its read and its write
    kSplit,    // 0: lanes at __activemask continue separately
    kStore,    // which store a load reads: 0 the newest
    kVisible,  // when a store is seen by others: 0 at once
};

// How an event touches memory, for schedules that compare runs: two conflict unless both read or both add.
enum class Touch : uint8_t { kRead, kWrite, kAdd };

#define EPEMU_POLICIES(policy) policy(random_walk) policy(pct)

class Schedule {
  public:
    explicit Schedule(Machine& m) : m_(m) {}
    virtual ~Schedule() = default;

    // ---- functions that a policy must define ------------------------------------------------------------------
    // Makes one step: the turn of a warp, or an event of the network. False if no step is possible.
    virtual bool step() = 0;
    // These lanes of a warp are now runnable.
    virtual void ready(Warp* warp, uint32_t lanes) = 0;
    // The running thread is at a synchronising operation: another one may run first.
    virtual void synchronise() = 0;
    // The running thread has run for long, or yields (it sleeps, or reads the clock).
    virtual void preempt() = 0;
    virtual void yield() = 0;

    // ---- events that a policy may observe ----------------------------------------------------------------------
    virtual void woke(Fiber* fiber);  // the event that it waited for has happened: it is ready
    virtual void admitted(Block*) {}
    virtual void finished(Block*) {}
    virtual void posted(NetOp*) {}  // the running thread has put an operation into the network's lists
    // Whether all blocks of a grid become resident as soon as they fit, not only when the resident ones wait.
    virtual bool needs_all_blocks() const { return false; }
    // A lane to which the running one, which stops here, may switch without the scheduler; null for none.
    virtual Fiber* next_lane() { return nullptr; }

    // ---- choices, and actions of the running thread ------------------------------------------------------------
    virtual uint32_t choose(Choice what, uint32_t options);  // one of 0 to options - 1
    virtual uint32_t choose_lanes();                         // any of a warp's
    virtual bool is_random() const { return true; }          // false: each choice is given
    // The running thread polls the seen[which]-th place again, or (`is_new`) for the first time. Returns whether it
    // waits until one of the places changes; called only if this one has not.
    virtual bool looks(PollSet& seen, int which, bool is_new, bool is_same);
    virtual void only_looks(bool) {}  // the running thread only polls until `false`: ep::look_until of <ep/wait.cuh>
    virtual int polls_per_clock() const { return 64; }  // of ep::poll_until; for GPUs see gpu/primitives.cuh
    virtual void stands_still() {}                      // only waits with a limit can still end
    virtual uint64_t rounds_of_quiescence(uint64_t usual) const { return usual; }
    virtual void touched(uintptr_t, size_t, Touch) {}  // an access by the running thread, or by the network's event
    virtual void met(uintptr_t, size_t) {}             // a plain read; called if Machine::reads_matter
    virtual void join(Warp*, uint32_t) {}              // these threads have met
    virtual void join(Block*) {}
    virtual void join(const std::vector<Fiber*>&) {}
    virtual void fenced(int, int) {}  // the running thread, by rank and queue pair; -1: all
    virtual void quiet(int, int) {}   // the running thread knows that operations posted there are complete
    virtual void hosts_met() {}

    // ---- time --------------------------------------------------------------------------------------------------
    virtual double now_ns() const;
    virtual void spend(double ns);  // time passes for the running thread
    virtual void pass(double ns);   // time passes for all, when no thread can run
    virtual void drain();           // delivers all operations in flight, as far as possible

    // ---- a world of several processes --------------------------------------------------------------------------
    enum class Look { kNothing, kChanged, kAll };   // which polling threads to check
    virtual Look look() { return Look::kNothing; }  // called between turns: what may other processes have changed?
    virtual Look wait() { return Look::kNothing; }  // called when no thread can run; kNothing: none ever can

  protected:
    static constexpr uint8_t kRepeatsToPark = 2;  // times that a loop must see everything unchanged
    Machine& m_;
};

// How rough a schedule is. Each seed draws its own: a bug that calm schedules hide shows in a rough one, and vice versa
// (swarm testing: Groce et al., 2012).
struct ScheduleParameters {
    uint32_t preempt_one_in;  // synchronising operations preempts the thread
    uint32_t stall_one_in;    // preemptions stalls the whole warp for a long time
    uint32_t split_one_in;    // turns of a warp runs only some of its lanes
    uint32_t deliver_one_in;  // turns also makes a network event
};

// Policies that keep the runnable warps in a list, pick one for each turn, and let its lanes run one after another.
class QueueSchedule : public Schedule {
  public:
    explicit QueueSchedule(Machine& m);
    void ready(Warp* warp, uint32_t lanes) override;
    Fiber* next_lane() override;

  protected:
    static constexpr int64_t kLongQuantum = 1 << 14;  // accesses
    static constexpr size_t kCrowd = 2048;            // runnable warps: with more, their order varies enough
    void run_turn(size_t index);                      // runs a queued warp's lanes, in a random rotation
    virtual void queued(const Warp*) {}
    virtual bool may_go_on(const Warp*) const { return true; }     // asked before each lane
    virtual int64_t draw_quantum() const { return kLongQuantum; }  // accesses until a lane is preempted

    ScheduleParameters parameters_;
    std::vector<Warp*> queue_;

  private:
    Warp* warp_ = nullptr;     // whose turn it is
    uint32_t lanes_left_ = 0;  // lanes that have not run in this turn; bit i is lane (first_lane_ + i) % 32
    uint32_t first_lane_ = 0;
};

// The schedule of this machine's seed.
std::unique_ptr<Schedule> make_schedule(Machine& m);
std::unique_ptr<Schedule> make_real_time(Machine& m);  // for a machine with other processes, any seed
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
