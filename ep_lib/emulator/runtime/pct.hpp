// Probabilistic concurrency testing (Burckhardt, Kothari, Musuvathi, Nagarakatte, ASPLOS 2010): every warp and every
// operation of a NIC gets a random priority, and whoever has the highest runs. At d - 1 random steps of the program the
// one that runs falls behind all others. A bug that takes d steps in a certain order is then met with a probability that
// has a lower bound, however many other things happen in between.
//
// What differs here: the length of a program is not known, so the steps of the changes are drawn log-uniformly; and one
// that keeps looking at something without end falls behind too, or nobody else would ever run.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <vector>

namespace epemu {

struct Machine;
struct NetOp;
struct Warp;

// Which schedules a seed makes: 0 for a random walk, else the depth of PCT.
int pct_depth(uint64_t seed);

class Pct {
  public:
    Pct(Machine& m, int depth);
    int depth() const { return depth_; }

    int64_t fresh_priority();
    void woke(const Warp* warp);  // it has joined the run queue
    void posted(NetOp* op);
    void fall_behind(Warp* warp);            // behind all others, until it is alone
    void synchronised(Warp* warp);           // the running fiber is at a synchronising operation: may switch to another
    bool outranked(const Warp* warp) const;  // is there somebody with more priority?
    size_t highest_warp();                   // index in the run queue, which is not empty
    // Moves an operation that has more priority than any warp. False if there is none that can move.
    bool move_network();

  private:
    bool step();  // true at a change of priority

    Machine& m_;
    int depth_;
    uint64_t steps_ = 0, streak_ = 0;
    const Warp* last_ = nullptr;
    std::vector<uint64_t> changes_;
    int64_t lowest_ = 0;               // of all priorities given so far
    int64_t top_ = INT64_MIN;          // of the warps in the run queue, or more
    int64_t network_top_ = INT64_MIN;  // of the operations that can move
};

}  // namespace epemu
