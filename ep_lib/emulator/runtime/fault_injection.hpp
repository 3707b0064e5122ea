// Fault injection: links that stall, messages that are delayed, ranks that stop: see the arguments of Fabric.
#pragma once
#include <stdint.h>

#include <map>
#include <string>
#include <vector>

#include "network.hpp"

namespace epemu {

struct FaultInjection {
    static constexpr uint64_t kNever = ~0ull;  // a time that never comes
    struct Stall {
        uint64_t after, ns;  // begins after `after` operations, and lasts `ns` nanoseconds
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
// Called for each posted operation: delays it, or stalls its link, if so configured.
void inject_faults(Machine& m, NetOp& op);
// When this operation may move again, in nanoseconds of the schedule's clock; 0 if it may now.
uint64_t held_until(const Machine& m, const NetOp& op);
// Whether no part of this operation may move now.
bool is_held(const Machine& m, const NetOp& op);
// Moves the clock to the next release of a delayed operation. False if none is ever released.
bool skip_to_next_release(Machine& m);
uint64_t next_release_ns(const Machine& m);  // kNever: none
// For reports: the operations for which a fiber waits in a quiet, or for a place in a queue pair.
std::string describe_pending(const Machine& m, const Fiber& fiber);

}  // namespace epemu
