// How operations travel. Every event is drawn from the machine's random numbers, so a seed replays a network too.
#include "network.hpp"

#include <string.h>

#include <algorithm>

#include "checker.hpp"
#include "machine.hpp"
#include "outages.hpp"
#include "pct.hpp"
#include "virtual_time.hpp"

namespace epemu {
namespace {

constexpr int kTries = 4;  // picks before a delayed operation moves after all

void wake_range(uintptr_t address, size_t bytes) {
    machine->progress++;
    if (!machine->num_parked) return;
    for (uintptr_t a = address & ~uintptr_t{7}; a < address + bytes; a += 8) wake(a);
}

// May anything of this operation be written yet?
bool may_deliver(const Machine& m, const NetOp& op) {
    Network& net = *m.network;
    const Network::Link& link = link_of(net, op.source_rank, op.target_rank);
    for (const NetOp* earlier : link.ops) {
        if (earlier->number >= op.number) break;
        if (earlier->delivered) continue;
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
    if (checker) checker->net_read(op);
}

void deliver_piece(NetOp& op, size_t index) {
    NetOp::Piece& piece = op.pieces[index];
    if (piece.data.empty()) read_source(op, piece);
    memcpy(reinterpret_cast<void*>(op.to + piece.offset), piece.data.data(), piece.bytes);
    if (checker) checker->net_wrote(op, op.to + piece.offset, piece.bytes);
    wake_range(op.to + piece.offset, piece.bytes);
    std::swap(piece, op.pieces.back());
    op.pieces.pop_back();
}

// The signal of a put, or an atomic on its own. True when it is done.
bool apply_signal(Machine& m, NetOp& op) {
    Network& net = *m.network;
    uint64_t now = op.value;
    if (op.signal_op == EPEMU_SIGNAL_ADD) {
        const bool in_hardware = net.settings.kind != Fabric::kSrd;
        if (in_hardware) {
            now = read_raw(op.signal, op.value_bytes) + op.value;
        } else if (!op.staged) {
            if (net.staging[op.target_rank]) return false;  // one at a time: atomics of NICs do not lose each other
            net.staging[op.target_rank] = op.staged = true;
            op.staged_value = read_raw(op.signal, op.value_bytes);
            return false;
        } else {
            now = op.staged_value + op.value;
            net.staging[op.target_rank] = false;
        }
    }
    if (checker) checker->net_signalled(op, op.staged);
    memcpy(reinterpret_cast<void*>(op.signal), &now, op.value_bytes);
    wake_range(op.signal, op.value_bytes);
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
        make_runnable(net.waiters[i].fiber);
        net.waiters.erase(net.waiters.begin() + static_cast<ptrdiff_t>(i));
    }
}

// Moves one operation on. False if it cannot move now.
bool advance(Machine& m, size_t index) {
    NetOp& op = *m.network->in_flight[index];
    if (is_held(m, op)) return false;
    if (op.delivered) {
        complete(m, index);
        return true;
    }
    const bool may = may_deliver(m, op);
    if (!op.pieces.empty()) {
        const size_t piece = m.random.below(static_cast<uint32_t>(op.pieces.size()));
        // Reading early shows sources that were not ready when they were posted, reading late those changed too soon.
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

}  // namespace epemu
