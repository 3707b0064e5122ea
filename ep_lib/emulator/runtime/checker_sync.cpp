// What orders threads: releases and acquires, fences, barriers of blocks and warps.
#include "checker.hpp"

#include <algorithm>

namespace epemu {
namespace {

constexpr uint64_t kManyBlocks = ~0ull;

bool acquires(int order) { return order == EPEMU_ACQUIRE || order == EPEMU_ACQ_REL || order == EPEMU_SEQ_CST; }
bool releases(int order) { return order == EPEMU_RELEASE || order == EPEMU_ACQ_REL || order == EPEMU_SEQ_CST; }
uint8_t atomic_flags(int scope, bool writes) {
    return static_cast<uint8_t>(kAtomic | (writes ? kWrites : 0) | scope << kScopeShift);
}
bool on_stack(const Fiber* fiber, uintptr_t address) {
    return address - reinterpret_cast<uintptr_t>(fiber->stack) < machine->settings.stack_bytes;
}

}  // namespace

Clock Checker::publish(ThreadCheck& t) {
    t.known.raise(t.id, t.time++);
    return t.known;
}

Checker::Location& Checker::location(const ThreadCheck& t, uintptr_t address) {
    Location& l = locations_[address];
    const bool heap = address - reinterpret_cast<uintptr_t>(m_.heaps) < m_.heaps_bytes;
    const bool shared = address - reinterpret_cast<uintptr_t>(m_.shared_area) < kSharedSlots * kSharedSlotBytes;
    const uint64_t owner = heap ? 0 : shared ? t.block << 8 | 1 : static_cast<uint64_t>(t.rank) << 8 | 2;
    if (l.owner != owner) l = Location{owner};
    return l;
}

void Checker::contribute(Location& l, const ThreadCheck& t, Clock clock, int scope) {
    l.any_release = true;
    for (Published& p : l.published) {
        if (p.scope != scope || p.rank != t.rank || (scope == EPEMU_SCOPE_BLOCK && p.block != t.block)) continue;
        if (p.block != t.block) p.block = kManyBlocks;
        p.clock.join(clock);
        return;
    }
    l.published.push_back({std::move(clock), scope, t.rank, t.block});
}

void Checker::release_into(Location& l, ThreadCheck& t, int order, int scope) {
    if (releases(order)) {
        contribute(l, t, publish(t), scope);
        return;
    }
    for (int s = scope; s >= EPEMU_SCOPE_BLOCK; s--)
        if (!t.fenced[s].empty() && (s == scope || !t.fenced[s].same(t.fenced[s + 1])))
            contribute(l, t, t.fenced[s], s);
}

void Checker::acquire_from(Location& l, ThreadCheck& t, int order, int scope, uint32_t pc) {
    bool too_narrow = false;
    const uint32_t before = t.known.get(l.writer);
    for (const Published& p : l.published) {
        const int needed = scope_between(t, p.rank, p.block);
        if (p.scope < needed || scope < needed) {
            too_narrow = true;
        } else if (acquires(order)) {
            t.known.join(p.clock);
        } else {
            t.pending[needed].join(p.clock);
        }
    }
    if (!t.owner || l.writer_rank < 0 || l.writer == t.id) return;
    if (t.known.get(l.writer) > before) heard(t, l, pc);
    Hint::Why why = Hint::kNone;
    if (!l.any_release) {
        why = Hint::kNotReleased;
    } else if (too_narrow) {
        why = Hint::kScope;
    } else if (!acquires(order)) {
        why = Hint::kNotAcquired;
    }
    if (why != Hint::kNone) t.owner->hint = {why, l.writer_rank, l.store_pc, pc};
}

void Checker::heard(ThreadCheck& t, const Location& l, uint32_t pc) {
    constexpr size_t kKept = 8;
    t.waited_pc = pc;
    const auto remember = [&](std::deque<Heard>& all) {
        const auto known = std::find_if(all.begin(), all.end(), [&](const Heard& h) {
            return h.writer_rank == l.writer_rank && h.store_pc == l.store_pc && h.load_pc == pc;
        });
        if (known != all.end()) {
            all.erase(known);
        } else if (all.size() == kKept) {
            all.pop_front();
        }
        all.push_back({l.writer_rank, l.store_pc, pc});
    };
    remember(t.owner->heard);
    remember(ranks_[t.rank].heard);
}

void Checker::load(Fiber* fiber, uintptr_t address, int size, int order, int scope, uintptr_t pc) {
    if (on_stack(fiber, address)) return;
    ThreadCheck& t = *fiber->check;
    touch(t, address, size, atomic_flags(scope, false), pc);
    auto it = locations_.find(address);
    if (it != locations_.end()) acquire_from(location(t, address), t, order, scope, static_cast<uint32_t>(pc));
}

void Checker::store(Fiber* fiber, uintptr_t address, int size, int order, int scope, uintptr_t pc) {
    if (on_stack(fiber, address)) return;
    ThreadCheck& t = *fiber->check;
    touch(t, address, size, atomic_flags(scope, true), pc);
    Location& l = location(t, address);
    l.published.clear();
    l.any_release = false;
    release_into(l, t, order, scope);
    l.writer = t.id;
    l.writer_rank = t.rank;
    l.store_pc = static_cast<uint32_t>(pc);
}

// A read-modify-write: what was published before stays published with it.
void Checker::update(Fiber* fiber, uintptr_t address, int size, int order, int scope, uintptr_t pc) {
    if (on_stack(fiber, address)) return;
    ThreadCheck& t = *fiber->check;
    touch(t, address, size, atomic_flags(scope, true), pc);
    Location& l = location(t, address);
    acquire_from(l, t, order, scope, static_cast<uint32_t>(pc));
    release_into(l, t, order, scope);
    l.writer = t.id;
    l.writer_rank = t.rank;
    l.store_pc = static_cast<uint32_t>(pc);
}

void Checker::fence(Fiber* fiber, int, int scope) {
    ThreadCheck& t = *fiber->check;
    for (int s = 0; s <= scope; s++) {
        t.known.join(t.pending[s]);
        t.pending[s] = Clock();
    }
    const Clock covered = publish(t);
    for (int s = 0; s <= scope; s++) t.fenced[s] = covered;
    Hint& hint = t.owner->hint;
    if (hint.why != Hint::kNotAcquired) return;
    const int needed = hint.writer_rank == t.rank ? EPEMU_SCOPE_DEVICE : EPEMU_SCOPE_SYSTEM;
    hint = scope < needed ? Hint{Hint::kScope, hint.writer_rank, hint.store_pc, hint.load_pc} : Hint{};
}

// All that any of these threads knew, all know from now on. The joined clock is made while nobody else holds it.
template <class Each>
void Checker::meet(const Each& each) {
    Clock joined, previous;
    each([&](ThreadCheck& t) {
        if (!previous.same(t.known)) joined.join(t.known);
        previous = t.known;
    });
    previous = Clock();
    each([](ThreadCheck& t) { t.known = Clock(); });
    each([&](ThreadCheck& t) { joined.raise(t.id, t.time++); });
    each([&](ThreadCheck& t) { t.known = joined; });
}

void Checker::barrier(Block* block) {
    const Fiber* first = nullptr;
    meet([&](auto&& use) {
        for (Fiber& f : block->fibers)
            if (f.state == State::kBarrier) use(*f.check);
    });
    for (Fiber& f : block->fibers) {
        if (f.state != State::kBarrier) continue;
        if (!first) first = &f;
        if (f.pc == first->pc && f.mask == first->mask) continue;
        const Side a = {first->check->id, first->check->time, static_cast<uint32_t>(first->pc), 0};
        const Side b = {f.check->id, f.check->time, static_cast<uint32_t>(f.pc), 0};
        Verdict& verdict = note(a, b).verdict;
        verdict.kind = "divergent barrier";
        verdict.remedy = "one barrier that all threads of the block reach";
        verdict.how = "outside";
        verdict.from = a.pc;
        verdict.to = b.pc;
        if (f.mask != first->mask) verdict.detail = "two calls, and threads of one block wait in both";
    }
}

void Checker::syncwarp(Warp* warp, uint32_t mask) {
    meet([&](auto&& use) {
        for (uint32_t rest = mask; rest; rest &= rest - 1) use(*warp->lanes[__builtin_ctz(rest)].check);
    });
}

}  // namespace epemu
