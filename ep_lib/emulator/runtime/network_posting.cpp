// Posting operations and waiting for them: the calls of kernels, on their fibers.
#include <algorithm>

#include "checker.hpp"
#include "machine.hpp"
#include "network.hpp"
#include "outages.hpp"
#include "pct.hpp"
#include "virtual_time.hpp"

#define EPEMU_PC reinterpret_cast<uintptr_t>(__builtin_return_address(0))

namespace epemu {
namespace {

constexpr size_t kMinPiece = 16;       // bytes that a NIC moves at once, at least
constexpr uint32_t kMaxPieces = 4;     // an operation is cut into at most so many
constexpr uint32_t kDelayOneIn = 4;    // operations that are held up on their way
constexpr uint32_t kLongestDelay = 9;  // as a power of two, in steps of the network

std::vector<NetOp::Piece> cut(Random& random, size_t bytes) {
    std::vector<NetOp::Piece> pieces;
    size_t begin = 0;
    const uint32_t wanted = bytes ? 1 + random.below(kMaxPieces) : 0;
    for (uint32_t i = wanted; i > 0; i--) {
        size_t n = bytes - begin;
        if (i > 1) n = std::min(n, std::max(kMinPiece, n / i / kMinPiece * kMinPiece));
        if (n) pieces.push_back({begin, n, {}});
        begin += n;
    }
    return pieces;
}

void wait(const char* what, Network::Waiter waiter, uintptr_t pc) {
    if (!is_pending(*machine->network, waiter)) return;
    const double begin = timed ? timed->now() : 0;
    while (is_pending(*machine->network, waiter)) {
        machine->network->waiters.push_back(waiter);
        block_current(State::kNetwork, what, pc);
    }
    if (timed) timed->saw_completion(begin, what, pc);
}

void check_target(int rank, int queue_pair, uintptr_t pc) {
    const auto& settings = machine->network->settings;
    if (rank < 0 || rank >= machine->num_ranks)
        raise_fault(
            Fault::kTrap, pc, 0,
            "posts to rank " + std::to_string(rank) + "; ranks are 0 to " + std::to_string(machine->num_ranks - 1));
    if (queue_pair < 0 || queue_pair >= settings.queue_pairs)
        raise_fault(Fault::kTrap, pc, 0,
                    "posts on queue pair " + std::to_string(queue_pair) + "; there are " +
                        std::to_string(settings.queue_pairs) + " to each rank, numbered from 0");
}

// The address on `rank` that corresponds to this rank's symmetric `mine`.
uintptr_t symmetric(const void* mine, size_t bytes, int rank, const char* what, uintptr_t pc) {
    const auto address = reinterpret_cast<uintptr_t>(mine);
    const auto base = reinterpret_cast<uintptr_t>(epemu_heap_base(epemu_rank()));
    if (address < base || address + bytes > base + machine->heap_used ||
        !in_an_array(machine->ranks[epemu_rank()], address - base, bytes))
        raise_fault(Fault::kBadAddress, pc, address,
                    std::string("posts with a ") + what +
                        " that is not in its own symmetric heap, the only memory that NICs are told of, or not all in "
                        "one array: " +
                        describe_range(*machine, address, bytes));
    return address - base + reinterpret_cast<uintptr_t>(epemu_heap_base(rank));
}

void post(std::unique_ptr<NetOp> op, uintptr_t pc) {
    Network& net = *machine->network;
    Launch* launch = current->block->launch;
    about_to_send(pc);
    if (timed) timed->synchronise();
    wait("room in a full queue pair", {current, op->target_rank, op->queue_pair, 0, true}, pc);
    op->number = ++net.posted[launch->rank];
    op->source_rank = launch->rank;
    op->poster = {launch->rank, current->block->index, current->thread, launch->image, launch->kernel, pc};
    if (machine->random.below(kDelayOneIn) == 0)
        op->delayed_until = net.steps + (1ull << machine->random.below(kLongestDelay));
    begin_outages(*machine, *op);
    if (checker) checker->net_posted(*op, current, pc);
    link_of(net, op->source_rank, op->target_rank).ops.push_back(op.get());
    if (machine->pct) machine->pct->posted(op.get());
    net.in_flight.push_back(std::move(op));
    if (timed) timed->posted(net.in_flight.back().get(), pc);
    forget_polls();
    machine->progress++;
    maybe_preempt();
}

std::unique_ptr<NetOp> data_op(NetKind kind, int rank, int queue_pair, uintptr_t from, uintptr_t to, size_t bytes) {
    auto op = std::make_unique<NetOp>();
    op->kind = kind;
    op->target_rank = rank;
    op->queue_pair = queue_pair;
    op->from = from;
    op->to = to;
    op->bytes = bytes;
    op->pieces = cut(machine->random, bytes);
    return op;
}

void post_put(int rank, int queue_pair, void* remote, const void* local, size_t bytes, uint64_t* signal, uint64_t value,
              int signal_op, uintptr_t pc) {
    check_target(rank, queue_pair, pc);
    symmetric(local, bytes, rank, "source", pc);
    auto op = data_op(NetKind::kPut, rank, queue_pair, reinterpret_cast<uintptr_t>(local),
                      symmetric(remote, bytes, rank, "destination", pc), bytes);
    if (signal) {
        op->signal = symmetric(signal, 8, rank, "signal", pc);
        op->value = value;
        op->value_bytes = 8;
        op->signal_op = signal_op;
    }
    post(std::move(op), pc);
}

}  // namespace
}  // namespace epemu

using namespace epemu;

extern "C" {

bool epemu_reachable(int rank) {
    return rank >= 0 && rank < machine->num_ranks && reachable(*machine, epemu_rank(), rank);
}
int epemu_num_queue_pairs() { return machine->network->settings.queue_pairs; }
bool epemu_keeps_order() { return machine->network->settings.kind == Fabric::kRc; }

void epemu_net_put(int rank, int queue_pair, void* remote, const void* local, size_t bytes) {
    post_put(rank, queue_pair, remote, local, bytes, nullptr, 0, EPEMU_SIGNAL_SET, EPEMU_PC);
}

void epemu_net_get(int rank, int queue_pair, void* local, const void* remote, size_t bytes) {
    const uintptr_t pc = EPEMU_PC;
    check_target(rank, queue_pair, pc);
    symmetric(local, bytes, rank, "destination", pc);
    post(data_op(NetKind::kGet, rank, queue_pair, symmetric(remote, bytes, rank, "source", pc),
                 reinterpret_cast<uintptr_t>(local), bytes),
         pc);
}

void epemu_net_put_signal(int rank, int queue_pair, void* remote, const void* local, size_t bytes, uint64_t* signal,
                          uint64_t value, int signal_op) {
    post_put(rank, queue_pair, remote, local, bytes, signal, value, signal_op, EPEMU_PC);
}

void epemu_net_atomic(int rank, int queue_pair, void* remote, uint64_t value, int size, int signal_op) {
    const uintptr_t pc = EPEMU_PC;
    check_target(rank, queue_pair, pc);
    auto op = data_op(NetKind::kAtomic, rank, queue_pair, 0, 0, 0);
    op->signal = symmetric(remote, size, rank, "destination", pc);
    op->value = value;
    op->value_bytes = size;
    op->signal_op = signal_op;
    post(std::move(op), pc);
}

void epemu_net_fence(int rank, int queue_pair) {
    Network& net = *machine->network;
    const int source = epemu_rank();
    for (int target = 0; target < machine->num_ranks; target++)
        if (rank < 0 || rank == target) {
            link_of(net, source, target).fences.push_back({net.posted[source] + 1, queue_pair});
            if (checker) checker->net_fence(source, target, queue_pair);
        }
    maybe_preempt();
}

void epemu_net_quiet(int rank, int queue_pair) {
    const uintptr_t pc = EPEMU_PC;
    const Clock covered = checker ? checker->net_posted_so_far(epemu_rank(), rank, queue_pair) : Clock();
    wait("quiet, for operations that are not complete",
         {current, rank, queue_pair, machine->network->posted[epemu_rank()] + 1, false}, pc);
    if (checker) checker->net_quiet(current, covered, pc);
    maybe_preempt();
}

}  // extern "C"
