// NICs: queue pairs with bounded depth, operations that move in pieces and at their own pace.
//
// rc, like InfiniBand's reliable connections: a queue pair's operations are placed in the order in which they were
// posted. srd, like EFA's scalable reliable datagrams: everything arrives, in any order. Atomics are staged on both:
// the target's NIC reads, adds and writes back, and other accesses may come in between. InfiniBand calls this
// IBV_ATOMIC_HCA; with IBV_ATOMIC_GLOB (global_atomics), NIC atomics are atomic to those of GPUs and CPUs, too.
#pragma once
#include <stdint.h>

#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "bulk_copies.hpp"
#include "ep_emulator/abi.h"

namespace epemu {

struct Fiber;
struct Image;
struct Machine;

enum class Fabric : int32_t { kP2p, kRc, kSrd };

struct FabricSettings {
    Fabric kind;
    int32_t ranks_per_node;
    int32_t p2p;  // do ranks of a node reach each other by loads and stores?
    int32_t queue_pairs, queue_depth;
    int32_t global_atomics;  // whether NIC atomics are atomic to those of GPUs

    bool stages_atomics() const { return kind != Fabric::kP2p && !global_atomics; }
};

enum class NetKind : uint8_t { kPut, kGet, kAtomic, kBulkLoad, kBulkStore, kAsyncCopy };

// The poster of an operation, kept for reports: the thread may have ended at the delivery.
struct Poster {
    int rank;
    epemu_dim3 block, thread;
    const Image* image;
    std::string kernel;
    uintptr_t pc;
    uint32_t check_id = 0, check_time = 0;  // the poster's id and time in the checker, if a proxy posts for it
};

struct NetOp {
    struct Piece {
        size_t offset, bytes;
        std::vector<char> data;  // what the NIC has read from the source, empty until then
    };
    uint64_t number;  // each rank numbers its operations from 1
    NetKind kind;
    int source_rank, target_rank, queue_pair;
    uintptr_t from, to;  // addresses of the data
    size_t bytes;
    std::vector<Piece> pieces;  // still to deliver, in any order
    uintptr_t signal;           // on the target; 0 for none. Written when no piece is left.
    uint64_t value;
    int value_bytes;
    int signal_op;
    bool staged;  // the atomic's old value has been read
    uint64_t staged_value;
    bool delivered;          // all is written; the completion is still on its way back
    uint64_t forwarded = 0;  // to another host: its number on that connection (forwarder.hpp); 0: not forwarded
    uint64_t delayed_until;  // count of the network's steps
    int64_t priority;        // in schedules by PCT
    uint64_t held_until_ns;  // fault injection: see fault_injection.hpp
    Poster poster;
    struct {
        size_t place, record, bytes_left;  // index in in_flight; its message's record; bytes still to be written
        bool signal_came;
    } flight;                        // in virtual time
    void* check = nullptr;           // the checker's
    std::unique_ptr<BulkCopy> copy;  // a copy to or from shared memory; null: a NIC's operation
};

struct Network {
    explicit Network(const FabricSettings& settings) : settings(settings) {}

    FabricSettings settings;
    std::vector<std::unique_ptr<NetOp>> in_flight;
    struct Fence {
        uint64_t number;  // operations with smaller numbers come first
        int queue_pair;   // -1: all
    };
    struct Link {                // from one rank to another
        std::deque<NetOp*> ops;  // in flight, in the order in which they were posted
        std::vector<Fence> fences;
        bool broken = false;
    };
    std::vector<Link> links;  // [source * ranks + target]
    struct Waiter {
        Fiber* fiber;
        int target, queue_pair;  // -1: all
        uint64_t number;         // waits for operations posted before this one
        bool for_room;           // waits for a place in a full queue pair instead
    };
    std::vector<Waiter> waiters;
    std::vector<uint64_t> posted;  // by rank
    std::vector<bool> staging;     // by target rank: an atomic is between its read and its write
    uint64_t steps = 0;
    BulkCopies copies;
    // asked: the threads that use a proxy, by number; on_behalf: the one for which a proxy's thread posts now.
    std::unordered_map<uint64_t, Poster> asked;
    std::unordered_map<const Fiber*, Poster> on_behalf;
    uint64_t num_asked = 0;
};

inline Network::Link& link_of(Network& net, int source, int target) {
    return net.links[source * net.staging.size() + target];
}

// One random event: a piece is read or delivered, an atomic is applied, or a completion comes back. False if no
// operation in flight can ever arrive.
bool network_step(Machine& m);
bool network_move(Machine& m, const NetOp* op);  // the same for one operation
// The events of one operation, for schedules that choose among them: a piece is read, then delivered; after all of
// them the signal is applied, in two steps where it is a staged atomic, and the completion comes back.
bool piece_can_move(const Machine& m, const NetOp& op, size_t piece);
void move_piece(NetOp& op, size_t piece);
bool end_can_move(const Machine& m, const NetOp& op);
void move_end(Machine& m, NetOp& op);
bool reachable(const Machine& m, int from, int to);
bool is_pending(const Network& net, const Network::Waiter& waiter);

}  // namespace epemu
