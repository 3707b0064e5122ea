// Weak memory: executions that the memory model of PTX allows, but sequential consistency does not.
//
// Each location that threads synchronise on keeps its last strong writes in coherence order, and memory holds the
// newest. A strong load may return any of them that is not older than a write that the loading thread knows. A thread
// knows a write by causality order: the checker's vector clocks give the writes that happen before it, and each write
// keeps its observers. A strong store may go before writes that its thread does not know; a read-modify-write directly
// follows the write that it reads. A fence.sc has the knowledge of earlier ones, for threads in both scopes.
//
// So the axioms allow every run (coherence, Fence-SC, atomicity, SC-per-location, causality). Conversely, every allowed
// run is possible in which program order, reads-from and Fence-SC order have no cycle: no load reads a write of its own
// future, and fences keep their execution order. That rule excludes out-of-thin-air values, as RC11's does; load
// buffering, which PTX allows without dependencies, does not occur.
//
// Other omissions, all towards fewer behaviours: accesses of other widths, plain C++ accesses, those of 16 bytes, NICs'
// data and the host's writes use memory directly, and end a location's history; a compare-and-swap that fails reads the
// newest value; NICs' signals become the newest when they arrive. Races of plain accesses, too narrow scopes, missing
// proxy fences and stale reads through the read-only path are findings of their own, for any value read.
#pragma once
#include <stdint.h>

#include <unordered_map>
#include <vector>

#include "machine.hpp"
#include "vector_clock.hpp"

namespace epemu {

struct WeakMemory {
    explicit WeakMemory(uint64_t seed);
    // Draws a choice of weak memory: a number below n. 0 is the sequentially consistent choice. Uses its own random
    // numbers, so that the rest of a seed's schedule does not depend on them.
    uint32_t choose(uint32_t n);

    uint64_t writes = 0;  // strong writes so far
    // The knowledge of a fence.sc, by its scope.
    Known sc_everyone;
    std::unordered_map<int, Known> sc_ranks;
    std::unordered_map<uint64_t, Known> sc_blocks;

    // For findings: other threads' writes that a thread has seen without synchronising, and its last store.
    struct Flag {
        uint32_t writer, store_pc, load_pc;
        uint64_t stamp;
        bool released, acquired;
    };
    struct Thread {
        uint64_t block = 0;
        std::vector<Flag> flags;
        uint32_t store_pc = 0;
        uintptr_t stored = 0;
        uintptr_t pair = 0;       // two words stored by one access
        uint64_t pair_stamp = 0;  // of the first word
    };
    Thread& of(uint32_t id, uint64_t block) {
        Thread& t = threads_[id];
        if (t.block != block) t = Thread{}, t.block = block;
        return t;
    }

  private:
    Random random_;
    uint32_t older_one_in_;
    std::unordered_map<uint32_t, Thread> threads_;
};

}  // namespace epemu
