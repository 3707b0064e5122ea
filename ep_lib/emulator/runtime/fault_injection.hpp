// Faults on demand: links that stall, messages that come late, ranks that fall silent. What Fabric's arguments ask for.
#pragma once
#include <stdint.h>

#include <map>
#include <string>
#include <vector>

#include "network.hpp"

namespace epemu {

struct FaultInjection {
    static constexpr uint64_t kNever = ~0ull;  // in nanoseconds: for good
    struct Stall {
        uint64_t after, ns;  // when so many operations were posted before, for how long
        uint64_t until_ns;   // 0: has not begun
    };
    struct Link {
        uint64_t posted = 0;
        std::vector<Stall> stalls;
        std::map<uint64_t, uint64_t> delays;  // number of the operation -> nanoseconds
    };
    struct Rank {
        bool will_stop = false, stopped = false;
        uint64_t sends_left = 0;
    };
    explicit FaultInjection(int num_ranks) : links(num_ranks * num_ranks), ranks(num_ranks) {}
    std::vector<Link> links;  // [source * ranks + target]
    std::vector<Rank> ranks;
};

// On a fiber that is about to post, or to store a signal in another rank's memory. Does not return if its rank stops.
void about_to_send(uintptr_t pc);
bool has_stopped(const Machine& m, int rank);
// An operation was posted: is it, or its link, to stand still?
void inject_faults(Machine& m, NetOp& op);
// When this operation may move again, in nanoseconds of the clock that runs (virtual time's under simulate); 0 if it may
// now.
uint64_t held_until(const Machine& m, const NetOp& op);
// May nothing of this operation move now?
bool is_held(const Machine& m, const NetOp& op);
// Makes it the time at which the next of the operations that stand still may move. False if none ever may.
bool skip_to_next_release(Machine& m);
uint64_t next_release_ns(const Machine& m);  // kNever: none
// What a fiber waits for in a quiet or for a place in a queue pair, for reports.
std::string describe_pending(const Machine& m, const Fiber& fiber);

}  // namespace epemu
