// The checker: finds unordered conflicting accesses, and the synchronisation that is missing between them.
//
// Happens-before is the causality order of the PTX memory model. Program order, __syncthreads and __syncwarp order
// accesses. A release pattern (a release; a fence or a release of this location, then a strong write) publishes; an
// acquire pattern (an acquire; a strong read, then a fence or an acquire of this location) that observes it joins.
// Observation passes through read-modify-writes, and each pair on its way must be morally strong: atomics of one width,
// with scopes that include each other. A write that a strong read observes comes before the code behind that read, so a
// thread that has seen the last addition to a counter may set it to 0 by a plain store. Fences order nothing by
// themselves, but Fence-SC order cannot contradict causality order: one fence.sc comes before another if barriers order
// it before a write that was read before the other.
// Shuffles and votes order nothing. An operation of a NIC is a thread of its own: it starts when it is posted, and its
// end happens only before a quiet, or before an acquire of a signal behind it. tests/support/happens_before.py says the
// same in a few lines of Python, and random programs compare the two.
//
// Every granule (16 bytes of memory) remembers its accesses (thread, the thread's time, line, bytes): four in place,
// more in a list. An access is forgotten only when every access that conflicts with it conflicts with a later one too.
// The first access lies apart from the second, and both from the rest: most granules need no more, and 16 or 32 bytes
// for each fit the caches where 64 do not. Until epemu_check_begin the checker is off, and costs one test of a pointer.
#pragma once
#include <stdint.h>
#include <string.h>

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "by_number.hpp"
#include "vector_clock.hpp"
#include "machine.hpp"
#include "weak_memory.hpp"
#include "witness.hpp"

namespace epemu {

enum AccessFlags : uint8_t {
    kWrites = 1,
    kAtomic = 2,      // volatile too
    kStaged = 4,      // an addition by a NIC: it reads, adds and writes back
    kScopeShift = 3,  // two bits: epemu_scope of an atomic
    kAgain = 32,      // in a slot: a write to memory that was written before
    kVolatile = 64,   // formally an atomic
};
// More properties of an access, which slots do not keep.
enum AccessDetails : uint8_t {
    kReadsToo = 1,  // an atomic that writes and reads
    kAsync = 2,     // by a bulk copy
    kOfPair = 4,    // half of one access of 16 bytes
    kFailed = 8,    // a compare-and-swap that found another value, and wrote nothing
};

struct BlockCheck;
struct WeakMemory;

// Under weak memory: the write that a read-modify-write reads instead of the newest.
struct Behind {
    uint64_t value = 0;
    size_t message = 0;  // its place in coherence order
};

constexpr const char* kWeak = "weak memory";  // a finding that counts only if the run fails

// Uninitialised memory is filled with this word: NaN in any type of 2, 4 or 8 bytes. Memory that still holds it,
// without a write by a kernel or a NIC, is unwritten.
constexpr uint32_t kUnwritten = 0x7ff57fd3;

// Whether everything that a thread did up to this time of its own is in the past that this clock describes.
inline bool happens_before(uint32_t id, uint32_t time, const VectorClock& clock) { return clock.get(id) >= time; }

inline bool acquires(int order) { return order == EPEMU_ACQUIRE || order == EPEMU_ACQ_REL || order == EPEMU_SEQ_CST; }
inline bool releases(int order) { return order == EPEMU_RELEASE || order == EPEMU_ACQ_REL || order == EPEMU_SEQ_CST; }
inline uint8_t atomic_flags(int order, int scope, bool writes) {
    return static_cast<uint8_t>(kAtomic | (writes ? kWrites : 0) | (order == EPEMU_VOLATILE ? kVolatile : 0) |
                                scope << kScopeShift);
}

// Knowledge that a thread got from one location, or gave to it, by scope.
struct AtLocation {
    uintptr_t address;
    int size;
    Known known[3];
};

// A thread of a kernel, or an operation of a NIC.
struct ThreadCheck {
    VectorClock clock;          // its past, without its own accesses
    VectorClock proxied;        // the part of it that its bulk copies see
    uint32_t proxied_time = 0;  // bulk copies also see its own accesses up to this time; 0: `proxied` has the time
    uint32_t id;
    uint32_t time;  // its own count, which grows with every publication
    int rank;
    uint64_t block;  // Block::id, or a number that no block has
    BlockCheck* owner;
    Known fenced[3];                         // by scope: past covered by its last fence of at least this scope
    Known pending[3];                        // by scope needed: seen by relaxed loads, joined at the next fence
    Known sc_fenced[3], sc_pending[3];       // the same for fence.sc, also those of threads that it has met since
    std::vector<AtLocation> released, seen;  // the same for releases and acquires of one location
    uint32_t waited_pc = 0;                  // the last wait (acquire or quiet) that gave new knowledge
    uint32_t stores_called = 0;              // calls of tma_store so far
    uint32_t called_at[4];                   // its own times of the latest calls
    uint8_t details = 0;                     // AccessDetails of its current access
    uint32_t last_pc = 0;                    // where it has last accessed memory, or called an operation of its warp
    bool met_by_number = false;              // at a barrier that has one
    uintptr_t just_added = 0;                // where, if that was its last operation that may synchronise
    uint32_t asked_again_pc = 0;             // the last tma_wait, if this thread had waited for that round before
};

// The latest synchronisation of a block that ordered nothing: the likely cause of a later race.
struct Hint {
    enum Why : uint8_t { kNone, kNotReleased, kNotAcquired, kScope } why = kNone;
    int writer_rank = -1;
    uint32_t store_pc = 0, load_pc = 0;
    uint32_t writer = 0, stored = 0;  // the storing thread, and its own time then
};

// A signal that a thread of the block has acquired.
struct AcquiredSignal {
    int writer_rank;
    uint32_t store_pc, load_pc;
};

struct BlockCheck {
    uint32_t first_id;
    Hint hint;
    std::deque<AcquiredSignal> acquired;  // the latest, one for each pair of lines, newest last
    std::vector<ThreadCheck> threads;
};

struct OpCheck {
    ThreadCheck reader, writer;  // one pseudo-thread; its write knows more than its read
    size_t record;
};
inline OpCheck& check_of(NetOp& op) { return *static_cast<OpCheck*>(op.check); }

// An access of a kernel's thread or of a NIC, in order; without the quick repetitions of polling loops.
// Python reads this struct (ep_lib/emulator/accesses.py mirrors it).
struct AccessRecord {
    uint64_t address;
    uint32_t size;
    uint32_t flags;  // AccessFlags
    int32_t rank;
    int32_t block;    // blockIdx.x
    int32_t thread;   // its number in the block; -1: a NIC
    int32_t details;  // AccessDetails
};

// Hidden symbols: its functions call each other directly, and may be inlined.
class __attribute__((visibility("hidden"))) Checker {
  public:
    Checker(Machine& m, bool plain_volatile);
    ~Checker();
    Checker(const Checker&) = delete;

    void has_arrays(int rank, const std::vector<Range>& arrays);  // symmetric ones
    void launched(Launch* launch);                                // queued by the host
    void admitted(Block* block);
    void finished(Block* block, bool last_of_launch);
    void host_waited(int rank, int64_t ticket);
    void host_met();  // the hosts of all ranks, in a collective operation
    void host_access(int rank, uintptr_t address, size_t size, bool writes, const std::string& where);

    void fill_unwritten(uintptr_t begin, uintptr_t end);  // memory that the host allocated uninitialised
    void access(Fiber* fiber, uintptr_t address, size_t size, uint8_t flags, uintptr_t pc);
    // True if weak memory lets it return an older value, which goes to `value`. Null: it always reads the newest.
    bool load(Fiber* fiber, uintptr_t address, uint64_t* value, int size, int order, int scope, uintptr_t pc);
    // False if weak memory orders this store before the current value, which memory then keeps. Null: the value is not
    // known yet.
    bool store(Fiber* fiber, uintptr_t address, const uint64_t* value, int size, int order, int scope, uintptr_t pc);
    // Gives the last store its value, if that was kLater. Returns the value that memory must hold now.
    uint64_t stored_now(Fiber* fiber, uintptr_t address, uint64_t value, int size);
    static const uint64_t kLater;  // the value of a store, known only afterwards
    void needs_value(Fiber* fiber, uintptr_t address, int size, int scope, uintptr_t pc);
    // Before an exchange: if the program does not use the old value (`found`), it is only a store.
    void swaps(Fiber* fiber, uintptr_t address, size_t size, uintptr_t pc);
    void found(Fiber* fiber, uintptr_t address);
    void update(Fiber* fiber, uintptr_t address, uint64_t now, int size, int order, int scope, uintptr_t pc,
                const Behind* behind = nullptr);
    // Under weak memory: an older value that a read-modify-write may get instead. False: the newest.
    bool may_update_behind(Fiber* fiber, uintptr_t address, int size, const std::function<uint64_t(uint64_t)>& updated,
                           Behind* behind);
    void fence(Fiber* fiber, int order, int scope);
    void barrier(Block* block);
    void syncwarp(Warp* warp, uint32_t mask);
    void meet(const std::vector<Fiber*>& fibers);  // at a barrier by number

    Witness witness;                   // evidence about signals, locks and fences for findings
    std::unique_ptr<WeakMemory> weak;  // null: memory is sequentially consistent

    void net_posted(NetOp& op, Fiber* poster, uintptr_t pc);
    void net_read(NetOp& op, uintptr_t address, size_t bytes);
    void net_wrote(NetOp& op, uintptr_t address, size_t bytes);
    void net_signalled(NetOp& op, uint64_t now);
    void net_completed(NetOp& op);
    void net_fence(int source, int target, int queue_pair);
    VectorClock net_posted_so_far(int source, int target, int queue_pair);  // what a quiet waits for
    void net_quiet(Fiber* fiber, const VectorClock& covered, uintptr_t pc);

    // Copies that end together, in a round of a barrier or in a group, are one thread: it reads at its time, and writes
    // one later.
    void copy_posted(NetOp& op, Fiber* poster, BulkCheck* check);
    void store_called(Fiber* fiber);  // each lane calls this before a bulk store is posted
    void copy_read(const NetOp& op);
    void copy_wrote(NetOp& op);
    Known barrier_arrived(Fiber* fiber, uintptr_t barrier, uintptr_t pc);
    void barrier_waited(Fiber* fiber, uintptr_t barrier, const Known& complete, bool again, uintptr_t pc);
    void copies_complete(const BulkCheck& check, bool written, Known* known);  // adds them to `known`
    void copies_awaited(Fiber* fiber, const BulkCheck& check, bool written);
    void copies_forgotten(const BulkCheck& check);  // no other thread can observe them any more
    void copies_end_with_block(const BulkCheck& check, const Block* block, bool read_awaited);
    void rounds_end_with_block(const Known& complete, const Block* block);
    void copy_outlives(const NetOp& op, const Block* block);
    void proxy_fence(Fiber* fiber);

    void read_only(Fiber* fiber, uintptr_t address, size_t size, uintptr_t pc);  // a load by the read-only path follows
    // A value that CUDA leaves undefined: a mistake if results depend on it.
    void undefined(const Fiber* fiber, uintptr_t pc, const char* kind, std::string remedy, std::string detail);
    void never_came(const Fiber* fiber, const Fiber* gone, std::string detail);
    std::string* other_value(const Fiber* fiber, uintptr_t pc, const char* kind);  // see Machine::other_value

    void polled(uintptr_t address, uintptr_t pc);  // a thread reads there again, with no change in between

    std::string findings() const;  // JSON
    std::string who_stored(const SyncStore& s) const;
    std::string who_did(const Deed& d) const;  // the same
    std::string spot(uint32_t pc) const;
    std::string spots(const std::set<uint32_t>& pcs) const;
    std::string polls() const;  // JSON: the places that polled
    void looked_at_clock(uintptr_t pc) {
        clocks_.insert(static_cast<uint32_t>(pc));
        clock_looks++;
    }
    uint64_t clock_looks = 0;
    std::string clocks() const;  // JSON: the places that read a clock
    void chosen_from(uintptr_t pc) { chosen_from_.insert(static_cast<uint32_t>(pc)); }
    std::string choices() const;  // JSON: barriers by number to which more warps come than they take

    size_t kept_accesses = 0;            // how many at most
    std::vector<AccessRecord> accesses;  // the first ones

  private:
    static constexpr size_t kGranule = 16, kPage = 4096, kCachedPages = 1024;
    static constexpr uint64_t kNoBlock = ~1ull;
    static constexpr uint32_t kIdChunk = 32;
    struct Slot {
        uint32_t id;
        uint32_t time;
        uint32_t pc;  // its lower half
        uint16_t bytes;
        uint8_t flags;
        uint8_t of_cell;  // in its first slot: CellFlags
    };
    enum CellFlags : uint8_t {
        kAllWritten = 1,  // if there is no rest: all bytes are written; otherwise none
        kHasSecond = 2,
        kHasRest = 4,
    };
    static constexpr uint16_t kAllBytes = 0xffff;
    // The part of a granule behind its first two slots. Its memory is uninitialised until the cell opens it.
    struct alignas(64) Rest {
        Slot slots[3];      // four threads' words, and a write by the host before
        uint32_t more;      // if five slots are not enough: index + 1 of an entry of more_
        uint16_t written;   // bytes ever written by kernels and NICs: slots forget
        bool synchronises;  // whether threads synchronise by any of these bytes: locations_ has an entry
    };
    struct Cell {
        Slot* first;
        Slot* second;
        Rest* rest;
        bool has_second() const { return first->of_cell & kHasSecond; }
        bool has_rest() const { return first->of_cell & kHasRest; }
        Rest& open_rest() {
            if (has_rest()) return *rest;
            *rest = Rest();
            rest->written = written();
            first->of_cell = static_cast<uint8_t>((first->of_cell & kHasSecond) | kHasRest);
            return *rest;
        }
        void close_what_is_empty() {
            if (has_second() && !second->bytes) first->of_cell &= static_cast<uint8_t>(~kHasSecond);
            if (!has_rest() || any_slot([&](const Slot& slot) { return &slot != first && &slot != second; })) return;
            if (rest->more || rest->synchronises || (rest->written && rest->written != kAllBytes)) return;
            first->of_cell = static_cast<uint8_t>((first->of_cell & kHasSecond) | (rest->written ? kAllWritten : 0));
        }
        uint16_t written() const {
            return has_rest() ? rest->written : first->of_cell & kAllWritten ? kAllBytes : uint16_t{0};
        }
        void forget_written() {
            if (has_rest()) {
                rest->written = 0;
            } else {
                first->of_cell &= static_cast<uint8_t>(~kAllWritten);
            }
        }
        void add_written(uint16_t bytes) {
            if (has_rest()) {
                rest->written |= bytes;
            } else if (bytes == kAllBytes) {
                first->of_cell |= kAllWritten;
            } else if (!(first->of_cell & kAllWritten)) {
                open_rest().written = bytes;
            }
        }
        bool synchronises() const { return has_rest() && rest->synchronises; }
        uint32_t more() const { return has_rest() ? rest->more : 0; }
        template <class Each>
        bool any_slot(const Each& each) const {
            if (first->bytes && each(*first)) return true;
            if (has_second() && second->bytes && each(*second)) return true;
            if (!has_rest()) return false;
            for (const Slot& slot : rest->slots)
                if (slot.bytes && each(slot)) return true;
            return false;
        }
    };
    // Cells of memory without gaps, in three arrays.
    struct Cells {
        Slot* first = nullptr;
        Slot* second = nullptr;
        Rest* rest = nullptr;
        Cell operator[](size_t granule) const { return {first + granule, second + granule, rest + granule}; }
    };
    // A slot as two words: a read of the whole right after writes of its parts would wait for all earlier stores.
    struct Words {
        uint64_t low = 0, high = 0;
        Words() = default;
        Words(uint64_t l, uint64_t h) : low(l), high(h) {}
        explicit Words(const Slot& slot) { memcpy(this, &slot, sizeof slot); }
        void to(Slot* slot) const { memcpy(static_cast<void*>(slot), this, sizeof *slot); }
        bool operator==(const Words& other) const { return !((low ^ other.low) | (high ^ other.high)); }
    };
    // The state into which an access turns a granule without a rest. The next granule with the same past gets the same
    // state, while the thread's knowledge is unchanged.
    struct Step {
        Words who, what, before[2], after[2];
    };
    // Accesses to one granule with the same bytes and flags, the latest of each thread, warp by warp.
    struct WarpAccesses {
        uint32_t number, lanes, pc;  // the warp, its lanes with such accesses, and the line of the latest
        uint32_t time;               // of the accesses, if all lanes have the same time
        uint32_t apart;              // otherwise: index + 1 of the lanes' times in Crowd::times; else 0
    };
    struct Crowd {
        uint16_t bytes;
        uint8_t flags;
        int rank;  // of all these threads; -1: of several ranks
        ByNumber<WarpAccesses> warps;
        std::vector<std::array<uint32_t, kWarpSize>> times;  // for warps whose lanes' times differ
        VectorClock known;                                   // an access with this clock comes after all of them
        uint32_t time_of(const WarpAccesses& w, uint32_t lane) const {
            return w.apart ? times[w.apart - 1][lane] : w.time;
        }
        void add(WarpAccesses& w, uint32_t lane, uint32_t time, uint32_t pc);
        template <class Each>
        void for_each(const Each& each) const {
            for (const WarpAccesses& w : warps.all)
                for (uint32_t rest = w.lanes; rest; rest &= rest - 1) {
                    const uint32_t lane = __builtin_ctz(rest);
                    if (!each(Slot{w.number * kWarpSize + lane, time_of(w, lane), w.pc, bytes, flags, 0})) return;
                }
        }
    };
    struct More {
        std::vector<Slot> slots;  // up to kFewSlots
        std::vector<Crowd> crowds;
        uint32_t version = 0;  // changes with each reuse, and with each access but another read
    };
    // A lane's read that has joined a crowd. Lanes of its warp with the same knowledge and the same read join it too.
    struct JoinedCrowd {
        const Slot* cell;
        uint64_t what;  // line and bytes
        uint32_t warp, clock, version;
        uint32_t apart;  // lanes that have a slot of their own here
        More* more;
        size_t crowd, place;
    };
    // The block that had a range of ids since some time: later blocks of the rank reuse ids.
    struct Past {
        uint32_t since;
        int rank;
        uint64_t block;
        epemu_dim3 index, dim;
        std::shared_ptr<const std::string> kernel;
        int64_t launch;             // its ticket, which counts the rank's launches
        int few = 0;                // threads at its latest barrier that others, which had ended, did not reach ...
        uint32_t first_of_few = 0;  // ... and one of them
    };
    struct Ids {
        uint32_t first, count;
        int rank;
        bool nic;
        bool host = false;
        uint32_t next_time = 1;
        std::vector<Past> past;
    };
    struct LaunchCheck {
        VectorClock start, end;
        bool started = false;
        std::shared_ptr<const std::string> kernel;
        std::vector<size_t> ids;  // returned when the launch has ended
    };
    struct RankCheck {
        VectorClock stream, host;
        uint32_t host_id = 0, host_time = 0;                // the host as a thread; 0: no access yet
        std::deque<AcquiredSignal> acquired;                // by any of its blocks
        std::deque<std::pair<int64_t, VectorClock>> ended;  // launches that the host has not waited for
    };
    struct Published {
        Known known;
        int scope, rank;  // of the first operation of the release pattern
        uint64_t block;
        bool by_sc;  // by fence.sc of threads that the writer has met since: only for readers with a fence.sc behind
    };
    struct Observed {
        uint32_t from, to;  // writes of the location
        uint32_t time;      // of the thread that observed them
        uint32_t before;    // index + 1 of the thread's previous entry; 0: none
    };
    struct OfThread {  // at a location
        uint32_t number, last_write;
        uint32_t latest, count;  // index + 1 of its latest entry in `observed`, and the number of its entries
    };
    // A strong write, as its readers see it.
    struct Write {
        std::vector<Published> published;
        bool strong = false;  // only atomics have written there since
        int scope = 0, rank = -1;
        uint64_t block = 0;
        // Strong writes are numbered. A thread that has observed one has also observed those before it, back to the
        // last one that was no read-modify-write: `chain`.
        uint32_t number = 0, chain = 0;
        // for reports
        uint32_t writer = 0, stored = 0, store_pc = 0;
        int writer_rank = -1;
        bool any_release = false;
    };
    // A strong write that weak memory keeps for threads that do not know a newer one.
    struct Message {
        Write write;  // unused in the newest message: the location has its write
        uint64_t value = 0;
        uint64_t stamp = 0;                               // its number among all messages
        uint64_t pair_stamp = 0;                          // of the first word of the same access; 0: none
        uint32_t id = 0, time = 0;                        // the writer, and its own time then
        bool was_there = false;                           // the initial value, which all threads know
        bool follows = false;                             // a read-modify-write, which directly follows what it read
        std::vector<std::pair<uint32_t, uint32_t>> seen;  // threads that have observed it, and when
    };
    struct History {
        std::vector<Message> messages;                // in coherence order; memory holds the last
        std::unordered_map<uint32_t, uint8_t> stale;  // by thread: successive loads that missed the newest value
    };
    // A location of atomics; the base is its last write.
    struct Location : Write {
        uintptr_t address = 0;
        int size = 0;
        uint64_t owner = 0;               // the memory's owner: several may use an address in turn
        uint32_t writes = 0, behind = 0;  // numbers given so far: of those that memory took, and of those behind others
        ByNumber<OfThread> threads;
        std::vector<Observed> observed;    // entries of all threads
        std::unique_ptr<History> history;  // under weak memory
    };
    // An access, while it is compared with earlier ones.
    struct Access {
        const ThreadCheck& t;
        uint16_t bytes;
        uint8_t flags, details;
        uint32_t pc;
        uintptr_t address;
        bool own_memory;            // the array belongs to one rank
        mutable bool told = false;  // there is a finding about this access
    };
    struct Record {  // an operation of a NIC
        uint64_t number;
        NetKind kind;
        bool signal, data;
        int source, target, queue_pair;
        size_t bytes;
        Poster poster;
        uint32_t id, time;  // of the pseudo-thread that reads its source
        uint32_t poster_id, poster_time;
        uint32_t call;                       // of bulk stores: the number of the poster's last tma_store
        uintptr_t to_begin = 0, to_end = 0;  // of bulk loads: the range that they write
        uint64_t posted, first_read = 0, last_read = 0, first_write = 0, delivered = 0, completed = 0;
        uintptr_t sets = 0;    // the signal, unless it is added to
        NetOrder beside = {};  // of another thread of its poster's block, before this but unordered with it
    };
    struct Event {  // of a thread of this block
        uint32_t id, time;
        uint64_t block;
    };
    struct Side {
        uint32_t id, time, pc;
        uint8_t flags;
    };
    // A write that a reader has met too early. Only the end of the run shows whether, and where, its writer signals.
    struct Unsettled {
        bool is = false;
        uint64_t writer_block = 0;
        uint32_t writer = 0, written = 0;
        uint64_t reader_block = 0;
        uint32_t read_pc = 0;
        bool in_any_line = false;  // also in the line of the signal that the reader has acquired
    };
    // The judgement of one occurrence of a conflict. Of all occurrences at a pair of places, the surest is reported.
    struct Verdict {
        const char* kind = "race";
        std::string remedy;
        std::string detail;
        int certainty = 0;  // see checker_findings_threads.cpp
        std::string what;   // goes `how` ("between", "before", "at", ...) these places; findings.py makes a sentence
        const char* how = "";
        uint32_t from = 0, to = 0;
        uint32_t signal = 0, wait = 0;  // lines by which the two sides should synchronise
        uint32_t called = 0;            // where the function of `signal` returns to, if known
        uintptr_t lock = 0;             // that both sides seem to hold; withdrawn if it turns out to be none
        bool sets_flag = false;         // ... that the atomic sets and the plain access reads
        bool poster_may_wait = false;   // for the operation: then only a barrier is missing behind its wait
        bool mixed = false;             // an atomic against a plain access: is it a signal?
        bool in_one_rank = false;       // it is unknown which of the writer's signals announces this write
        Unsettled unsettled;
        uint64_t giver = 0;       // the block of what may end a wait ...
        uintptr_t waited_on = 0;  // ... at this address ...
        uint32_t waited_in = 0;   // ... in this line
        uint32_t look = 0;        // a line in which both have found the same ...
        uintptr_t looked_at = 0;  // ... at this address ...
        uint32_t looked[2];       // ... at these times of their own
    };
    struct Finding {
        Verdict verdict;
        std::string where;
        Side first, second;
        uint64_t count;
        std::set<int> ranks;             // of the second access
        std::set<uintptr_t> words = {};  // addresses of volatile accesses
        uint64_t judged[3] = {};         // occurrences: in a warp, in a block, and beyond
        uint64_t stores_seen[2] = {};  // of pairs of plain ones: that leave another value, and that leave it as it was
    };
    struct Conflict {
        const ThreadCheck& t;
        uint16_t bytes;
        uint8_t flags;
        uint32_t pc;
        const Slot& slot;
        const Cell& cell;
        bool again;  // the second access writes to memory that was written before
        uintptr_t address;
    };

    size_t new_ids(int rank, uint32_t count, bool nic);
    std::pair<uint32_t, uint32_t> new_op(int rank);
    static void publish_host(RankCheck& rank);
    const Ids& ids_of(uint32_t id) const { return ids_[ids_by_chunk_[id / kIdChunk]]; }
    const Past& past_of(uint32_t id, uint32_t time) const;
    Cells cells_of_page(uintptr_t page);
    Cell cell_at(uintptr_t address) {
        const uintptr_t in_heaps = address - reinterpret_cast<uintptr_t>(m_.heaps);
        if (in_heaps < m_.heaps_bytes) return heap_cells_[in_heaps / kGranule];
        const uintptr_t in_shared = address - reinterpret_cast<uintptr_t>(m_.shared_area);
        if (in_shared < kSharedSlots * kSharedSlotBytes) return shared_cells_[in_shared / kGranule];
        return cells_of_page(address / kPage)[address % kPage / kGranule];
    }
    void touch(const ThreadCheck& t, uintptr_t address, size_t size, uint8_t flags, uintptr_t pc, uint8_t details = 0);
    void keep(const ThreadCheck& t, uintptr_t address, size_t size, uint8_t flags, uint8_t details);
    void touch_cell(Cell cell, const Access& a);
    void step(Cell cell, const Access& a);
    JoinedCrowd& joined_crowd(const Cell& cell, const Access& a);
    bool joins_crowd(const Cell& cell, const Access& a);
    void has_joined(const Cell& cell, const Access& a, Crowd* crowd);
    void touch_run(Cell cell, uintptr_t end, const Access& first);
    bool any_written_in_shared(size_t offset, size_t size, bool writes);
    enum class Fate { kStays, kGoes, kSame };  // kSame: the new access adds nothing
    Fate compare(const Slot& slot, const Access& a, const Cell& cell, bool* again);
    Fate compare_first(const Slot& slot, const Access& a, const Cell& cell, bool* again);
    Fate compare_crowd(Crowd& crowd, const Access& a, const Cell& cell, bool again);
    Crowd* remember(Rest& rest, const Slot& access);
    void forget_cells(Cells cells, size_t count);
    bool conflict(const Access& a, const Slot& slot) const;
    bool replaces(const Access& a, const Slot& slot) const;
    uint64_t block_of(uint32_t id, uint32_t time) const;
    void race(const Access& a, const Slot& slot, const Cell& cell, bool again);
    void never_written(const ThreadCheck& t, uint8_t flags, uintptr_t pc, uintptr_t address, size_t size,
                       bool shared = true);
    bool is_unwritten(uintptr_t address, size_t size);
    void read_of_memory(const ThreadCheck& t, uintptr_t address, size_t size, uint8_t flags, uintptr_t pc) {
        constexpr uintptr_t kWord = sizeof kUnwritten;
        if (__builtin_expect(*reinterpret_cast<const uint32_t*>(address & ~(kWord - 1)) == kUnwritten, 0) &&
            is_unwritten(address, size))
            never_written(t, flags, pc, address, size, false);
    }
    void see_value();
    Finding& note(const Side& first, const Side& second);
    void report_as(Finding& finding, const Side& first, const Side& second);
    const ThreadCheck* running(uint32_t id, uint64_t block) const;
    bool knows_of_block(const ThreadCheck& t, const ThreadCheck& other) const;
    bool knows_of_other_block(const ThreadCheck& t, const Past& past) const;
    const ThreadCheck* sibling_ahead(const ThreadCheck& t, const ThreadCheck* other) const;
    uint32_t signal_of(int reader_rank, const ThreadCheck* reader, int writer_rank, uint32_t but,
                       uint32_t* wait = nullptr) const;
    const Fiber* polling_sibling(const ThreadCheck& t) const;
    bool judge_waiting_sibling(const ThreadCheck* reader, uint32_t read_at, uint32_t pc, Verdict* v) const;
    bool judge_early_post(const Record& post, uint32_t writer, uint64_t block, uint32_t write_pc, uint32_t post_pc,
                          Verdict* v) const;
    Verdict judge(const Conflict& c) const;
    bool judge_synchronisation(const Conflict& c, Verdict* v) const;
    static bool follows(const Event& e, const SyncLoad& l);
    bool judge_link(const Event& e, const SyncLoad& l, int rank, uint64_t block, Verdict* v) const;
    bool judge_hand_over(const Conflict& c, Verdict* v, bool others) const;
    bool judge_one_sided_lock(const Conflict& c, Verdict* v) const;
    bool judge_stale(const ThreadCheck* reader, const Past& writer, Verdict* v) const;
    void judge_old_credit(const ThreadCheck& writer, uint32_t reader, uint64_t reader_block, Verdict* v) const;
    void note_wait(const Conflict& c, bool itself, Verdict* v) const;
    bool is_wait(const std::vector<SyncLoad>& waits, uint32_t pc) const;
    bool judge_needless_wait(uint64_t writer_block, uint32_t writer, uint32_t until,
                             const std::vector<SyncLoad>& data_waits, Verdict* v) const;
    static bool after_own_call(const ThreadCheck& t, uint32_t call, uint32_t time);
    bool judge_phase(const ThreadCheck& t, Verdict* v) const;
    bool has_just_read(const Conflict& c) const;
    const NetOrder* quiet_behind(const Record& post) const;
    void judge_other_queue(const Record& put, Verdict* v) const;
    void judge_each_signal(const Record& put, const VectorClock& known, uint32_t put_pc, Verdict* v) const;
    bool judge_beside(const Record& put, const VectorClock& known, uint32_t put_pc, const Unsettled& u,
                      Verdict* v) const;
    void judge_version(const SyncLoad* look, uint64_t reader_block, uint32_t read, uint32_t write, Verdict* v) const;
    bool judge_signal_of_sibling(const Record& put, const VectorClock& known, uint32_t put_pc, uint32_t signal,
                                 const Unsettled& u, Verdict* v) const;
    bool hand_over_by_flags(const ThreadCheck& t, uint32_t other, uintptr_t data) const;
    Verdict settled(const Finding& f) const;
    Verdict judge_host(const Conflict& c) const;
    Verdict judge_threads(const Conflict& c) const;
    Verdict judge_nic(const Conflict& c) const;
    Verdict judge_nic_wrote(const Conflict& c, const Record& first) const;
    Verdict judge_nic_writes(const Conflict& c, const Record& second) const;
    Verdict judge_copy(const Conflict& c, const Record* first, const Record* second) const;
    void judge_far_copy(const Conflict& c, const Record* first, const Record* second, Verdict* v) const;
    static bool is_copy(const Record* r);
    void read_only_of_written(const ThreadCheck& t, uint32_t pc, const Slot& slot, uintptr_t address);
    void not_fenced(const Access& a, const Slot& slot);
    void marks_only_the_end(const ThreadCheck& t, uintptr_t address, uint32_t pc, uint8_t flags);
    const Record* record_of(uint32_t id, uint32_t time) const;
    static Known publish(ThreadCheck& t);
    void join(VectorClock& clock, const VectorClock& other);
    void join(ThreadCheck& t, const Known& known);
    static int scope_between(const ThreadCheck& t, int rank, uint64_t block);
    Location* known_location(const ThreadCheck& t, uintptr_t address, int size);
    Location& location(const ThreadCheck& t, uintptr_t address, int size);
    void overwritten(const Access& a);
    void contribute(Write& w, const ThreadCheck& t, Known known, int scope, bool by_sc = false);
    void release_into(Write& w, const Location& l, ThreadCheck& t, int order, int scope);
    bool observes(const Write& w, const ThreadCheck& t, int scope) const;
    static void observe(Location& l, const Write& w, const ThreadCheck& t);
    bool has_observed(const Access& a, const Slot& slot);
    void acquire_from(const Write* w, ThreadCheck& t, uintptr_t address, int size, int order, int scope, uint32_t pc);
    void wrote_atomically(Location& l, Write& w, const ThreadCheck& t, int scope, int writer_rank, uint32_t pc,
                          bool updates);
    void note_acquired(ThreadCheck& t, const Write& w, uint32_t pc);
    // weak_memory.cpp
    History* history_of(Location& l);
    bool knows(const ThreadCheck& t, const Message& m) const;
    size_t newest_known(const ThreadCheck& t, const History& h) const;
    size_t choose_message(Location& l, const ThreadCheck& t);
    size_t choose_place(Location& l, const ThreadCheck& t);
    size_t make_newest(Location& l);
    void written(Location& l, Write& w, size_t place, const uint64_t* value, const ThreadCheck& t, uint32_t time,
                 bool follows);
    void saw(Location& l, size_t message, const ThreadCheck& t);
    void noticed(const Location& l, const Write& w, size_t message, const ThreadCheck& t, int order, uint32_t pc);
    void stored_behind(const Location& l, size_t place, const ThreadCheck& t, uint32_t pc);
    void sc_fence(ThreadCheck& t, int scope);
    void order_by_fence(ThreadCheck& t, int order, int scope);
    void suspect(const Side& first, const Side& second, uintptr_t address, int certainty, std::string remedy,
                 uint32_t signal, uint32_t wait);
    void forget_histories();
    template <class Each>
    void join_all(const Each& each);
    VectorClock& link(std::unordered_map<uint64_t, VectorClock>& clocks, int source, int target, int queue_pair);
    std::string side(const Side& s) const;
    std::string place(uint32_t pc) const;
    uint64_t offset_of(uint32_t pc) const;

    Machine& m_;
    const bool plain_volatile_;  // whether two volatile accesses to unpolled words conflict
    struct {
        VectorClock clock, other, both;
    } joined_;  // the last join: the lanes of a warp often repeat it in turn
    std::set<uintptr_t> polled_words_;
    std::set<uint32_t> polled_at_, clocks_, chosen_from_;
    static constexpr uint32_t kStepBits = 6, kJoinedBits = 6;
    Step steps_[1 << kStepBits] = {};
    JoinedCrowd joined_crowds_[1 << kJoinedBits] = {};
    uint32_t versions_ = 0;  // the last version given to an entry of more_
    std::vector<Crowd> spare_crowds_;
    Cells heap_cells_, shared_cells_;
    uint8_t* shared_written_;  // a bit a byte
    size_t heap_granules_, shared_granules_, shared_written_bytes_;
    struct Swap {
        size_t size;
        uintptr_t pc;
    };
    std::map<std::pair<uint32_t, uintptr_t>, Swap> unwritten_swaps_;  // by thread and address
    std::unordered_map<uintptr_t, Cells> pages_;                      // cells of arrays and globals, by address / 4096
    struct CachedPage {
        uintptr_t page;
        Cells cells;
    };
    std::vector<CachedPage> page_cache_;
    std::vector<Ids> ids_;
    std::vector<uint32_t> ids_by_chunk_;
    std::unordered_map<uint64_t, std::deque<size_t>> free_ids_;  // by rank and count
    std::unordered_map<const Launch*, LaunchCheck> launches_;
    static Cells reserve_cells(size_t granules);
    void give_back();  // unmaps the cells

    std::vector<RankCheck> ranks_;
    std::vector<std::string> host_places_;  // lines of Python, which serve as the pc of a host's accesses
    std::unordered_map<uintptr_t, std::vector<Location>> locations_;  // by granule
    std::deque<More> more_;
    std::vector<uint32_t> free_more_;
    std::unordered_map<uint64_t, VectorClock> posted_, fences_;  // by link and queue pair
    std::unordered_map<uint64_t, VectorClock> read_, written_;   // the gets of posted_, and all other operations
    std::vector<Record> records_;
    std::unordered_map<uint64_t, size_t> record_by_op_;                // by id and time
    std::vector<std::deque<std::pair<uint32_t, uint32_t>>> free_ops_;  // by rank: id, next time
    std::vector<Finding> findings_;
    struct {
        uint32_t id = UINT32_MAX;  // none
        size_t finding = 0;
        uintptr_t address = 0;
        uint64_t before = 0;
    } racing_store_;  // whose value is known at the next access of its thread
    std::unordered_map<uint64_t, size_t> finding_by_place_;
};

extern __attribute__((visibility("hidden"))) Checker* checker;  // of the running machine, null while checks are off

}  // namespace epemu
