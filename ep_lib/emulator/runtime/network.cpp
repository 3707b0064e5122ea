// How operations travel. Every event is drawn from the machine's random numbers, so a seed replays a network too.
#include <algorithm>
#include <string.h>

#include "checker.hpp"
#include "fault_injection.hpp"
#include "forwarder.hpp"
#include "machine.hpp"
#include "network.hpp"
#include "virtual_time.hpp"

#define EPEMU_PC reinterpret_cast<uintptr_t>(__builtin_return_address(0))

namespace epemu {
namespace {

constexpr int kTries = 4;  // picks before a delayed operation moves after all

// Whether any part of this operation may be written yet.
bool may_deliver(const Machine& m, const NetOp& op) {
    Network& net = *m.network;
    const Network::Link& link = link_of(net, op.source_rank, op.target_rank);
    for (const NetOp* earlier : link.ops) {
        if (earlier->number >= op.number) break;
        if (earlier->delivered || earlier->forwarded) continue;  // other hosts execute operations in order
        if (net.settings.kind == Fabric::kRc && earlier->queue_pair == op.queue_pair) return false;
        for (const auto& fence : link.fences) {
            const bool covers =
                fence.queue_pair < 0 || (fence.queue_pair == op.queue_pair && fence.queue_pair == earlier->queue_pair);
            if (covers && earlier->number < fence.number && fence.number <= op.number) return false;
        }
    }
    return true;
}

void read_source(NetOp& op, NetOp::Piece& piece) {
    const auto* source = reinterpret_cast<const char*>(op.from + piece.offset);
    piece.data.assign(source, source + piece.bytes);
    machine->schedule->touched(op.from + piece.offset, piece.bytes, Touch::kRead);
    if (checker) checker->net_read(op, op.from + piece.offset, piece.bytes);
}

void deliver_piece(NetOp& op, size_t index) {
    NetOp::Piece& piece = op.pieces[index];
    if (piece.data.empty()) read_source(op, piece);
    memcpy(reinterpret_cast<void*>(op.to + piece.offset), piece.data.data(), piece.bytes);
    machine->schedule->touched(op.to + piece.offset, piece.bytes, Touch::kWrite);
    if (checker) checker->net_wrote(op, op.to + piece.offset, piece.bytes);
    machine->progress++;
    wake(op.to + piece.offset, piece.bytes);
    std::swap(piece, op.pieces.back());
    op.pieces.pop_back();
}

// The signal of a put, or an atomic on its own. True when it is done.
bool apply_signal(Machine& m, NetOp& op) {
    Network& net = *m.network;
    uint64_t now = op.value;
    if (op.signal_op == EPEMU_SIGNAL_ADD) {
        if (m.has_other_processes()) {
            uint64_t before;
            do {
                before = read_raw(op.signal, op.value_bytes);
                now = before + op.value;
            } while (!replace_raw(op.signal, before, now, op.value_bytes));
        } else if (!net.settings.stages_atomics()) {
            now = read_raw(op.signal, op.value_bytes) + op.value;
        } else if (!op.staged) {
            if (net.staging[op.target_rank]) return false;  // one at a time: NIC atomics do not overwrite each other
            net.staging[op.target_rank] = op.staged = true;
            machine->schedule->touched(op.signal, op.value_bytes, Touch::kRead);
            op.staged_value = read_raw(op.signal, op.value_bytes);
            return false;
        } else {
            now = op.staged_value + op.value;
            net.staging[op.target_rank] = false;
        }
    }
    machine->schedule->touched(op.signal, op.value_bytes, Touch::kWrite);
    if (checker) checker->net_signalled(op, now);
    if (!(op.signal_op == EPEMU_SIGNAL_ADD && m.has_other_processes())) write_raw(op.signal, now, op.value_bytes);
    machine->progress++;
    wake(op.signal, op.value_bytes);
    op.signal = 0;
    return true;
}

void complete(Machine& m, size_t index) {
    Network& net = *m.network;
    NetOp* op = net.in_flight[index].get();
    Network::Link& link = link_of(net, op->source_rank, op->target_rank);
    if (checker) checker->net_completed(*op);
    link.ops.erase(std::find(link.ops.begin(), link.ops.end(), op));
    const uint64_t oldest = link.ops.empty() ? ~0ull : link.ops.front()->number;
    link.fences.erase(std::remove_if(link.fences.begin(), link.fences.end(),
                                     [&](const Network::Fence& f) { return f.number <= oldest; }),
                      link.fences.end());
    std::swap(net.in_flight[index], net.in_flight.back());
    net.in_flight.pop_back();
    m.progress++;
    for (size_t i = 0; i < net.waiters.size();) {
        if (is_pending(net, net.waiters[i])) {
            i++;
            continue;
        }
        m.schedule->woke(net.waiters[i].fiber);
        net.waiters.erase(net.waiters.begin() + static_cast<ptrdiff_t>(i));
    }
}

// The same for an operation on another host's memory.
bool advance_far(Machine& m, NetOp& op, bool may) {
    if (!op.forwarded) {
        if (may) m.forwarder->send(op);
        return may;
    }
    if (!m.forwarder->is_done(op)) return false;
    op.pieces.clear();
    op.signal = 0;
    op.delivered = true;
    return true;
}

// Moves one operation on. False if it cannot move now.
bool advance(Machine& m, size_t index) {
    m.steps++;
    NetOp& op = *m.network->in_flight[index];
    if (op.copy) {
        if (!advance_copy(m, op)) return true;
        std::swap(m.network->in_flight[index], m.network->in_flight.back());
        m.network->in_flight.pop_back();
        return true;
    }
    if (is_held(m, op)) return false;
    if (op.delivered) {
        complete(m, index);
        return true;
    }
    const bool may = may_deliver(m, op);
    if (m.forwarder && m.forwarder->leads_to(op.target_rank)) return advance_far(m, op, may);
    if (!op.pieces.empty()) {
        const size_t piece = m.random.below(static_cast<uint32_t>(op.pieces.size()));
        // An early read exposes a source that was not ready at the post, a late one a source that was changed too soon.
        const bool read_only = op.pieces[piece].data.empty() && (!may || m.random.below(2) == 0);
        if (read_only) {
            read_source(op, op.pieces[piece]);
            return true;
        }
        if (!may) return false;
        deliver_piece(op, piece);
    } else {
        if (!may) return false;
        if (op.signal && !apply_signal(m, op)) {
            if (!op.staged) return false;
            return true;
        }
    }
    op.delivered = op.pieces.empty() && !op.signal;
    return true;
}

}  // namespace

bool is_pending(const Network& net, const Network::Waiter& w) {
    const int ranks = static_cast<int>(net.staging.size()), source = w.fiber->block->launch->rank;
    int outstanding = 0;
    for (int target = 0; target < ranks; target++) {
        if (w.target >= 0 && w.target != target) continue;
        for (const NetOp* op : net.links[source * ranks + target].ops) {
            if (w.queue_pair >= 0 && op->queue_pair != w.queue_pair) continue;
            if (w.for_room)
                outstanding++;
            else if (op->number < w.number)
                return true;
        }
    }
    return w.for_room && outstanding >= net.settings.queue_depth;
}

bool network_move(Machine& m, const NetOp* op) {
    const auto& ops = m.network->in_flight;
    const auto it = std::find_if(ops.begin(), ops.end(), [&](const auto& other) { return other.get() == op; });
    return advance(m, static_cast<size_t>(it - ops.begin()));
}

bool piece_can_move(const Machine& m, const NetOp& op, size_t piece) {
    return !is_held(m, op) && (op.pieces[piece].data.empty() || may_deliver(m, op));
}

void move_piece(NetOp& op, size_t piece) {
    machine->steps++;
    if (op.pieces[piece].data.empty()) return read_source(op, op.pieces[piece]);
    deliver_piece(op, piece);
    op.delivered = op.pieces.empty() && !op.signal;
}

bool end_can_move(const Machine& m, const NetOp& op) {
    if (is_held(m, op) || !op.pieces.empty()) return false;
    if (op.delivered) return true;
    const Network& net = *m.network;
    const bool stages = op.signal && op.signal_op == EPEMU_SIGNAL_ADD && net.settings.stages_atomics() && !op.staged;
    return may_deliver(m, op) && !(stages && net.staging[op.target_rank]);
}

void move_end(Machine& m, NetOp& op) {
    m.steps++;
    if (op.delivered) {
        const auto& ops = m.network->in_flight;
        const auto it = std::find_if(ops.begin(), ops.end(), [&](const auto& other) { return other.get() == &op; });
        return complete(m, static_cast<size_t>(it - ops.begin()));
    }
    op.delivered = !op.signal || apply_signal(m, op);
}

bool network_step(Machine& m) {
    Network& net = *m.network;
    net.steps++;
    const auto n = static_cast<uint32_t>(net.in_flight.size());
    uint32_t pick = m.random.below(n);
    for (int i = 0; i < kTries && net.in_flight[pick]->delayed_until > net.steps; i++) pick = m.random.below(n);
    for (uint32_t i = 0; i < n; i++)
        if (advance(m, (pick + i) % n)) return true;
    return false;
}

bool reachable(const Machine& m, int from, int to) {
    const auto& fabric = m.network->settings;
    if (from == to || fabric.kind == Fabric::kP2p) return true;
    return fabric.p2p && from / fabric.ranks_per_node == to / fabric.ranks_per_node;
}

// ---- Posting operations and waiting for them: the calls of kernels, on their fibers.
namespace {

constexpr size_t kMinPiece = 16;       // bytes that a NIC moves at once, at least
constexpr uint32_t kMaxPieces = 4;     // most pieces of an operation
constexpr uint32_t kDelayOneIn = 4;    // one operation in 4 is delayed
constexpr uint32_t kLongestDelay = 9;  // as a power of two, in steps of the network

std::vector<NetOp::Piece> cut(size_t bytes) {
    std::vector<NetOp::Piece> pieces;
    size_t begin = 0;
    const uint32_t wanted = bytes ? 1 + machine->schedule->choose(Choice::kPieces, kMaxPieces) : 0;
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
    const double begin = timed ? timed->now_ns() : 0;
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
    if (address < base || address + bytes > base + machine->heap_stride ||
        !in_an_array(*current->block->launch, address - base, bytes, false))
        raise_fault(Fault::kBadAddress, pc, address,
                    std::string("posts with a ") + what +
                        " that is not in its own symmetric heap, the only memory that NICs can use, or not all in "
                        "one array: " +
                        describe_range(*machine, address, bytes));
    return address - base + reinterpret_cast<uintptr_t>(epemu_heap_base(rank));
}

Poster poster_now(uintptr_t pc) {
    const Launch& launch = *current->block->launch;
    return {launch.rank, current->block->index, current->thread, launch.image, launch.kernel, pc};
}

void post(std::unique_ptr<NetOp> op, uintptr_t pc) {
    Network& net = *machine->network;
    Launch* launch = current->block->launch;
    about_to_send(pc);
    if (timed) timed->synchronise();
    wait("room in a full queue pair", {current, op->target_rank, op->queue_pair, 0, true}, pc);
    op->number = ++net.posted[launch->rank];
    op->source_rank = launch->rank;
    op->poster = poster_now(pc);
    if (const auto behalf = net.on_behalf.find(current); behalf != net.on_behalf.end()) op->poster = behalf->second;
    if (machine->schedule->choose(Choice::kDelay, kDelayOneIn) == 0)
        op->delayed_until = net.steps + (1ull << machine->random.below(kLongestDelay));
    inject_faults(*machine, *op);
    if (checker) checker->net_posted(*op, current, op->poster.pc);
    link_of(net, op->source_rank, op->target_rank).ops.push_back(op.get());
    net.in_flight.push_back(std::move(op));
    machine->schedule->posted(net.in_flight.back().get());
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
    op->pieces = cut(bytes);
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

uint64_t epemu_call_site() {
    Network& net = *machine->network;
    Poster poster = poster_now(EPEMU_PC);
    if (checker) {
        poster.check_id = current->check->id;
        poster.check_time = current->check->time;
    }
    net.asked.emplace(++net.num_asked, std::move(poster));
    return net.num_asked;
}

void epemu_on_behalf(uint64_t place) {
    Network& net = *machine->network;
    net.on_behalf.erase(current);
    const auto asked = net.asked.find(place);
    if (asked == net.asked.end()) return;
    net.on_behalf.emplace(current, std::move(asked->second));
    net.asked.erase(asked);
}

void epemu_net_fence(int rank, int queue_pair) {
    Network& net = *machine->network;
    const int source = epemu_rank();
    if (checker) checker->witness.net_ordered(*current, static_cast<uint32_t>(EPEMU_PC), rank, queue_pair, false);
    for (int target = 0; target < machine->num_ranks; target++)
        if (rank < 0 || rank == target) {
            link_of(net, source, target).fences.push_back({net.posted[source] + 1, queue_pair});
            if (checker) checker->net_fence(source, target, queue_pair);
        }
    machine->schedule->fenced(rank, queue_pair);
    maybe_preempt();
}

void epemu_net_quiet(int rank, int queue_pair) {
    const uintptr_t pc = EPEMU_PC;
    const VectorClock covered = checker ? checker->net_posted_so_far(epemu_rank(), rank, queue_pair) : VectorClock();
    wait("quiet, for operations that are not complete",
         {current, rank, queue_pair, machine->network->posted[epemu_rank()] + 1, false}, pc);
    machine->schedule->quiet(rank, queue_pair);
    if (checker) {
        checker->witness.net_ordered(*current, static_cast<uint32_t>(pc), rank, queue_pair, true);
        checker->net_quiet(current, covered, pc);
    }
    maybe_preempt();
}

}  // extern "C"
