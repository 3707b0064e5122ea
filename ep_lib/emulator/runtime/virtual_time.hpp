// Virtual time: the schedule in which each thread has its own time, and the earliest event is next: a warp's turn or an
// event of a NIC. The same program always takes the same time.
//
// Costs (all constants come from ep_lib/emulator/hardware.py, which names their sources):
// - global memory: bytes / (copy rate of an SM), shared by the warps on it, within the memory bandwidth of the GPU;
//   plain accesses are pipelined, so they cost no latency; a synchronising load or an atomic costs the poll latency;
// - memory of a P2P peer: the same, and the two GPUs' NVLink ports, whose bandwidth all their blocks share;
// - posting to a NIC, its stages (virtual_network.cpp), launching a kernel.
// Everything else is free: arithmetic, shared memory, shuffles and barriers (which join the times of their threads),
// the host and its collectives.
//
// Causality: synchronising operations (atomics, acquire, release and volatile accesses, fences, posts) happen in the
// exact order of virtual time: a thread that is ahead yields to earlier ones. Plain accesses happen when the thread
// runs, perhaps before others reach that time; programs without data races see no difference.
#pragma once
#include <stdint.h>

#include <deque>
#include <queue>
#include <string>
#include <unordered_map>
#include <vector>

#include "schedule.hpp"

namespace epemu {

struct Block;
struct Fiber;
struct Image;
struct Launch;
struct Machine;
struct NetOp;
struct Warp;

struct LinkModel {
    double latency_ns, bytes_per_ns, overhead_ns, gap_ns, mtu_bytes, header_bytes;
    double on_wire(double bytes) const;  // the bytes with the headers of their packets, at least one packet
};

struct HardwareModel {
    double sm_bytes_per_ns, memory_bytes_per_ns, launch_ns, launch_gap_ns, poll_ns, clock_ghz;
    int32_t num_sms;
    LinkModel nvlink, pcie, nic;
};

// Python reads these structs (ep_lib/emulator/timeline.py mirrors them).
struct SpanRecord {
    enum Kind : int32_t { kKernel, kWait, kCopy, kPost };
    int32_t rank, block, warp, kind, name;
    int32_t image;  // index of the library that `offset` is in, -1 for none
    uint64_t offset;
    double begin_ns, end_ns;
};
struct MessageRecord {
    enum Kind : int32_t { kPut, kGet, kPutSignal, kAdd };
    int32_t source, target, queue_pair, kind, block, warp, image, unused;
    uint64_t offset, bytes;
    double wire_bytes, posted_ns, departed_ns, delivered_ns, completed_ns;
};
struct SampleRecord {
    int32_t rank, block, name, unused;
    double at_ns, value;
};

// A server of bytes at a rate, in order of arrival.
struct Server {
    double free_ns = 0;
    double serve(double from, double duration) { return free_ns = (free_ns > from ? free_ns : from) + duration; }
};

class VirtualTime : public Schedule {
  public:
    VirtualTime(Machine& machine, const HardwareModel& hardware);

    // ---- threads (virtual_time.cpp) --------------------------------------------------------------------------
    bool step() override;                             // the earliest event or turn
    void ready(Warp* warp, uint32_t lanes) override;  // each from its own time on
    void woke(Fiber* fiber) override;                 // not before the event that woke it
    void synchronise() override;                      // the running fiber yields until no other is earlier
    void preempt() override;
    void yield() override { preempt(); }
    bool needs_all_blocks() const override { return true; }
    void admitted(Block* block) override;  // gives a block its SM and its time
    void finished(Block* block) override;
    void join(Warp* warp, uint32_t mask) override;          // a warp-wide operation: lanes leave together
    void join(Block* block) override;                       // a barrier
    void join(const std::vector<Fiber*>& fibers) override;  // a barrier by number
    void access(uintptr_t address, size_t bytes, bool write);
    void looked(uintptr_t address);          // the running fiber does a synchronising load
    void atomic(uintptr_t address);          // the running fiber is about to do an atomic
    double remote(uintptr_t address) const;  // nanoseconds that a store takes; 0 for the rank's own memory
    void store_later(uintptr_t address, uint64_t value, int size, double delay);
    double now_ns() const override;
    void spend(double ns) override;
    void pass(double ns) override { now_ += ns; }
    void waited(double begin, const char* what, uintptr_t pc);
    void saw_completion(double begin, const char* what, uintptr_t pc);
    void sample(const char* name, double value);

    // ---- hosts -----------------------------------------------------------------------------------------------
    void launched(Launch* launch);
    void host_waited(int rank, int64_t ticket);
    void hosts_met();

    // ---- NICs (virtual_network.cpp) --------------------------------------------------------------------------
    void posted(NetOp* op) override;
    void drain() override;

    std::vector<SpanRecord> spans;
    std::vector<MessageRecord> messages;
    std::vector<SampleRecord> samples;
    std::vector<std::string> names;

  private:
    struct Event {
        enum Kind : uint8_t { kStore, kReady, kTransmit, kArrive, kWritten, kSignalled, kComplete, kRelease };
        double at;
        uint64_t order;
        Kind kind;
        int rank;
        uint64_t packet;  // index, or the store's
        NetOp* op;
        bool operator<(const Event& other) const {  // std::priority_queue wants the latest to be the smallest
            return at != other.at ? at > other.at : order > other.order;
        }
    };
    struct Sm {
        Server port;
        int resident = 0;
    };
    struct Gpu {
        std::vector<Sm> sms;
        Server memory, nvlink_out, nvlink_in;
        double host_ns = 0;
        std::vector<double> ends;  // of launches, by ticket
    };
    struct Packet {
        NetOp* op;
        size_t offset, bytes;
        double payload;
        std::vector<char> data;
        bool request, signal;
    };
    struct Store {
        uintptr_t address;
        uint64_t value;
        int size;
    };
    struct SendQueue {
        struct Job {
            NetOp* op;
            size_t offset = 0;
            bool request = false, data = false, signal = false;  // still to be sent, in this order
        };
        std::deque<Job> jobs;
        bool in_turn = false;
    };
    struct Nic {
        Server engine, reads, egress, ingress, writes;
        std::unordered_map<uint64_t, SendQueue> queues;
        std::deque<uint64_t> turn;   // queues that have something to send, in the order of their turns
        std::vector<uint64_t> held;  // queues that wait for a fence or an injected fault
        bool transmitting = false;
        uint64_t sprayed = 0;
        bool staging = false;
        std::deque<NetOp*> to_stage;
    };

    void at(double when, Event::Kind kind, int rank, NetOp* op, uint64_t packet = 0);
    void run_event(const Event& event);
    void run_warp(Warp* warp);
    double earliest() const;
    void push(Warp* warp, double key);
    void sift_up(size_t i);
    void sift_down(size_t i);
    void remove_top();
    static constexpr int kPollsBetween = 4;  // polls of a loop between its waking and its parking
    int name_of(const std::string& text);
    int image_of(const Image* image) const;
    void write_span(SpanRecord::Kind kind, const char* name, double begin, uintptr_t pc);
    void charge(double bytes, int owner, bool write);

    void enqueue(int rank, uint64_t queue, const SendQueue::Job& job);
    void start(int rank);
    bool may_start(const NetOp& op) const;
    void transmit(int rank);
    void take_turns_again(int rank);
    void send_packet(int rank, SendQueue::Job& job);
    void arrive(int rank, uint64_t packet);
    void written(int rank, uint64_t packet);
    void signal(NetOp* op);
    void write_signal(NetOp* op, uint64_t value);
    void apply_staged(NetOp* op);
    void next_staged(int rank);
    void delivered(NetOp* op);
    void complete(NetOp* op);
    size_t packet_end(size_t offset, size_t bytes) const;

    HardwareModel hardware_;
    std::vector<Gpu> gpus_;
    std::vector<Nic> nics_;
    std::vector<Warp*> heap_;  // runnable warps, the earliest first
    std::priority_queue<Event> events_;
    std::vector<Packet> packets_;
    std::vector<uint64_t> free_packets_;
    std::vector<Store> stores_;
    std::vector<uint64_t> free_stores_;
    std::unordered_map<std::string, int> name_numbers_;
    double now_ = 0;
    double horizon_ = 0;  // no other thread acts before this time
    uint64_t order_ = 0;
};

extern __attribute__((visibility("hidden"))) VirtualTime* timed;  // of the running machine; null in other schedules

}  // namespace epemu
