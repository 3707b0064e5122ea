// Evidence about synchronisation for findings: stores of signals and loads of them, holders of locks, and the fences in
// between. It decides nothing: checker.cpp decides what is a race.
#pragma once
#include <stdint.h>

#include <deque>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "vector_clock.hpp"

namespace epemu {

struct Fiber;
struct ThreadCheck;

enum class SyncKind : uint8_t { kStore, kAdd, kSwap, kNic };  // what wrote; kSwap: a compare-and-swap or an exchange

struct FenceSeen {
    uint32_t pc = 0, time = 0;
    int scope = -1;
    VectorClock known;  // what happened before it
};

// A write to a location that threads synchronise on.
struct SyncStore {
    uintptr_t address = 0;
    uint32_t id = 0, time = 0, pc = 0;
    int rank = -1;
    uint64_t block = 0;
    int64_t launch = 0;
    int order = 0, scope = 0;
    SyncKind kind = SyncKind::kStore;
    bool looked = false;      // another thread has looked at it
    bool ignored = false;     // of a swap: no line uses what it has found, so it takes no lock
    bool gives_turn = false;  // an addition by a thread that had waited at this location: the release of a ticket lock
    uint32_t caller = 0;      // of a swap: where its function returns to
    uint32_t turn = 0;        // of a store by a thread whose last look was at this location: that line
    FenceSeen fences[3];      // the last releasing ones before it, of each scope
    VectorClock known;        // what happened before it
};

// The value of a location until this line stored another.
struct OldValue {
    uint64_t value;
    uint32_t pc;
};

// What a thread or a NIC did at a time of its own.
struct Deed {
    uint32_t id = 0, time = 0, pc = 0;
    bool is(const SyncStore& s) const { return id == s.id && time == s.time && pc == s.pc; }
};

// How often a thread has changed a location by atomics that are no swaps, and the last of them.
struct Added {
    uint32_t times = 0;
    Deed last;
};

// A value that was overwritten, and not added to, before another thread had looked at it.
struct Lost {
    uint64_t value = 0, made = 0;
    Deed by, over;  // pc 0: none
};

// A load of the location, and the write that it saw.
struct SyncLoad {
    uintptr_t address = 0;
    int size = 0;
    uint32_t id = 0, time = 0, pc = 0;
    int64_t launch = 0;
    int order = 0, scope = 0;
    bool swap = false, updates = false;
    bool used = true;  // whether the program uses its value: an unused addition is no wait
    bool is_of(uintptr_t place) const { return place - address < static_cast<uintptr_t>(size); }
    FenceSeen fence;  // the widest acquiring fence after it
    SyncStore seen;   // id 0 with pc 0: no store yet
};

// What a thread has read between two looks at a mark, in two lines, that have found the same: as at a sequence lock.
struct Section {
    uintptr_t mark;
    uint32_t first, again;  // the lines of the looks
    std::vector<SyncLoad> words;
};

// A quiet or a fence between operations of a NIC. -1: all peers, all queue pairs.
struct NetOrder {
    uint32_t id, time, pc;
    int target, queue_pair;
    bool quiet;
    uint64_t block;
    bool covers(int to, int qp) const { return (target < 0 || target == to) && (queue_pair < 0 || queue_pair == qp); }
};

class __attribute__((visibility("hidden"))) Witness {
  public:
    void net_ordered(const Fiber& f, uint32_t pc, int target, int queue_pair, bool quiet);
    const NetOrder* ordered_since(uint32_t id, uint32_t time) const;  // the first of this thread
    // The last that another thread of the block had for this peer and queue pair, and that this thread does not know.
    const NetOrder* ordered_beside(const ThreadCheck& t, int target, int queue_pair) const;
    // `newest`: whether the load got the newest value; the store of an older value is unknown.
    void load(const Fiber& f, uintptr_t address, int size, int order, int scope, uint32_t pc, bool newest = true);
    void store(const Fiber& f, uintptr_t address, int size, int order, int scope, uint32_t pc);
    void update(const Fiber& f, uintptr_t address, int size, int order, int scope, uint32_t pc, bool changes);
    void uses(const Fiber& f, uintptr_t address, bool used);  // the old value of its last update there
    void swapped(const Fiber& f, uintptr_t address);  // the update before this one was a swap that changed the value
    void fence(const Fiber& f, int order, int scope, uint32_t pc, uint32_t time);  // `time`: the thread's own
    void posted(const Fiber& f, uintptr_t signal, uint32_t pc);                    // a signal that a NIC will write
    void nic_stored(const ThreadCheck& op, int rank, uintptr_t address, int size, uint32_t pc, bool adds);
    void finished(uint64_t block);

    // A line in which a thread of this block looks at what a thread of the other one stores. Else 0.
    uint32_t looks_at(uint64_t block, uint32_t id, uint64_t other_block, uint32_t other) const;

    // Looks of two threads in one line, which have found the same; null if there are none.
    std::pair<const SyncLoad*, const SyncLoad*> looked_alike(uint64_t block, uint32_t id, uint64_t other_block,
                                                             uint32_t other, uintptr_t data) const;
    // The first store there by the block, or null; of a thread since a time of its own: without swaps.
    const SyncStore* store_at(uint64_t block, uintptr_t address, uint32_t id = UINT32_MAX, uint32_t since = 0) const;

    // A read of this word that the next store there by this thread may meet, though both looks around it find the same:
    // the thread marks only the end of its writing. `section`: where that read is.
    const SyncLoad* half_marked(const ThreadCheck& t, uintptr_t address, Section* section);
    const SyncStore* last_of(uintptr_t address, const ThreadCheck& t) const;  // if that is by this thread

    bool stores_to(uint64_t block, uint32_t id, uintptr_t address) const;  // lately

    // Whether both blocks have come through a barrier between blocks: have added somewhere, and then looked there.
    bool have_met(uint64_t block, uint64_t other) const;

    // Loads of signals, locks and flags by a block's threads, newest first.
    std::vector<const SyncLoad*> loads_of(uint64_t block) const;
    // Loads by which a thread of the block may have waited. An update is no wait if no line uses its value: then the
    // thread's next load is the wait, and counts as having seen what the update found.
    std::vector<SyncLoad> waits_of(uint64_t block) const;
    const SyncStore* last_store(uintptr_t address) const;
    // The thread that took this lock and has not released it.
    const SyncStore* holder(uintptr_t address) const;
    std::vector<OldValue> old_values(uintptr_t address) const;
    const std::unordered_map<uint32_t, Added>* added(uintptr_t address) const;  // by thread; null: no store at all
    Lost lost(uintptr_t address, int size) const;                               // the last that is not 0
    bool is_lock(uintptr_t address, uint32_t id) const;
    // Whether no thread has swapped this word while another one seemed to hold it as a lock.
    bool is_exclusive(uintptr_t address) const;
    const SyncStore* held(uint32_t id, uint32_t time, uintptr_t* lock) const;  // a lock that this thread held then
    bool is_poll(uint32_t pc) const { return polls_.count(pc) != 0; }
    bool looks_again(uint32_t pc) const { return again_.count(pc) != 0; }
    bool loads_pair(uint32_t pc) const { return pairs_.count(pc) != 0; }
    // A line, other than `but`, in which a thread of this block that knew (id, time) has signalled since; else 0.
    uint32_t signalled_since(uint64_t block, uint32_t id, uint32_t time, uint32_t but) const;
    // The same for a signal that a thread of the reader's block waits for, and the line of that wait. Leaves `signal`
    // and `wait` unchanged if there is none.
    void signalled_to(uint64_t reader_block, uint64_t block, uint32_t id, uint32_t time, uint32_t* signal,
                      uint32_t* wait) const;

  private:
    struct Location {
        SyncStore last;
        uint32_t before = 0;  // when its thread stored there before, if no other one has since
        SyncStore taken;      // the swap that took the lock; pc 0: free
        std::unordered_set<uint32_t> takers;
        bool exclusive = true;
        std::deque<std::pair<SyncStore, uint32_t>> holds;  // the latest: how it was taken, and when it was released
        bool counts = false;                               // a thread has added before it polled, as at a barrier
        std::deque<OldValue> old;
        Lost lost;
        std::unordered_map<uint32_t, Added> added;  // by thread
        void overwritten(const SyncStore& by, uint64_t value, bool adds);
    };
    struct BlockLog {
        std::deque<SyncLoad> loads;    // the latest of each thread, line and location
        std::deque<SyncStore> stores;  // the latest of each thread, line and location
    };
    static SyncStore by(const Fiber& f, uintptr_t address, int order, int scope, uint32_t pc);
    BlockLog& log_of(uint64_t block);
    void log(const SyncStore& s);
    void looked(const SyncLoad& look, const std::deque<SyncLoad>& earlier);
    template <class Each>
    void each_since(uint64_t block, uint32_t id, uint32_t time, const Each& each) const;  // true: go on
    void stored(const Fiber& f, uintptr_t address, int size, int order, int scope, uint32_t pc, SyncKind kind);

    bool gave_back_ = false;  // the last store released a lock
    std::unordered_map<uintptr_t, Location> locations_;
    std::unordered_map<uint64_t, BlockLog> blocks_;
    BlockLog* last_log_ = nullptr;  // the one looked up last, of block last_block_
    uint64_t last_block_ = 0;
    std::deque<uint64_t> finished_;                      // ended blocks, the oldest first
    std::unordered_map<uint32_t, FenceSeen[3]> fences_;  // by thread and scope
    std::deque<Section> sections_;                       // the latest
    std::deque<NetOrder> net_orders_;                    // the latest, the oldest first
    std::unordered_set<uint32_t> polls_;                 // lines that polled twice and saw the same value
    std::unordered_set<uint32_t> again_;                 // lines in which a thread has looked twice running
    std::unordered_set<uint32_t> pairs_;                 // lines that load 16 bytes by one access
};

}  // namespace epemu
