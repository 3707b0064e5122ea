// Every schedule of a small program, one run after the other: stateless model checking by dynamic partial-order
// reduction.
//
// A run is a sequence of events: a thread runs up to the one operation by which others can notice it (a synchronising
// access, a post, a barrier), or a NIC reads a piece, delivers one, applies a signal or completes. Two runs are
// equivalent if they differ only in the order of events that touch different things, and of each class of equivalent
// runs at least one is made:
//
// - after a run, each pair of events that touch the same and that nothing else orders is a race, and the run in which
//   they change places is yet to be made, unless one that begins so has been: source sets (Abdulla, Aronis, Jonsson,
//   Sagonas, "Optimal dynamic partial order reduction", POPL 2014; Flanagan and Godefroid, POPL 2005);
// - what has been explored from a place sleeps in the runs that begin there later, until something touches what it
//   would (sleep sets, Godefroid 1996): a run in which all sleep is given up;
// - a look at memory from which the thread comes back to its very state, stack and registers, has not happened: a loop
//   that waits is one event (the last), however often it goes round. Only where it would come before an earlier store
//   it is tried, since it might find something there;
// - a run that comes back to a state, stacks and memory, can go on so for ever. If each thread that could run has run
//   meanwhile, that is a livelock; else those that have run wait until another one does something;
// - with a bound on preemptions (Musuvathi and Qadeer, PLDI 2007) that is to be kept whole, each race is also reversed
//   where the thread began that runs there, and threads do not sleep (Coons, Musuvathi, McKinley, "Bounded
//   partial-order reduction", OOPSLA 2013). Of runs that differ only in when a NIC does something, the one in which it
//   does so earliest is counted.
//
// The runs can be made in several processes: what is still to be done splits into parts (exhaustive_parts.cpp,
// ep_lib/runtime/exhaustion.py), each a path whose end one of them explores. A place of the path that others explore too
// is shared: what is to be made from there is told, not made.
//
// How many classes there are is not known before the end, but it can be estimated by runs whose choices are random: one
// of probability p, whose class has n orders, stands for 1 / (p n) classes, and the mean of that is their number (Knuth,
// "Estimating the efficiency of backtrack programs", 1975). A run with a fruitless look counts as none: the same orders can
// be had without it.
//
// Where kernels are named, the others run as they do in the calm order: of two events of theirs that touch the same, none
// is moved before the other. Those of a named kernel change places with all.
//
// The runs are those of one program only if it does the same in each: what hosts launch and the values that kernels read, up
// to a place that several runs come by, is compared. An address counts as the array that it points to.
//
// Plain accesses do not end an event: where two of them can meet, the checker finds a race, in whatever order they come.
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

// What is known of all runs so far, and which run is next. It outlives the machines on which they are made.
class Exploration {
  public:
    enum Reduction {
        kNone,         // every order of events is a run of its own, to compare with
        kSleeping,     // with a bound on preemptions this may lose runs that are within it
        kWithinBound,  // this does not, and makes more equivalent runs
    };
    struct Bounds {
        int64_t preemptions;  // the most of a run; -1: any number
        int64_t reduction;    // a Reduction
        uint64_t events;      // of a run, at most: what goes on longer is cut off
        uint64_t turns;       // of a loop that waits and changes its state meanwhile (it counts), at most
    };
    static constexpr uint64_t kTurns = 3;  // what is usual
    static constexpr uint64_t kBusy = 4;   // times as many turns has a loop that stores meanwhile, and others run then
    struct Status {
        uint64_t explored;   // runs of which no two are equivalent
        uint64_t redundant;  // runs that had been made in another order; most are given up
        uint64_t cut;        // runs that met the bound on events
        uint64_t counted;    // runs in which a wait met the bound on turns
        uint64_t skipped;    // places from which the bound on preemptions let no run go on
        uint64_t calm;       // choices that were not tried, as they are between kernels that were not named
        uint64_t most_events;
        uint64_t switches, decisions;  // of the last run: those that are not the calm ones, and all
        double whole;                  // of the last run, if it was drawn: on average, how many classes there are
        uint64_t equivalence;          // of the last run: the same number for all that are equivalent to it
        int32_t outcome;               // of the last run
        uint64_t inputs;  // of the last run: the same number for all in which hosts and kernels did the same
    };
    enum Outcome { kWhole, kRedundant, kCut, kStrayed };

    // Who does something: a thread (0, rank, launch, block, thread), or of a thread's operations of a NIC one piece or
    // its end (1, rank, launch, block, thread, which, piece). The same in every run.
    using Key = std::array<int64_t, 7>;
    struct Touched {
        uintptr_t begin, end;    // in this run
        uint64_t place, length;  // in every run; host arrays lie elsewhere each time: they are all at kElsewhere
        Touch how;
    };
    struct Event {
        int process;
        std::vector<Touched> touches;
        std::vector<Touched> looks;  // that have not happened, as the thread came back
        std::vector<int> after;      // events that it cannot come before
        int woken_by = -1;           // the store that ended its wait
        int all_before = 0;          // it cannot come before any of the first so many
        bool is_calm = false;        // of a kernel that was not named
        uint64_t launched = 0;       // what hosts have done since the last event
        uint64_t read = 0;           // the values that it met
    };

    explicit Exploration(const Bounds& bounds) : bounds(bounds), turns(bounds.turns) {}

    const Bounds bounds;
    uint64_t turns;  // those of the bounds, or of the schedule that is followed
    Status status = {};
    std::string strayed;             // where a run was not the one that it repeats
    std::string line;                // for Python
    std::set<std::string> only;      // kernels whose schedules are explored; empty: all
    std::set<std::string> launched;  // kernels so far

    // ---- of the run that is made
    void begin();
    int process_of(const Key& key);
    const Key& key_of(int process) const { return keys_[process]; }
    // Who of these is next, the calm order being theirs; -1: nobody, the run is to end.
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
    bool next();                           // whether there is another one; call it after each
    void follow(const std::string& text);  // the next run is this one
    void draw(uint64_t seed);              // the next run is any of all
    bool draws() const { return draws_; }
    bool give_up();                // the run that is made, as others do as well; false: it is followed
    void came_back(int event);     // the run that is made is now where it was before this event
    std::string schedule() const;  // the last run, as one line
    // ---- parts
    void load(const std::string& text);  // explore this part, and nothing else
    std::string save() const;            // what is left of it, and what others have to know

  private:
    struct Asleep {
        int process;
        std::vector<Touched> touches;
    };
    struct Data {
        uint32_t options, value;
    };
    // Places that are not of this part alone: what is to be made from there is told, not made.
    struct Shared {
        int64_t number = -1;    // -1: it is of this part alone
        bool is_given = false;  // and the choices of data made there are given
    };
    struct Node {
        Shared shared;
        std::vector<int> enabled;
        std::vector<Asleep> sleep, done;
        std::vector<int> todo;
        int chosen, last_thread;
        int64_t preemptions;           // before it
        std::vector<Touched> touched;  // by the chosen one, in all runs
        std::vector<Touched> looks;    // that have not happened in one of them
        std::vector<Data> data;
        uint64_t launched = 0, read = 0;  // of the event, in all runs; 0: not known yet
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
    std::vector<std::vector<int>> clocks_;  // by event and process: the last event + 1 that happens before, or is it
    std::vector<std::pair<int, int>> races_;
    std::unordered_set<uint64_t> seen_;  // classes of equivalent runs
    struct Told {
        int64_t shared;
        std::vector<int> processes;  // the first is to run there, unless one of them is to anyway
    };
    std::vector<Told> told_;
    std::vector<uint64_t> classes_;  // of the runs since load()
    size_t settled_ = 0;             // nodes, without those of a run that did not come to its end
    size_t floor_ = 0;               // nodes that load() gave
    std::vector<Touched> first_;     // touched by the first event that is of this part alone
    size_t data_ = 0;
    uint64_t launched_ = 0;                // what hosts have done since the last event
    std::map<uint64_t, uint32_t> script_;  // decisions that are not 0
    bool follows_ = false;
    bool draws_ = false;  // and its choices are random
    uint64_t random_ = 0;
    long double inverse_ = 1;  // of the probability of the run so far
    uint64_t decisions_ = 0;
    std::vector<std::pair<uint64_t, uint32_t>> made_;  // decisions that were not 0, by their number
};

}  // namespace epemu
