// The emulator's state: ranks, their heaps, launches, blocks, warps and fibers. One Machine is one world of ranks.
//
// Begin here. A launch (api.cpp) queues a grid; scheduler.cpp makes its blocks resident and asks the schedule
// (schedule.hpp) for one turn after another; in a turn, the lanes of a warp run one by one as fibers (fiber.cpp).
// Memory accesses go to sanitizer_hooks.cpp and memory.cpp, CUDA built-ins to builtins.cpp, NIC operations to
// network.cpp. If switched on, the checker (checker.hpp) and virtual time (virtual_time.hpp) observe them.
//
// One OS thread at a time runs a Machine (Python's worker thread). In a world of one process the other threads wait
// meanwhile, so only the text that kernels print has a lock: another thread drains it. In a world of several processes
// (Settings::home) each has a Machine of its own: the processes share the heaps of all ranks, accesses to them have the
// hardware's order, and a rank's host continues while its kernels run (host_lock).
#pragma once
#include <stdarg.h>
#include <stdint.h>

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "ep_emulator/abi.h"
#include "network.hpp"
#include "schedule.hpp"

namespace epemu {

constexpr int kWarpSize = 32;
constexpr size_t kSharedSlotBytes = 256 << 10;  // more than the 227 KB that a Hopper block can ask for
constexpr size_t kSharedSlots = 4096;           // blocks resident at once, over all ranks

struct Block;
struct BlockCheck;
struct FaultInjection;
class Forwarder;
struct ThreadCheck;
struct Warp;
class Checker;
class Recorder;
class VirtualTime;

// Why a fiber is not running.
enum class State : uint8_t {
    kRunnable,
    kBarrier,     // __syncthreads
    kNamed,       // one of the block's other barriers
    kWarp,        // a warp-wide operation
    kActiveMask,  // __activemask, until no other lane of the warp can still arrive
    kPolling,     // a polling loop that saw the same values repeatedly
    kNetwork,     // a quiet, or room in a full queue pair
    kStopped,     // the rank stopped here, as configured
    kPrinting,    // text to format on the scheduler's stack
    kDone,
};

// The locations that a polling loop reads. A fiber that loads them again, finds the same values and has changed nothing
// in between cannot leave its loop until another thread stores: it is parked until then.
struct PollSet {
    static constexpr int kMax = 8;
    struct Seen {
        uintptr_t address;
        uint64_t value;
        uint64_t state;  // in exhaustive schedules: the thread's state at its last poll here
        uint32_t mark;   // in exhaustive schedules: the length of its `touching` then
        uint8_t size;
        uint8_t repeats;  // times seen unchanged
    };
    struct Store {
        uintptr_t address;
        uint64_t before;
        uint8_t size;
    };
    Seen loads[kMax];
    Store stores[kMax];
    // While time stands: the thread's state when it was parked, and where its function returns to.
    uint64_t state;
    uintptr_t caller;
    uint8_t num_loads;
    uint8_t num_stores;
    bool used_clock;  // the loop reads a clock, so time must pass for it

    // Where the loop begins: what stands before belongs to waits that ended at their first look.
    int begins() const {
        for (int i = 0; i < num_loads; i++)
            if (loads[i].repeats) return i;
        return 0;
    }
    const Seen& first() const { return loads[begins()]; }
};

// Memory that begins at a cache line. glibc before 2.38 rarely reuses freed memory of aligned_alloc, so a process that
// runs thousands of programs would grow.
template <typename T>
struct LineAllocator {
    using value_type = T;
    static constexpr size_t kLine = 64;
    LineAllocator() = default;
    template <typename U>
    LineAllocator(const LineAllocator<U>&) {}
    T* allocate(size_t n) {
        char* memory = static_cast<char*>(::operator new(n * sizeof(T) + kLine));
        char* line = memory + kLine - reinterpret_cast<uintptr_t>(memory) % kLine;
        line[-1] = static_cast<char>(line - memory);
        return reinterpret_cast<T*>(line);
    }
    void deallocate(T* line, size_t) {
        char* begin = reinterpret_cast<char*>(line);
        ::operator delete(begin - begin[-1]);
    }
    bool operator==(const LineAllocator&) const { return true; }
    bool operator!=(const LineAllocator&) const { return false; }
};

struct alignas(64) Fiber {
    // One cache line holds everything that a switch, or an access under the checker, touches.
    void* stack_pointer;
    char* stack;  // lowest address; null until the fiber first runs
    Block* block;
    Warp* warp;
    ThreadCheck* check;  // null while checks are off
    // the operation that the fiber waits in
    const char* what;
    uintptr_t pc;
    uint32_t mask;  // of a warp-wide operation; for a barrier: its call site
    int16_t op;
    uint8_t lane;
    State state;
    epemu_dim3 thread;
    int arg, width;
    uint64_t value, result;
    std::unique_ptr<PollSet> polls;
    const char* format;
    va_list* format_args;
    double time;       // virtual, in ns
    size_t wait_span;  // index + 1 of its last wait span; 0: none

    void begin_again() {
        what = "";
        pc = 0;
        check = nullptr;
        time = 0;
        wait_span = 0;
    }
};

struct Warp {
    Block* block;
    Fiber* lanes;
    uint8_t num_lanes;
    uint32_t runnable, arrived, exited, in_activemask, in_barrier;
    uint64_t stalled_until;  // count of picks until which the scheduler prefers other warps
    size_t queue_index;      // in virtual time: its place in the heap while runnable != 0
    double ready;            // in virtual time: when its first lane can go on
    uint64_t order;          // in virtual time: breaks ties of `ready`
    size_t copy_span;        // index + 1 of its last copy span; 0: none
    int64_t priority;        // in schedules by PCT

    void begin_again() {
        runnable = arrived = exited = in_activemask = in_barrier = 0;
        stalled_until = 0;
        copy_span = 0;
    }
};

// A variable of a kernel's library, at its offset there; a __shared__ one at its offset in a block's shared memory.
struct Variable {
    uint64_t begin, bytes;
    bool shared;
    std::string name;
};

struct Range {
    uintptr_t begin, end;
    bool writable;
};

struct Image {
    std::string path;
    void* handle;
    uintptr_t base;
    struct Segment {
        uintptr_t begin, end;
        bool executable;
    };
    std::vector<Segment> segments;
    Range relocated{};                // written by the loader, read-only after that
    std::vector<Range> memory;        // its constants and variables, which kernels may access
    std::vector<Variable> variables;  // read when a report first asks for a name
    bool has_read_variables = false;
    bool contains(uintptr_t address, bool executable) const {
        for (const auto& s : segments)
            if (address >= s.begin && address < s.end && (!executable || s.executable)) return true;
        return false;
    }
};

using Entry = void (*)(void** args);

// The arrays in a symmetric heap: their offsets, sorted. Immutable, so that launches can share them.
using SymmetricArrays = std::shared_ptr<const std::vector<Range>>;

struct Launch {
    int64_t ticket;
    int rank;
    bool is_service = false;  // runs beside the rank's stream as long as the machine exists, like a thread of the host
    std::string kernel;
    Image* image;
    Entry entry;
    epemu_dim3 grid, block;
    size_t static_shared, dynamic_shared;
    std::vector<char> arg_bytes;
    std::vector<void*> args;
    std::string parameters;          // a line for each pointer: argument, offset, element bytes (0: unknown), name
    std::vector<Range> ranges;       // host arrays this launch may touch, sorted by address
    std::vector<Range> read_only;    // those of parameters that are const T* __restrict__; under checks
    Range recent[2] = {};            // the arrays of the last read and the last write
    SymmetricArrays arrays;          // the host's arrays at the launch
    Range recent_symmetric[2] = {};  // the same as `recent` in the heaps, as offsets
    uint64_t num_blocks, next_block = 0, finished_blocks = 0;
    double queued_ns = 0, end_ns = 0;  // in virtual time; end_ns: when the last block so far ended
};

struct Block {
    Launch* launch;
    epemu_dim3 index, dim;
    int num_threads, live, arrived = 0;
    char* shared;
    size_t shared_bytes, slot;
    int barrier_count = 0;  // predicates that were non-zero in the current __syncthreads_*
    int barrier_result = 0, participants = 0;
    int64_t clock = 0;
    std::vector<Fiber, LineAllocator<Fiber>> fibers;
    std::vector<Warp> warps;
    struct Named {
        unsigned id, threads;  // 0: all
        std::vector<Fiber*> arrived;
    };
    std::vector<Named> named;          // barriers by number at which some thread waits
    uint32_t warps_of_named[16] = {};  // the warps that have come to each number
    uint64_t id;                       // creation order, for deterministic reports
    std::shared_ptr<BlockCheck> check;
    double begin_ns = 0;
    int sm = 0;

    bool has_shape(const epemu_dim3& d) const { return d.x == dim.x && d.y == dim.y && d.z == dim.z; }
};

// The heap of malloc in a rank's kernels (device_heap.cpp).
struct DeviceHeap {
    char* memory = nullptr;
    size_t used = 0, in_use = 0;
    DeviceHeap() = default;
    DeviceHeap(const DeviceHeap&) = delete;
    ~DeviceHeap();
    void* allocate(size_t bytes, std::vector<Range>& ranges);  // null if there is no room
    bool release(uintptr_t address, std::vector<Range>& ranges);
};

struct Rank {
    DeviceHeap heap;
    std::deque<std::unique_ptr<Launch>> queue;  // front is the one that runs: one stream a rank
    std::vector<std::unique_ptr<Launch>> services;
    int64_t last_ticket = 0, done_ticket = 0;
    size_t resident_threads = 0, resident_blocks = 0;
    std::vector<Range> ranges;  // arrays registered for the rank's lifetime
    SymmetricArrays arrays;     // arrays that later launches may touch in any heap
    std::vector<Range> freed;   // offsets of freed arrays whose place was not reused, for reports
};

enum class Fault { kNone, kBadAddress, kTrap, kAssert, kSignal, kStack, kHang };

struct Settings {
    uint64_t seed;
    uint64_t heap_bytes;  // that a user may allocate
    uint64_t heap_span;   // bytes with the unused gaps between arrays
    uint64_t stack_bytes;
    uint64_t max_resident_threads;  // a rank
    uint64_t max_resident_blocks;   // a rank; 0: as many as fit
    uint64_t program_steps;         // of a run of this program, for PCT; 0: not known
    int64_t home;                   // the rank whose kernels run here (others are processes); -1: all run here
    FabricSettings fabric;
};

// xoshiro256** (Blackman and Vigna, 2018), seeded by splitmix64: small, fast, and the same everywhere.
struct Random {
    uint64_t s[4];
    explicit Random(uint64_t seed) {
        for (auto& word : s) {
            uint64_t z = (seed += 0x9e3779b97f4a7c15ull);
            z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
            z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
            word = z ^ (z >> 31);
        }
    }
    static uint64_t rotate(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }
    uint64_t next() {
        const uint64_t result = rotate(s[1] * 5, 7) * 9, t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = rotate(s[3], 45);
        return result;
    }
    uint32_t below(uint32_t n) { return static_cast<uint32_t>((next() >> 32) * n >> 32); }
};

struct Machine {
    Settings settings;
    Random random;
    std::unique_ptr<Network> network;
    std::unique_ptr<Forwarder> forwarder;      // null: all ranks are on this host
    std::shared_ptr<Checker> checker;          // null while checks are off
    std::shared_ptr<Recorder> recorder;        // null unless the run is recorded
    std::shared_ptr<FaultInjection> injected;  // null without injected faults
    std::unique_ptr<Schedule> schedule;
    VirtualTime* time = nullptr;  // the schedule, if it is the virtual-time one
    int num_ranks;
    char* heaps;  // num_ranks x heap_stride
    size_t heap_stride, heap_shift, heaps_bytes;
    char* shared_area;
    std::vector<uint32_t> free_slots;
    std::vector<Rank> ranks;
    std::vector<std::unique_ptr<Block>> resident, spare_blocks;
    size_t resident_threads = 0, most_resident_blocks = 0;
    int64_t patience = 0, full_patience = 0;  // until more blocks are admitted (scheduler.cpp)
    std::vector<std::unique_ptr<Image>> images;
    std::map<uintptr_t, std::vector<Fiber*>> parked;  // by address / 8
    size_t num_parked = 0;
    uint64_t progress = 0;  // grows with every visible action
    uint64_t now_ns = 1000000;
    uint64_t still_for = 0, still_at = 0;  // looks at the clock for which time stands, as long as that is the progress
    bool time_stands() const { return still_for > 0 && still_at == progress; }
    double clock_ghz = 2;
    uint64_t switches = 0, picks = 0, blocks_created = 0;
    bool clean_stacks = false;  // stacks start with equal content in every run
    uint64_t runs = 0;          // so far, between which hosts go on
    uint64_t steps = 0;         // what PCT counts: synchronising operations, and events of the network

    Fault fault = Fault::kNone;
    Fiber* faulting = nullptr;
    uintptr_t fault_pc = 0, fault_address = 0;
    const Fiber* last_local_writer = nullptr;  // the last write to a local array, perhaps out of bounds
    uintptr_t last_local_pc = 0;
    std::string fault_text;
    // Places where kernels did something that is defined on a GPU but not in C++, each line once; only without checks.
    struct OtherValue {
        const char* kind;
        std::string place, kernel, text;
    };
    std::map<uintptr_t, OtherValue> other_values;
    std::string report, findings;  // JSON for Python
    std::string livelock;          // JSON: the threads whose steps repeat a state, if the schedule has found one
    std::string quiescence;        // the waiting threads when only waits with a limit could continue
    size_t most_waiting = 0;

    // In a world of several processes, the lock's holder may change this machine. A run hands the lock to waiting hosts
    // between two turns.
    std::mutex host_lock;
    std::atomic<int> hosts_asking{0};

    volatile int stop_request = 0;
    bool reads_matter = false;  // the schedule needs to see plain reads
    std::mutex output_lock;
    std::string output;

    Machine(int ranks, const Settings& settings);
    ~Machine();
    bool has_other_processes() const { return settings.home >= 0; }
    std::string* other_value(const Fiber* fiber, uintptr_t pc, const char* kind);  // a text to fill in; null: done
};

// An action of a host on a machine whose kernels may be running.
class HostTurn {
  public:
    explicit HostTurn(Machine& m) : m_(m) {
        m_.hosts_asking++;
        m_.host_lock.lock();
        m_.hosts_asking--;
    }
    ~HostTurn() { m_.host_lock.unlock(); }

  private:
    Machine& m_;
};

// Hidden symbols, so that calls and variables avoid the library's tables.
#pragma GCC visibility push(hidden)

// The fiber that runs now, and its machine; null outside kernels.
extern Fiber* current;
extern Machine* machine;
extern int64_t quantum;  // instrumented accesses until the running fiber is preempted

// A local variable, which no other thread uses.
inline bool is_on_stack(const Fiber* fiber, uintptr_t address) {
    return address - reinterpret_cast<uintptr_t>(fiber->stack) < machine->settings.stack_bytes;
}

// fiber.cpp
Fiber* switch_to(Fiber* fiber);     // from the scheduler; returns the fiber that came back to it
void switch_to_scheduler();         // from a fiber
uintptr_t caller_in_kernel();       // where the running fiber's function in its kernel returns to; 0: unknown
uint64_t state_of_kernel();         // a hash of the running fiber's registers and stack in its kernel
[[noreturn]] void abandon_fiber();  // the same, for one that never runs again; signal handlers may call it
bool is_an_index(uintptr_t address, size_t size);  // whether this is the memory of threadIdx or a similar variable
bool is_on_a_borrowed_stack();                     // whether a fiber is on the scheduler's stack, by with_room
bool is_on_a_fiber();                              // whether this is called by a fiber, on its stack or by with_room
// Runs work that needs stack: reading files, formatting text, judging conflicts. A fiber's own stack may be almost
// full, so it borrows the scheduler's. The work must not switch to another fiber.
void with_room(const std::function<void()>& work);
void release_stack(Fiber* fiber, size_t stack_bytes);
void release_stack_memory();  // unless kept
extern int stack_keepers;     // calls that will soon need as many again

// scheduler.cpp
enum class Outcome { kDone, kDeadlock, kFault, kStopped };
// awaited[rank]: ticket that ends the run, 0 for none. Null: until services wait for work and no operation is in
// flight.
Outcome run(Machine& m, const int64_t* awaited);
void make_runnable(Fiber* fiber);
void block_current(State state, const char* what, uintptr_t pc);
void step_aside();                           // switch, staying runnable
void yield();                                // the same, so that others run first
void preempt();                              // the same, perhaps for long
void maybe_preempt();                        // at a synchronising operation
void park(Fiber* fiber);                     // until one of the locations it polls changes
void wake(uintptr_t address, size_t bytes);  // fibers that poll any of these locations, in order
void retire(Fiber* fiber);
void run_lane(Machine& m, Fiber* fiber);  // and the lanes that it switches to, until one returns to the scheduler
void end_turn(Machine& m, Warp* warp);    // after its lanes have run

// builtins.cpp
void warp_ops_maybe_complete(Warp* warp);
void barrier_maybe_complete(Block* block);
void named_barriers_maybe_complete(Block* block);
void resolve_activemask(Warp* warp);

// memory.cpp
uint64_t read_raw(uintptr_t address, int size);
void write_raw(uintptr_t address, uint64_t value, int size);
bool replace_raw(uintptr_t address, uint64_t old, uint64_t value, int size);  // false: the value is no longer `old`
void forget_polls();                           // after a visible action of the running fiber
void note_store(uintptr_t address, int size);  // a plain store by a fiber that may be polling
// C++'s volatile accesses under weak memory: the compiler's own instruction follows its call into the runtime. For a
// load, memory briefly holds an older value; the value of a store is known only afterwards, and memory may have to keep
// the old one. Called before the next look at memory: at the thread's next access, at its end, or when another thread
// continues.
extern bool is_volatile_pending;
void finish_last_volatile();
inline void finish_volatile() {
    if (__builtin_expect(is_volatile_pending, 0)) finish_last_volatile();
}
void check_access_outside(uintptr_t address, size_t size, bool write, uintptr_t pc);
// In the shared memory of the running thread's block.
inline bool is_shared(uintptr_t address, size_t size) {
    const Block* block = current->block;
    const uintptr_t offset = address - reinterpret_cast<uintptr_t>(block->shared);
    return offset < block->shared_bytes && offset + size <= block->shared_bytes;
}
// Raises a fault if the running thread may not touch this memory. Shared memory comes first, since most accesses that
// are not local are shared.
inline void check_access(uintptr_t address, size_t size, bool write, uintptr_t pc) {
    finish_volatile();
    if (is_shared(address, size)) return;
    check_access_outside(address, size, write, pc);
}
bool in_an_array(Launch& launch, size_t offset, size_t size, bool write);  // whether the launch may touch this range

// faults.cpp
[[noreturn]] void raise_fault(Fault kind, uintptr_t pc, uintptr_t address, std::string text);
[[noreturn]] void no_memory();  // the runtime itself has none: ends the run
void note_no_memory();
// Runs an API function that allocates: if memory runs out, it returns nothing, and epemu_take_no_memory reports it.
template <class F>
auto with_memory(F f) -> decltype(f()) {
    try {
        return f();
    } catch (const std::bad_alloc&) {
        note_no_memory();
        return decltype(f())();
    }
}
bool is_text_there(const std::function<void()>& read);  // runs it; false if it touched memory that does not exist
void install_signal_handlers();
void restore_signal_handlers();

// variables.cpp: constants and variables of a loaded library, read-only in the range that the loader has protected; and
// the name of the variable at an address, with the offset in it, or nothing
std::vector<Range> memory_of_kernel(const char* path, uintptr_t base, Range protected_range);
std::string variable_at(const Machine& m, uintptr_t address);
std::string shared_variable_at(const Block& block, size_t offset);

// report.cpp
std::string quote(const std::string& text);  // as JSON
std::string triple(const epemu_dim3& d);
std::string place(const Fiber& f, uintptr_t pc);  // in its kernel
std::string thread(const Fiber& f);
// Describes an address by a kernel's name for it: the given launch's, or else the running one's.
std::string describe_address(const Machine& m, uintptr_t address, const Launch* seen_by = nullptr);
std::string describe_range(const Machine& m, uintptr_t address, size_t bytes);
void write_report(Machine& m, Outcome outcome);
void note_quiescence(Machine& m);  // before time passes; the one with the most waiting threads is kept

#pragma GCC visibility pop

}  // namespace epemu
