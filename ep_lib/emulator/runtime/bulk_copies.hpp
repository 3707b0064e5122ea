// Bulk copies between global and shared memory by TMA (cp.async.bulk), as <ep/tma.cuh> has them: operations that begin
// when a thread posts them and end later, in any order.
//
// They travel with the operations of NICs: the schedule chooses when to read and to deliver them. A load counts on a
// barrier in shared memory, whose round ends when its thread has arrived and all bytes have come; a store belongs to
// the group that its thread commits next.
//
// Copies by cp.async belong to a group of their thread too. Only that thread can observe their end, and the checker
// finds early accesses in any order (checker.hpp): so all are made as late as possible, by the wait of their thread.
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

// For the checker: operations that end together are a thread of their own (checker.hpp).
struct BulkCheck {
    uint32_t id = 0, time = 0;  // reads are at this time, writes one later; 0: no operation yet
    int rank = -1;
};

// The part of a NetOp that makes it a bulk copy.
struct BulkCopy {
    Block* block;
    Fiber* fiber;           // the poster; lives as long as the block, which waits for its copies
    uintptr_t barrier;      // the barrier on which a load counts; 0: a store
    uint64_t group;         // a store's group; each thread numbers its groups from 0
    uint32_t source_bytes;  // the rest becomes 0
    bool has_read = false;
    BulkCheck check;
};

struct BulkCopies {
    struct Barrier {
        uint64_t block;  // Block::id: blocks reuse shared memory
        uint32_t rounds = 0;
        bool arrived = false;
        int64_t missing = 0;  // bytes announced but not yet delivered
        uint32_t under_way = 0;
        std::vector<Fiber*> waiters;
        Known round, complete;  // what a waiter of this round learns; the same of all finished rounds
        BulkCheck check;
        uint32_t waited[32] = {};  // by lane: the value of `rounds` when its last wait ended
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

// Makes one event of a copy: its read or its write. True when the copy is complete.
bool advance_copy(Machine& m, NetOp& op);
// Ends all copies of a block with the block.
void finish_copies(Machine& m, Block* block);

}  // namespace epemu
