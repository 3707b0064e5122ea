// Bulk copies between global and shared memory by TMA (cp.async.bulk), as <ep/tma.cuh> has them: operations that begin
// when a thread posts them and end later, in any order.
//
// They travel with the operations of NICs: the schedule reads and delivers them when it likes. A load counts on a barrier
// in shared memory, whose round is over when its thread has arrived and all bytes have come; a store belongs to the group
// that its thread commits next.
//
// Copies by cp.async belong to a group of their thread too. Nobody else hears when they end, and what comes too early is
// found in whatever order (checker.hpp): so they are all made as late as they may be, by the wait of their thread.
#pragma once
#include <stdint.h>

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "vector_clock.hpp"

namespace epemu {

struct Block;
struct Fiber;
struct Machine;
struct NetOp;

// The checker's: what operations that end together are, as threads of their own (checker.hpp).
struct BulkCheck {
    uint32_t id = 0, time = 0;  // reads are at this time, writes one later; 0: no operation yet
    int rank = -1;
};

// What makes a NetOp a bulk copy.
struct BulkCopy {
    Block* block;
    Fiber* fiber;           // that posted it; it lives as long as the block, which waits for its copies
    uintptr_t barrier;      // of a load; 0: a store
    uint64_t group;         // of a store: by thread, from 0
    uint32_t source_bytes;  // what comes behind them is 0
    bool has_read = false;
    BulkCheck check;
};

struct BulkCopies {
    struct Barrier {
        uint64_t block;  // Block::id: shared memory serves one block after the other
        uint32_t rounds = 0;
        bool arrived = false;
        int64_t missing = 0;  // bytes announced and not there yet
        uint32_t under_way = 0;
        std::vector<Fiber*> waiters;
        Known round, complete;  // what who waits for a round learns; of all rounds that are over
        BulkCheck check;
        uint32_t waited[32] = {};  // by lane: `rounds`, when it last went on
    };
    struct Group {
        uint32_t unread = 0, unwritten = 0;
        bool read_awaited = false;
        BulkCheck check;
    };
    struct Thread {
        std::deque<Group> groups;  // the last one is open
        uint64_t first = 0;        // number of groups.front()
        bool waits = false;
    };
    struct LateGroup {
        std::vector<std::unique_ptr<NetOp>> copies;
        BulkCheck check;
    };
    std::unordered_map<uintptr_t, Barrier> barriers;
    std::unordered_map<const Fiber*, Thread> threads;
    std::unordered_map<const Fiber*, std::deque<LateGroup>> late;  // the last one is open
};

// One event of a copy: it reads, or it is written. True when it is done with.
bool advance_copy(Machine& m, NetOp& op);
// All copies of a block end with it.
void finish_copies(Machine& m, Block* block);

}  // namespace epemu
