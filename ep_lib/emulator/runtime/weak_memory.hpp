// Weak memory: the executions that the memory model of PTX allows and a machine with one memory for all never shows.
//
// Each location that threads synchronise by keeps its last strong writes in coherence order, and memory holds the newest.
// A strong load may return any of them that is not older than one that the loading thread knows of. It knows of a write by
// causality order: the vector clocks of the checker say which writes happen before it, and each write remembers who has
// observed it. A strong store may go behind writes that its thread does not know of; a read-modify-write reads a write and
// comes right behind it. A fence.sc knows what earlier ones knew, of those threads that both scopes reach.
//
// So a run is one that the axioms allow (coherence, Fence-SC, atomicity, SC-per-location, causality), and every run that
// they allow can be had in which program order, reads-from and Fence-SC order have no cycle: nothing reads what is written
// later in its own future, and fences keep the order in which they run. That rule keeps thin air out, as RC11's does; load
// buffering, which PTX allows without dependencies, is not shown.
//
// What else is left out, always to the side of fewer behaviours: accesses of other widths, plain ones of C++, those of 16
// bytes, NICs' data and the host's writes read and write memory, and end a location's history; a
// compare-and-swap that fails reads the newest value; NICs' signals become the newest when they arrive. Races of plain
// accesses, too narrow scopes, missing proxy fences and stale reads by the read-only path are findings of their own,
// whatever value is read.
#pragma once
#include <stdint.h>

#include <unordered_map>
#include <vector>

#include "machine.hpp"
#include "vector_clock.hpp"

namespace epemu {

struct WeakMemory {
    explicit WeakMemory(uint64_t seed);
    // Every choice that weak memory leaves is drawn here: a number below n. 0 is what one memory for all would do. It has
    // random numbers of its own, so that nothing else of a seed's schedule depends on them.
    uint32_t choose(uint32_t n);

    uint64_t writes = 0;  // strong ones, so far
    // What a fence.sc knows, by how far it reaches.
    Known sc_everyone;
    std::unordered_map<int, Known> sc_ranks;
    std::unordered_map<uint64_t, Known> sc_blocks;

    // For the words of findings: which writes of others a thread has seen without synchronising, and its last store.
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
        uintptr_t pair = 0;       // two words that it stores as one
        uint64_t pair_stamp = 0;  // of the first of them
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
