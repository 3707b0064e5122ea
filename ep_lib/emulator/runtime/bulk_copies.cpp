#include "bulk_copies.hpp"

#include <string.h>

#include <algorithm>
#include <memory>

#include "checker.hpp"
#include "machine.hpp"
#include "memory.hpp"
#include "network.hpp"

#define EPEMU_PC reinterpret_cast<uintptr_t>(__builtin_return_address(0))

namespace epemu {
namespace {

constexpr uint32_t kDelayOneIn = 4;  // one copy in 4 is delayed
constexpr const char* kNoRound =
    "tma_wait for a round that no tma_arrive began (the phase is 0 for the first round, then 1, 0, 1, ...)";
constexpr uint32_t kLongestDelay = 7;  // as a power of two, in steps of the network

void finish_round(BulkCopies::Barrier& barrier) {
    if (!barrier.arrived || barrier.missing != 0) return;
    barrier.rounds++;
    barrier.arrived = false;
    barrier.complete.join(barrier.round);
    barrier.round = Known();
    if (checker) checker->copies_forgotten(std::exchange(barrier.check, BulkCheck()));
    for (Fiber* fiber : std::exchange(barrier.waiters, {})) machine->schedule->woke(fiber);
}

BulkCopies::Barrier& barrier_at(uintptr_t address, uintptr_t pc) {
    const auto found = machine->network->copies.barriers.find(address);
    if (found == machine->network->copies.barriers.end() || found->second.block != current->block->id)
        raise_fault(Fault::kTrap, pc, 0, "a barrier of bulk copies that tma_barrier_init has not made");
    return found->second;
}

BulkCopies::Group& group_of(BulkCopies::Thread& thread, uint64_t number) {
    return thread.groups[number - thread.first];
}

std::unique_ptr<NetOp> copy_of(NetKind kind, uintptr_t to, uintptr_t from, uint32_t bytes, uintptr_t pc) {
    const Launch* launch = current->block->launch;
    auto op = std::make_unique<NetOp>();
    op->kind = kind;
    op->source_rank = op->target_rank = launch->rank;
    op->number = ++machine->network->posted[launch->rank];
    op->from = from;
    op->to = to;
    op->bytes = bytes;
    op->pieces.push_back({0, bytes, {}});
    op->poster = {launch->rank, current->block->index, current->thread, launch->image, launch->kernel, pc};
    op->copy = std::make_unique<BulkCopy>();
    op->copy->block = current->block;
    op->copy->fiber = current;
    op->copy->source_bytes = bytes;
    return op;
}

void post(uintptr_t to, uintptr_t from, uint32_t bytes, uintptr_t barrier, uintptr_t pc) {
    if (to % 16 || from % 16 || bytes % 16)
        raise_fault(Fault::kTrap, pc, 0, "a bulk copy whose source, target or size is not a multiple of 16 bytes");
    if (!bytes) return;
    check_access(from, bytes, false, pc);
    check_access(to, bytes, true, pc);
    auto op = copy_of(barrier ? NetKind::kBulkLoad : NetKind::kBulkStore, to, from, bytes, pc);
    Network& net = *machine->network;
    if (machine->schedule->choose(Choice::kDelay, kDelayOneIn) == 0)
        op->delayed_until = net.steps + (1ull << machine->random.below(kLongestDelay));
    op->copy->barrier = barrier;
    BulkCheck* check;
    if (barrier) {
        BulkCopies::Barrier& b = barrier_at(barrier, pc);
        b.under_way++;
        check = &b.check;
    } else {
        BulkCopies::Thread& thread = net.copies.threads[current];
        if (thread.groups.empty()) thread.groups.emplace_back();
        BulkCopies::Group& open = thread.groups.back();
        open.unread++;
        open.unwritten++;
        op->copy->group = thread.first + thread.groups.size() - 1;
        check = &open.check;
    }
    if (checker) checker->copy_posted(*op, current, check);
    op->copy->check = *check;
    net.in_flight.push_back(std::move(op));
    machine->schedule->posted(net.in_flight.back().get());
    forget_polls();
    machine->progress++;
    maybe_preempt();
}

void read(NetOp& op) {
    NetOp::Piece& piece = op.pieces.front();
    const auto* source = reinterpret_cast<const char*>(op.from);
    piece.data.assign(source, source + op.copy->source_bytes);
    piece.data.resize(op.bytes);
    op.copy->has_read = true;
    machine->schedule->touched(op.from, op.bytes, Touch::kRead);
    if (checker) checker->copy_read(op);
}

void write(Machine& m, NetOp& op) {
    memcpy(reinterpret_cast<void*>(op.to), op.pieces.front().data.data(), op.bytes);
    machine->schedule->touched(op.to, op.bytes, Touch::kWrite);
    if (checker) checker->copy_wrote(op);
    op.pieces.clear();
    op.delivered = true;
    m.progress++;
    wake(op.to, op.bytes);
}

void make_copies(const BulkCopies::LateGroup& group) {
    for (const auto& op : group.copies) {
        read(*op);
        write(*machine, *op);
    }
}

// Wakes a thread that waits for groups.
void wake_poster(BulkCopies::Thread& thread, Fiber* fiber) {
    if (!std::exchange(thread.waits, false)) return;
    machine->schedule->woke(fiber);
}

}  // namespace

bool advance_copy(Machine& m, NetOp& op) {
    BulkCopies& copies = m.network->copies;
    BulkCopy& copy = *op.copy;
    BulkCopies::Thread* thread = copy.barrier ? nullptr : &copies.threads[copy.fiber];
    if (!copy.has_read) {
        read(op);
        if (thread && --group_of(*thread, copy.group).unread == 0) wake_poster(*thread, copy.fiber);
        if (m.schedule->choose(Choice::kPause, 2) == 0) return false;
    }
    write(m, op);
    if (thread) {
        if (--group_of(*thread, copy.group).unwritten == 0) wake_poster(*thread, copy.fiber);
    } else {
        BulkCopies::Barrier& barrier = copies.barriers[copy.barrier];
        barrier.missing -= static_cast<int64_t>(op.bytes);
        barrier.under_way--;
        if (checker) checker->copies_complete(copy.check, true, &barrier.round);
        finish_round(barrier);
    }
    return true;
}

void finish_copies(Machine& m, Block* block) {
    Network& net = *m.network;
    BulkCopies& copies = net.copies;
    for (size_t i = 0; i < net.in_flight.size();) {
        NetOp& op = *net.in_flight[i];
        if (!op.copy || op.copy->block != block) {
            i++;
            continue;
        }
        if (checker) checker->copy_outlives(op, block);
        while (!advance_copy(m, op)) {
        }
        std::swap(net.in_flight[i], net.in_flight.back());
        net.in_flight.pop_back();
    }
    if (copies.threads.empty() && copies.barriers.empty() && copies.late.empty()) return;
    for (Fiber& fiber : block->fibers) {
        if (const auto late = copies.late.find(&fiber); late != copies.late.end()) {
            for (const BulkCopies::LateGroup& group : late->second) {
                make_copies(group);
                if (checker) checker->copies_end_with_block(group.check, block, true);
                if (checker) checker->copies_forgotten(group.check);
            }
            copies.late.erase(late);
        }
        const auto thread = copies.threads.find(&fiber);
        if (thread == copies.threads.end()) continue;
        if (checker)
            for (const BulkCopies::Group& group : thread->second.groups) {
                checker->copies_end_with_block(group.check, block, group.read_awaited);
                checker->copies_forgotten(group.check);
            }
        copies.threads.erase(thread);
    }
    const auto begin = reinterpret_cast<uintptr_t>(block->shared);
    for (auto b = copies.barriers.begin(); b != copies.barriers.end();) {
        if (b->first - begin >= block->shared_bytes) {
            ++b;
            continue;
        }
        if (checker) checker->rounds_end_with_block(b->second.complete, block);
        b = copies.barriers.erase(b);
    }
}

}  // namespace epemu

using namespace epemu;

extern "C" {

bool epemu_bulk_by_lanes() { return timed != nullptr; }

void epemu_bulk_init(uint64_t* barrier) {
    BulkCopies::Barrier& made = machine->network->copies.barriers[reinterpret_cast<uintptr_t>(barrier)];
    made = BulkCopies::Barrier();
    made.block = current->block->id;
}

void epemu_bulk_load(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
    post(reinterpret_cast<uintptr_t>(shared), reinterpret_cast<uintptr_t>(global), bytes,
         reinterpret_cast<uintptr_t>(barrier), EPEMU_PC);
}

void epemu_bulk_arrive(uint64_t* barrier, uint32_t bytes) {
    const uintptr_t pc = EPEMU_PC, address = reinterpret_cast<uintptr_t>(barrier);
    BulkCopies::Barrier& b = barrier_at(address, pc);
    if (b.arrived) raise_fault(Fault::kTrap, pc, 0, "tma_arrive twice in one round of its barrier");
    b.missing += bytes;
    b.arrived = true;
    if (checker) b.round.join(checker->barrier_arrived(current, address, pc));
    finish_round(b);
    machine->progress++;
    forget_polls();
    maybe_preempt();
}

void epemu_bulk_wait(uint64_t* barrier, uint32_t phase) {
    const uintptr_t pc = EPEMU_PC, address = reinterpret_cast<uintptr_t>(barrier);
    for (;;) {
        BulkCopies::Barrier& b = barrier_at(address, pc);
        if ((b.rounds & 1) != (phase & 1)) break;
        if (current->lane == 0) {  // lane 0 arrives for all
            if (!b.arrived) raise_fault(Fault::kTrap, pc, 0, kNoRound);
            if (!b.under_way)
                raise_fault(Fault::kTrap, pc, 0,
                            "tma_arrive has announced " + std::to_string(std::abs(b.missing)) + " bytes " +
                                (b.missing > 0 ? "more" : "fewer") + " than tma_load brings: tma_wait never returns");
        }
        b.waiters.push_back(current);
        block_current(State::kNetwork, "tma_wait", pc);
    }
    BulkCopies::Barrier& b = barrier_at(address, pc);
    const bool again = std::exchange(b.waited[current->lane], b.rounds) == b.rounds;
    if (checker) checker->barrier_waited(current, address, b.complete, again, pc);
    maybe_preempt();
}

// Lane 0 posts; the other lanes only mark that they have come this far.
void epemu_bulk_store(void* global, const void* shared, uint32_t bytes) {
    if (checker) checker->store_called(current);
    if (current->lane != 0) return;
    post(reinterpret_cast<uintptr_t>(global), reinterpret_cast<uintptr_t>(shared), bytes, 0, EPEMU_PC);
}

void epemu_bulk_commit() {
    BulkCopies::Thread& thread = machine->network->copies.threads[current];
    if (thread.groups.empty()) thread.groups.emplace_back();
    thread.groups.emplace_back();
}

// Waits until all but the last `but` groups have been read, or also written.
void epemu_bulk_wait_groups(int but, bool written) {
    const uintptr_t pc = EPEMU_PC;
    BulkCopies::Thread& thread = machine->network->copies.threads[current];
    const int64_t committed = static_cast<int64_t>(thread.groups.size()) - 1;
    const int64_t awaited = std::max<int64_t>(0, committed - but);
    const auto done = [&] {
        return std::all_of(thread.groups.begin(), thread.groups.begin() + awaited,
                           [&](const BulkCopies::Group& g) { return (written ? g.unwritten : g.unread) == 0; });
    };
    while (!done()) {
        thread.waits = true;
        block_current(State::kNetwork, written ? "tma_wait_written" : "tma_wait_read", pc);
    }
    for (int64_t i = 0; i < awaited; i++) {
        BulkCopies::Group& group = thread.groups[i];
        group.read_awaited = true;
        if (checker) checker->copies_awaited(current, group.check, written);
    }
    for (int64_t i = 0; written && i < awaited; i++) {
        if (checker) checker->copies_forgotten(thread.groups.front().check);
        thread.groups.pop_front();
        thread.first++;
    }
    maybe_preempt();
}

void epemu_copy_async(void* shared, const void* global, uint32_t bytes, uint32_t source_bytes) {
    const uintptr_t pc = EPEMU_PC, to = reinterpret_cast<uintptr_t>(shared), from = reinterpret_cast<uintptr_t>(global);
    if (to % bytes || from % bytes)
        raise_fault(Fault::kTrap, pc, 0,
                    "an asynchronous copy of " + std::to_string(bytes) +
                        " bytes whose source or target is not a multiple of that");
    if (to - reinterpret_cast<uintptr_t>(current->block->shared) >= current->block->shared_bytes)
        raise_fault(Fault::kTrap, pc, 0, "an asynchronous copy to what is not the block's shared memory");
    if (source_bytes) check_access(from, source_bytes, false, pc);
    check_access(to, bytes, true, pc);
    auto& groups = machine->network->copies.late[current];
    if (groups.empty()) groups.emplace_back();
    BulkCopies::LateGroup& open = groups.back();
    auto op = copy_of(NetKind::kAsyncCopy, to, from, bytes, pc);
    op->copy->source_bytes = source_bytes;
    if (checker) checker->copy_posted(*op, current, &open.check);
    op->copy->check = open.check;
    open.copies.push_back(std::move(op));
}

void epemu_copy_commit() {
    auto& groups = machine->network->copies.late[current];
    if (groups.empty()) groups.emplace_back();
    groups.emplace_back();
}

void epemu_copy_wait(uint32_t but) {
    const auto late = machine->network->copies.late.find(current);
    if (late == machine->network->copies.late.end()) return;
    auto& groups = late->second;
    for (; groups.size() > size_t{but} + 1; groups.pop_front()) {
        const BulkCopies::LateGroup& group = groups.front();
        make_copies(group);
        if (!checker) continue;
        checker->copies_awaited(current, group.check, true);
        checker->copies_forgotten(group.check);
        current->check->waited_pc = static_cast<uint32_t>(EPEMU_PC);
    }
    if (groups.size() == 1 && groups.front().copies.empty()) machine->network->copies.late.erase(late);
    forget_polls();
    maybe_preempt();
}

void epemu_proxy_fence() {
    if (checker) checker->proxy_fence(current);
}

}  // extern "C"
