// Records a run event by event, for the slider of ep_lib/viz/time_travel.py.
//
// Only a run under the checker is recorded: the checker passes on every access, barrier and NIC operation, and the
// scheduler reports when threads wait, continue and end. A recorder draws nothing from Machine::random and decides
// nothing, so a recorded run is the run of its seed. Without a recorder the cost is one test of a pointer.
//
// Accesses to adjacent bytes by one thread, or by the lanes of a warp in one turn, in one line are one event, unless an
// event in between conflicts. A whole recording has each of them, and the values of all.
#pragma once
#include <stdint.h>

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "vector_clock.hpp"

namespace epemu {

struct Block;
struct Fiber;
struct Launch;
struct Machine;
struct NetOp;
struct ThreadCheck;
struct Warp;
class Checker;

enum class EventKind : uint8_t {  // ep_lib/emulator/recording.py has the same names
    kLaunch,
    kAdmit,
    kAccess,
    kFence,
    kBarrier,
    kNamedBarrier,
    kSyncwarp,
    kWait,
    kResume,
    kEnd,
    kFinish,
    kPost,
    kNicRead,
    kNicWrite,
    kNicSignal,
    kComplete,
    kQuiet,
    kHostWaited,
    kHostMet,
    // Attached to the event before:
    kOrdered,  // a thread is now ordered after a write: `value` is the write's event
    kFinding,  // `value`: its number; `address`: the event of the first access, or ~0; `flags`: 1 where it is reported
};

struct Event {
    uint64_t address, value;
    uint32_t block;   // Block::id
    uint32_t thread;  // the number of the first thread in its block; for a NIC: the message
    uint32_t lanes;   // lanes of the thread's warp that take part
    uint32_t bytes, pc, turn;
    EventKind kind;
    uint8_t flags;   // of an access: AccessFlags; of a wait: State
    uint8_t order;   // of an atomic or a fence: epemu_order + 1; of a wait: its text
    uint8_t detail;  // EventDetails
    int16_t rank;
    uint16_t scope;
};
enum EventDetails : uint8_t {
    kHasValue = 1,
    kUpdates = 2,  // an atomic that reads and writes
};

class __attribute__((visibility("hidden"))) Recorder {
  public:
    Recorder(Machine& m, size_t limit, bool whole) : m_(m), limit_(limit), whole_(whole) {}

    void launched(const Launch& launch);
    void admitted(const Block& block);
    void finished(const Block& block);
    void next_atomic(int order, int scope) { order_ = order + 1, scope_ = scope; }  // before an atomic access
    void accessed(const ThreadCheck& t, uintptr_t address, size_t bytes, uint8_t flags, bool updates, uintptr_t pc);
    void has_value(uint64_t value);  // the last access read or wrote this value, which memory does not hold
    void fence(const Fiber& fiber, int order, int scope);
    void barrier(const Block& block);
    void met(const std::vector<Fiber*>& fibers);
    void syncwarp(const Warp& warp, uint32_t mask);
    void paused(const Fiber& fiber);
    void resumed(const Fiber& fiber);
    void ended(const Fiber& fiber);
    void posted(const NetOp& op, const Fiber& fiber, uint32_t id);
    void by_nic(EventKind kind, const NetOp& op, uintptr_t address, size_t bytes, const ThreadCheck& t);
    void quiet(const Fiber& fiber, uintptr_t pc);
    void host(EventKind kind, int rank);

    // Threads of a rank (self: all of them, or one by its id) now know this clock.
    static constexpr uint32_t kAnyone = ~0u;
    void learned(const VectorClock& clock, int rank, uint32_t self = kAnyone);
    void found(size_t finding, uint32_t first_id, uint32_t first_pc, bool has_first);
    void reported();  // marks the latest occurrence of that finding as the reported one

    void read_latest();                              // reads the value of the latest write now
    std::string info(const Checker& checker) const;  // JSON
    const std::vector<Event>& events() const { return events_; }

  private:
    struct Written {  // a write that no thread but its writer is ordered after
        uint32_t event, id, time;
        uintptr_t address;
        size_t bytes;
    };
    struct BlockInfo {
        int rank;
        int64_t ticket;
        std::string index, dim, kernel;
        uintptr_t shared;
        size_t shared_bytes;
    };
    struct Message {
        int kind, source, target, queue_pair;
        uint64_t number, bytes, signal, from, to;
    };
    bool is_full();
    bool merge(const Event& e);
    bool add(Event e);  // false: the limit is reached, or the event is not kept
    Event of_thread(EventKind kind, const Fiber& fiber) const;
    void goes_on(const Fiber& fiber);
    void written(int rank, const ThreadCheck& t, uintptr_t address, size_t bytes);
    void learn(const VectorClock& clock, int rank, uint32_t self, uintptr_t address, size_t bytes);
    int home_of(uintptr_t address, int rank) const;
    uint8_t text(const char* what);

    Machine& m_;
    const size_t limit_;
    const bool whole_;
    std::vector<Event> events_;
    uint64_t dropped_ = 0;
    int order_ = 0, scope_ = 0;
    size_t latest_ = 0, unread_ = 0;  // events by index + 1, 0: none; `unread_` lacks its value
    std::vector<BlockInfo> blocks_;
    std::vector<Message> messages_;
    std::unordered_map<const NetOp*, uint32_t> message_of_;
    std::unordered_map<uint64_t, uint32_t> event_of_;  // the latest event of a thread (by its id) in a line
    std::unordered_set<const Fiber*> waiting_;
    // Woken threads that have only seen the same values as before: no events until they see or do something else. A
    // polling loop iterates thousands of times before it counts as a deadlock.
    std::unordered_set<const Fiber*> looking_;
    std::unordered_map<int, std::vector<Written>> written_;  // by the rank whose memory it is
    std::vector<const char*> texts_;
};

extern __attribute__((visibility("hidden"))) Recorder* recorder;  // of the running machine, null without recording

}  // namespace epemu
