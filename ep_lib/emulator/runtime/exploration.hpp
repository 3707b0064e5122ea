// Every schedule of a small program, one run after the other: stateless model checking by dynamic partial-order
// reduction.
//
// A run is a sequence of events: a thread runs up to its next operation that is visible to others (a synchronising
// access, a post, a barrier), or a NIC reads a piece, delivers one, applies a signal or completes. Two runs are
// equivalent if they differ only in the order of independent events, and at least one run of each class is made:
//
// - after a run, each pair of dependent events that no other event orders is a race; the run with the two swapped is
//   still to be made, unless one that begins so has been: source sets (Abdulla, Aronis, Jonsson, Sagonas, "Optimal
//   dynamic partial order reduction", POPL 2014; Flanagan and Godefroid, POPL 2005);
// - a process explored from a place sleeps in later runs from there, until an event touches what it would touch (sleep
//   sets, Godefroid 1996): a run in which all sleep is given up;
// - a poll after which the thread returns to exactly the same state (stack and registers) does not count: a waiting
//   loop is one event (its last poll), however often it iterates. It is tried only before earlier stores, where it
//   might see another value;
// - a run that returns to a state (stacks and memory) can repeat for ever. If each runnable thread has run meanwhile,
//   that is a livelock; else the threads that have run wait until another one acts;
// - with a bound on preemptions (Musuvathi and Qadeer, PLDI 2007) that must miss no run within it, each race is also
//   reversed where the running thread began, and threads do not sleep (Coons, Musuvathi, McKinley, "Bounded
//   partial-order reduction", OOPSLA 2013). Of runs that differ only in the time of a NIC's event, the one with the
//   earliest time counts.
//
// Several processes can make the runs: the remaining work splits into parts (exploration_parts.cpp,
// ep_lib/runtime/exhaustion.py), each a path whose end one of them explores. A place of the path that others explore
// too is shared: a run to be made from there is requested, not made.
//
// The number of classes is known only at the end, but random runs estimate it: a run of probability p, whose class has
// n orders, stands for 1 / (p n) classes, and the mean of that is their number (Knuth, "Estimating the efficiency of
// backtrack programs", 1975). A run with a fruitless poll counts as none: the same orders exist without it.
//
// If kernels are named, the others run in the calm order: two dependent events of theirs are never swapped. Events of a
// named kernel are swapped with all.
//
// The program must be deterministic: launches of hosts and values that kernels read are compared up to each place that
// several runs pass. An address counts as the array that it points to.
//
// Plain accesses do not end an event: if two of them conflict, the checker finds a race in any order.
#pragma once
#include <array>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "schedule.hpp"

namespace epemu {

inline uint64_t mix(uint64_t hash, uint64_t more) {
    hash = (hash ^ more) * 0x9e3779b97f4a7c15ull;
    return hash ^ hash >> 31;
}

// The state of all runs so far, and the next run. It outlives the machines that make them.
class Exploration {
  public:
    enum Reduction {
        kNone,         // every order of events is a run of its own, for comparison
        kSleeping,     // may miss runs within a bound on preemptions
        kWithinBound,  // misses none, and makes more equivalent runs
    };
    struct Bounds {
        int64_t preemptions;  // the most of a run; -1: any number
        int64_t reduction;    // a Reduction
        uint64_t events;      // of a run, at most: longer runs are cut
        uint64_t turns;       // of a loop that waits and counts, at most
    };
    static constexpr uint64_t kTurns = 3;  // the default
    static constexpr uint64_t kBusy = 4;   // a loop that also stores has kBusy times the turns before others run
    struct Status {
        uint64_t explored;   // runs of which no two are equivalent
        uint64_t redundant;  // runs equivalent to earlier ones; most are abandoned
        uint64_t cut;        // runs that met the bound on events
        uint64_t counted;    // runs in which a wait met the bound on turns
        uint64_t skipped;    // places from which the bound on preemptions allowed no run
        uint64_t calm;       // choices not tried, since they are between kernels that were not named
        uint64_t most_events;
        uint64_t switches, decisions;  // of the last run: deviations from the calm order, and all decisions
        double whole;                  // of the last run, if it was random: an estimate of the number of classes
        uint64_t equivalence;          // of the last run: equal for equivalent runs
        int32_t outcome;               // of the last run
        uint64_t inputs;               // of the last run: equal if hosts and kernels did the same
    };
    enum Outcome { kWhole, kRedundant, kCut, kStrayed };

    // A process: a thread (0, rank, launch, block, thread), or a piece or the end of a thread's NIC operation (1, rank,
    // launch, block, thread, which, piece). Equal in every run.
    using Key = std::array<int64_t, 7>;
    struct Touched {
        uintptr_t begin, end;    // in this run
        uint64_t place, length;  // equal in every run; host arrays, whose addresses vary, are all at kElsewhere
        Touch how;
    };
    struct Event {
        int process;
        std::vector<Touched> touches;
        std::vector<Touched> looks;  // polls that do not count, since the thread returned to its state
        std::vector<int> after;      // events that must come before it
        int woken_by = -1;           // the store that ended its wait
        int all_before = 0;          // events 0 to all_before - 1 must come before it
        bool is_calm = false;        // of a kernel that was not named
        uint64_t launched = 0;       // hash of the hosts' actions since the last event
        uint64_t read = 0;           // hash of the values that it read
    };

    explicit Exploration(const Bounds& bounds) : bounds(bounds), turns(bounds.turns) {}

    const Bounds bounds;
    uint64_t turns;  // from the bounds, or from the followed schedule
    Status status = {};
    std::string strayed;             // how a run differed from the one that it repeats
    std::string line;                // the text that an API function returns to Python
    std::set<std::string> only;      // kernels whose schedules are explored; empty: all
    std::set<std::string> launched;  // kernels so far

    // ---- of the run that is made
    void begin();
    int process_of(const Key& key);
    const Key& key_of(int process) const { return keys_[process]; }
    // The next of these processes, which are in the calm order; -1: none, the run must end.
    int pick(const std::vector<int>& enabled, int last_thread);
    uint32_t choose(uint32_t options);
    bool is_calm(const std::string& kernel);  // whether it was not named
    Event& event() { return events_.back(); }
    void host_did(uint64_t what);
    void forget(int number);
    void sleep_again(int number);
    int last_event() const { return static_cast<int>(events_.size()) - 1; }
    std::vector<Event>& events() { return events_; }
    // ---- between two runs
    bool next();                           // call this after each run; returns whether there is another one
    void follow(const std::string& text);  // the next run follows this schedule
    void draw(uint64_t seed);              // the next run is a random one
    bool draws() const { return draws_; }
    bool give_up();                // abandons the run, since other runs cover it; false: a followed run goes on
    void came_back(int event);     // the run has returned to its state before this event
    std::string schedule() const;  // the last run, as one line
    // ---- parts
    void load(const std::string& text);  // explore this part, and nothing else
    std::string save() const;            // the rest of this part, and its requests to other parts

  private:
    struct Asleep {
        int process;
        std::vector<Touched> touches;
    };
    struct Data {
        uint32_t options, value;
    };
    // Places that this part shares: a run to be made from there is requested, not made.
    struct Shared {
        int64_t number = -1;    // -1: the place belongs to this part alone
        bool is_given = false;  // its choices of data are given, too
    };
    struct Node {
        Shared shared;
        std::vector<int> enabled;
        std::vector<Asleep> sleep, done;
        std::vector<int> todo;
        int chosen, last_thread;
        int64_t preemptions;           // before this event
        std::vector<Touched> touched;  // by the chosen process, in all runs
        std::vector<Touched> looks;    // polls that do not count in one of the runs
        std::vector<Data> data;
        uint64_t launched = 0, read = 0;  // Event's, equal in all runs; 0: not known yet
    };

    bool sleeps(const Node& node, int process) const;
    std::vector<Asleep> still_asleep(size_t place) const;
    int64_t cost(const Node& node, int process) const;
    bool may_sleep(int process) const;
    bool is_within_bound(const Node& node, int process) const;
    void compute_clocks();
    uint64_t equivalence() const;
    uint32_t drawn(size_t options);
    double orders() const;
    double whole();
    void reverse(int i, int j);
    void add(Node& node, int process, const std::vector<int>& instead = {});
    void add_all(Node& node);
    bool is_as_before(size_t event);
    bool happens_before(int i, int j) const { return clocks_[j][events_[i].process] > i; }

    std::map<Key, int> ids_;
    std::vector<Key> keys_;
    std::vector<Node> nodes_;               // of the path that is explored; one for each event
    std::vector<Event> events_;             // of this run
    std::vector<std::vector<int>> clocks_;  // by event and process: its last event that happens before or is it, + 1
    std::vector<std::pair<int, int>> races_;
    std::unordered_set<uint64_t> seen_;  // classes of equivalent runs
    struct Told {
        int64_t shared;
        std::vector<int> processes;  // request the first one there, unless one of these runs there anyway
    };
    std::vector<Told> told_;
    std::vector<uint64_t> classes_;  // of the runs since load()
    size_t settled_ = 0;             // nodes, without those of an unfinished run
    size_t floor_ = 0;               // nodes that load() gave
    std::vector<Touched> first_;     // touched by the first event that belongs to this part alone
    size_t data_ = 0;
    uint64_t launched_ = 0;                // hash of the hosts' actions since the last event
    std::map<uint64_t, uint32_t> script_;  // decisions that are not 0
    bool follows_ = false;
    bool draws_ = false;  // the next run's choices are random
    uint64_t random_ = 0;
    long double inverse_ = 1;  // 1 / the probability of the run so far
    uint64_t decisions_ = 0;
    std::vector<std::pair<uint64_t, uint32_t>> made_;  // decisions that were not 0, by their number
};

}  // namespace epemu
