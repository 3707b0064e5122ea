// The order of threads by releases and acquires, fences, and barriers of blocks and warps.
#include <algorithm>
#include <utility>

#include "checker.hpp"
#include "recorder.hpp"

namespace epemu {
namespace {

constexpr size_t kLocations = 16;   // locations at which a thread remembers its releases and acquires
constexpr size_t kPublishers = 16;  // of a location that are distinguished by block
constexpr uint64_t kManyBlocks = ~0ull;

}  // namespace

Known Checker::publish(ThreadCheck& t) {
    t.clock.raise(t.id, t.time++);
    if (t.proxied_time) t.proxied.raise(t.id, std::exchange(t.proxied_time, 0));
    return {t.clock, t.proxied};
}

void Checker::join(VectorClock& clock, const VectorClock& other) {
    if (other.empty() || clock.same(other)) return;
    if (!joined_.clock.same(clock) || !joined_.other.same(other)) {
        joined_.clock = clock;
        joined_.other = other;
        joined_.both = clock;
        joined_.both.join(other);
    }
    clock = joined_.both;
}

void Checker::join(ThreadCheck& t, const Known& known) {
    join(t.clock, known.clock);
    join(t.proxied, known.proxied);
}

// The location that threads synchronise on, if any has released there. The address may have belonged to another owner
// before.
Checker::Location* Checker::known_location(const ThreadCheck& t, uintptr_t address, int size) {
    const auto granule = locations_.find(address / kGranule);
    if (granule == locations_.end()) return nullptr;
    const bool heap = address - reinterpret_cast<uintptr_t>(m_.heaps) < m_.heaps_bytes;
    const bool shared = address - reinterpret_cast<uintptr_t>(m_.shared_area) < kSharedSlots * kSharedSlotBytes;
    const uint64_t owner = heap ? 0 : shared ? t.block << 8 | 1 : static_cast<uint64_t>(t.rank) << 8 | 2;
    for (Location& l : granule->second) {
        if (l.address != address || l.size != size) continue;
        if (l.owner != owner) {
            l = Location();
            l.address = address;
            l.size = size;
            l.owner = owner;
            cell_at(address).open_rest().synchronises = true;
        }
        return &l;
    }
    return nullptr;
}

Checker::Location& Checker::location(const ThreadCheck& t, uintptr_t address, int size) {
    if (Location* l = known_location(t, address, size)) return *l;
    auto& granule = locations_[address / kGranule];
    granule.emplace_back();
    granule.back().address = address;
    granule.back().size = size;
    granule.back().owner = ~0ull;
    return *known_location(t, address, size);
}

// A store ends the publications of a location, unless it is an atomic of exactly this width.
void Checker::overwritten(const Access& a) {
    const auto granule = locations_.find(a.address / kGranule);
    if (granule == locations_.end()) return;
    for (Location& l : granule->second) {
        const auto bytes = static_cast<uint16_t>(((1u << l.size) - 1) << l.address % kGranule);
        if (!(bytes & a.bytes) || ((a.flags & kAtomic) && bytes == a.bytes)) continue;
        l.published.clear();
        l.strong = l.any_release = false;
        l.history.reset();
    }
}

void Checker::contribute(Write& w, const ThreadCheck& t, Known known, int scope, bool by_sc) {
    w.any_release |= !by_sc;
    for (Published& p : w.published) {
        if (p.scope != scope || p.rank != t.rank || p.block != t.block || p.by_sc != by_sc) continue;
        p.known.join(known);
        return;
    }
    if (w.published.size() >= kPublishers && scope > EPEMU_SCOPE_BLOCK) {
        for (Published& p : w.published) {
            if (p.scope != scope || p.rank != t.rank || p.by_sc != by_sc) continue;
            p.block = kManyBlocks;
            p.known.join(known);
            return;
        }
    }
    w.published.push_back({std::move(known), scope, t.rank, t.block, by_sc});
}

namespace {

AtLocation& at_location(std::vector<AtLocation>& all, uintptr_t address, int size) {
    const auto known = std::find_if(all.begin(), all.end(),
                                    [&](const AtLocation& l) { return l.address == address && l.size == size; });
    if (known != all.end()) return *known;
    if (all.size() == kLocations) all.erase(all.begin());
    all.push_back({address, size, {}});
    return all.back();
}

}  // namespace

// A strong write, and what it publishes: as a release, or behind a fence or an earlier release of this location.
void Checker::release_into(Write& w, const Location& l, ThreadCheck& t, int order, int scope) {
    const bool release = releases(order);
    if (release) {
        const Known known = publish(t);
        contribute(w, t, known, scope);
        AtLocation& earlier = at_location(t.released, l.address, l.size);
        for (int s = scope; s >= EPEMU_SCOPE_BLOCK; s--) earlier.known[s] = known;
    }
    const AtLocation* earlier = t.released.empty() ? nullptr : &at_location(t.released, l.address, l.size);
    const auto contribute_known = [&](const Known* known) {
        for (int s = EPEMU_SCOPE_SYSTEM; s >= EPEMU_SCOPE_BLOCK; s--) {
            if (known[s].empty() || (release && s <= scope)) continue;
            if (s < EPEMU_SCOPE_SYSTEM && known[s].same(known[s + 1])) continue;
            contribute(w, t, known[s], s);
        }
    };
    contribute_known(t.fenced);
    if (earlier) contribute_known(earlier->known);
    for (int s = EPEMU_SCOPE_SYSTEM; s >= EPEMU_SCOPE_BLOCK; s--) {
        const Known& known = t.sc_fenced[s];
        if (!known.empty() && !known.same(t.fenced[s])) contribute(w, t, known, s, true);
    }
}

// Whether an atomic of this scope sees this write as atomic.
bool Checker::observes(const Write& w, const ThreadCheck& t, int scope) const {
    return w.strong && std::min(w.scope, scope) >= scope_between(t, w.rank, w.block);
}

// A thread reads this write, and so observes the chain of writes that it ends.
void Checker::observe(Location& l, const Write& w, const ThreadCheck& t) {
    constexpr size_t kKept = 8;
    OfThread& mine = l.threads[t.id];
    if (mine.latest && l.observed[mine.latest - 1].to == w.number) return;
    const Observed seen = {w.chain, w.number, t.time, mine.latest};
    if (mine.count < kKept) {
        l.observed.push_back(seen);
        mine.latest = static_cast<uint32_t>(l.observed.size());
        mine.count++;
        return;
    }
    uint32_t* oldest = &mine.latest;  // its place is free for the new one
    while (l.observed[*oldest - 1].before) oldest = &l.observed[*oldest - 1].before;
    const uint32_t place = std::exchange(*oldest, 0);
    l.observed[place - 1] = seen;
    mine.latest = place;
}

// Whether a strong read before this access has observed the other access, a strong write to the same place. The read is
// in this thread or happens before this access.
bool Checker::has_observed(const Access& a, const Slot& slot) {
    if ((slot.flags & (kWrites | kAtomic)) != (kWrites | kAtomic)) return false;
    if (plain_volatile_ && (a.flags & slot.flags & kVolatile)) return false;
    const auto granule = locations_.find(a.address / kGranule);
    if (granule == locations_.end()) return false;
    for (Location& l : granule->second) {
        if (slot.bytes != static_cast<uint16_t>(((1u << l.size) - 1) << l.address % kGranule)) continue;
        const OfThread* writer = l.threads.find(slot.id);
        const uint32_t last = writer ? writer->last_write : 0;
        for (const OfThread& other : l.threads.all)
            for (uint32_t place = other.latest; last && place; place = l.observed[place - 1].before) {
                const Observed& seen = l.observed[place - 1];
                if (last < seen.from || last > seen.to) continue;
                const uint32_t id = other.number;
                const bool mine = id == a.t.id && (!a.t.owner || seen.time >= past_of(id, a.t.time).since);
                if (mine || happens_before(id, seen.time, a.t.clock)) return true;
            }
    }
    return false;
}

// A strong read of this write; null: nothing was ever published there.
void Checker::acquire_from(const Write* w, ThreadCheck& t, uintptr_t address, int size, int order, int scope,
                           uint32_t pc) {
    const bool acquire = acquires(order);
    const uint32_t before = w ? t.clock.get(w->writer) : 0;
    if (acquire && !t.seen.empty()) {  // seen there earlier by a relaxed read
        for (AtLocation& seen : t.seen) {
            if (seen.address != address || seen.size != size) continue;
            for (int s = scope; s >= EPEMU_SCOPE_BLOCK; s--) join(t, std::exchange(seen.known[s], Known()));
        }
    }
    if (!w) return;
    static const std::vector<Published> kNothing;
    bool too_narrow = !w->published.empty() && !observes(*w, t, scope);
    for (const Published& p : too_narrow ? kNothing : w->published) {
        const int needed = scope_between(t, p.rank, p.block);
        if (p.scope < needed) {
            too_narrow |= !p.by_sc;
            continue;
        }
        if (p.by_sc) {
            t.sc_pending[needed].join(p.known);
            continue;
        }
        if (acquire && scope >= needed) {
            join(t, p.known);
            continue;
        }
        t.pending[needed].join(p.known);
        at_location(t.seen, address, size).known[needed].join(p.known);
    }
    if (!t.owner || w->writer_rank < 0 || w->writer == t.id) return;
    if (t.clock.get(w->writer) > before) note_acquired(t, *w, pc);
    Hint::Why why = Hint::kNone;
    if (!w->any_release) {
        why = Hint::kNotReleased;
    } else if (too_narrow) {
        why = Hint::kScope;
    } else if (!acquire) {
        why = Hint::kNotAcquired;
    }
    if (why != Hint::kNone) t.owner->hint = {why, w->writer_rank, w->store_pc, pc, w->writer, w->stored};
}

// `w`: the location itself, or a write ordered before the current value.
void Checker::wrote_atomically(Location& l, Write& w, const ThreadCheck& t, int scope, int writer_rank, uint32_t pc,
                               bool updates) {
    constexpr uint32_t kBehind = 1u << 31;
    const bool newest = &w == &l;
    w.number = l.threads[t.id].last_write = newest ? ++l.writes : kBehind + ++l.behind;
    if (!newest || !updates || !observes(w, t, scope)) w.chain = w.number;
    w.strong = true;
    w.scope = scope;
    w.rank = t.rank;
    w.block = t.block;
    w.writer = t.id;
    w.stored = t.time;
    w.writer_rank = writer_rank;
    w.store_pc = pc;
}

void Checker::note_acquired(ThreadCheck& t, const Write& w, uint32_t pc) {
    constexpr size_t kKept = 8;
    t.waited_pc = pc;
    const auto remember = [&](std::deque<AcquiredSignal>& all) {
        const auto known = std::find_if(all.begin(), all.end(), [&](const AcquiredSignal& h) {
            return h.writer_rank == w.writer_rank && h.store_pc == w.store_pc && h.load_pc == pc;
        });
        if (known != all.end()) {
            all.erase(known);
        } else if (all.size() == kKept) {
            all.pop_front();
        }
        all.push_back({w.writer_rank, w.store_pc, pc});
    };
    remember(t.owner->acquired);
    remember(ranks_[t.rank].acquired);
}

// An acquire's knowledge already applies to its own access.
bool Checker::load(Fiber* fiber, uintptr_t address, uint64_t* value, int size, int order, int scope, uintptr_t pc) {
    if (is_on_stack(fiber, address)) return false;
    machine->schedule->touched(address, static_cast<size_t>(size), Touch::kRead);
    ThreadCheck& t = *fiber->check;
    if (recorder) recorder->next_atomic(order, scope);
    if (weak && order == EPEMU_SEQ_CST) order_by_fence(t, order, scope);  // as PTX has it
    Location* l = known_location(t, address, size);
    History* history = weak && l ? history_of(*l) : nullptr;
    const size_t newest = history ? history->messages.size() - 1 : 0;
    const size_t message = history && value ? choose_message(*l, t) : newest;
    const Write* w = message == newest ? l : &history->messages[message].write;
    witness.load(*fiber, address, size, order, scope, static_cast<uint32_t>(pc), w == l);
    read_of_memory(t, address, static_cast<size_t>(size), atomic_flags(order, scope, false), pc);
    acquire_from(w, t, address, size, order, scope, static_cast<uint32_t>(pc));
    if (history) noticed(*l, *w, message, t, order, static_cast<uint32_t>(pc));
    touch(t, address, size, atomic_flags(order, scope, false), pc);
    if (w && observes(*w, t, scope)) {  // orders what follows, not this access
        observe(*l, *w, t);
        if (history) saw(*l, message, t);
    }
    if (w != l) {
        *value = history->messages[message].value;
        if (recorder) recorder->has_value(*value);
    }
    if (recorder) recorder->learned(t.clock, t.rank, t.id);
    return w != l;
}

bool Checker::store(Fiber* fiber, uintptr_t address, const uint64_t* value, int size, int order, int scope,
                    uintptr_t pc) {
    if (is_on_stack(fiber, address)) return true;
    machine->schedule->touched(address, static_cast<size_t>(size), Touch::kWrite);
    ThreadCheck& t = *fiber->check;
    Location& l = location(t, address, size);
    if (recorder) recorder->next_atomic(order, scope);
    if (weak && order == EPEMU_SEQ_CST) order_by_fence(t, order, scope);  // as PTX has it
    const size_t place = !weak ? 0 : value ? choose_place(l, t) : make_newest(l);
    const bool newest = !weak || !l.history || place == l.history->messages.size();
    const uint32_t time = t.time;
    touch(t, address, size, atomic_flags(order, scope, true), pc);
    marks_only_the_end(t, address, static_cast<uint32_t>(pc), atomic_flags(order, scope, true));
    witness.store(*fiber, address, size, order, scope, static_cast<uint32_t>(pc));
    Write behind;
    Write& w = newest ? l : behind;
    w.published.clear();
    w.any_release = false;
    release_into(w, l, t, order, scope);
    wrote_atomically(l, w, t, scope, t.rank, static_cast<uint32_t>(pc), false);
    if (weak) written(l, w, place, value, t, time, false);
    t.time++;  // so that findings can tell accesses before this one from those behind it
    if (recorder && !newest && value != &kLater) recorder->has_value(*value);
    return newest;
}

// The read of a read-modify-write that uses the old value.
void Checker::needs_value(Fiber* fiber, uintptr_t address, int size, int scope, uintptr_t pc) {
    if (is_on_stack(fiber, address)) return;
    read_of_memory(*fiber->check, address, static_cast<size_t>(size), atomic_flags(EPEMU_RELAXED, scope, true), pc);
}

// A read-modify-write: the writes that it observes stay published with it.
void Checker::update(Fiber* fiber, uintptr_t address, uint64_t now, int size, int order, int scope, uintptr_t pc,
                     const Behind* behind) {
    if (is_on_stack(fiber, address)) return;
    machine->schedule->touched(address, static_cast<size_t>(size), Touch::kWrite);
    ThreadCheck& t = *fiber->check;
    if (recorder) recorder->next_atomic(order, scope);
    if (weak && order == EPEMU_SEQ_CST) order_by_fence(t, order, scope);  // as PTX has it
    marks_only_the_end(t, address, static_cast<uint32_t>(pc), atomic_flags(order, scope, true));
    const bool changes = size <= 8 && read_raw(address, size) != now;
    witness.update(*fiber, address, size, order, scope, static_cast<uint32_t>(pc), changes);
    Location& l = location(t, address, size);
    const size_t place = behind ? behind->message + 1 : weak ? make_newest(l) : 0;
    Write copy;
    if (behind) copy = l.history->messages[behind->message].write;
    Write& w = behind ? copy : l;
    acquire_from(&w, t, address, size, order, scope, static_cast<uint32_t>(pc));
    if (weak && l.history) noticed(l, w, place - 1, t, order, static_cast<uint32_t>(pc));
    const uint32_t time = t.time;
    touch(t, address, size, atomic_flags(order, scope, true), pc, kReadsToo);
    if (observes(w, t, scope)) {
        observe(l, w, t);
    } else {
        w.published.clear();
    }
    release_into(w, l, t, order, scope);
    wrote_atomically(l, w, t, scope, t.rank, static_cast<uint32_t>(pc), true);
    if (weak) written(l, w, place, &now, t, time, true);
    t.time++;
    if (recorder && behind) recorder->has_value(now);
    if (recorder) recorder->learned(t.clock, t.rank, t.id);
}

void Checker::fence(Fiber* fiber, int order, int scope) {
    ThreadCheck& t = *fiber->check;
    const uint32_t time = t.time;
    order_by_fence(t, order, scope);
    witness.fence(*fiber, order, scope, static_cast<uint32_t>(fiber->pc), time);
    if (recorder) {
        recorder->fence(*fiber, order, scope);
        recorder->learned(t.clock, t.rank, t.id);
    }
    Hint& hint = t.owner->hint;
    if (hint.why != Hint::kNotAcquired || !acquires(order)) return;
    const int needed = hint.writer_rank == t.rank ? EPEMU_SCOPE_DEVICE : EPEMU_SCOPE_SYSTEM;
    hint.why = scope < needed ? Hint::kScope : Hint::kNone;
}

void Checker::order_by_fence(ThreadCheck& t, int order, int scope) {
    if (acquires(order)) {
        for (int s = 0; s <= scope; s++) {
            join(t, std::exchange(t.pending[s], Known()));
            for (AtLocation& seen : t.seen) seen.known[s] = Known();
        }
    }
    if (order == EPEMU_SEQ_CST) {
        for (int s = 0; s <= scope; s++) join(t, std::exchange(t.sc_pending[s], Known()));
        if (weak) sc_fence(t, scope);
    }
    if (releases(order)) {
        const Known covered = publish(t);
        for (int s = 0; s <= scope; s++) {
            t.fenced[s] = covered;
            if (order == EPEMU_SEQ_CST) t.sc_fenced[s] = covered;
        }
    }
}

// Joins the clocks of these threads: the past of each happens before all of them. The joined clock is made while no
// other one shares its nodes.
template <class Each>
void Checker::join_all(const Each& each) {
    Known joined, previous, fenced[3];
    each([&](ThreadCheck& t) {
        for (int s = 0; s < 3; s++)
            if (!t.sc_fenced[s].empty() && !t.sc_fenced[s].same(fenced[s])) fenced[s].join(t.sc_fenced[s]);
        if (!previous.clock.same(t.clock)) joined.clock.join(t.clock);
        if (!previous.proxied.same(t.proxied)) joined.proxied.join(t.proxied);
        previous = {t.clock, t.proxied};
    });
    previous = Known();
    each([](ThreadCheck& t) { t.clock = t.proxied = VectorClock(); });
    each([&](ThreadCheck& t) {
        joined.clock.raise(t.id, t.time++);
        if (t.proxied_time) joined.proxied.raise(t.id, std::exchange(t.proxied_time, 0));
    });
    each([&](ThreadCheck& t) {
        t.clock = joined.clock;
        t.proxied = joined.proxied;
        for (int s = 0; s < 3; s++)
            if (!fenced[s].empty()) t.sc_fenced[s] = fenced[s];
    });
}

// The thread itself if it meets no other, so that its writes are published to no one.
static uint32_t alone(size_t threads, const ThreadCheck& t) { return threads > 1 ? Recorder::kAnyone : t.id; }

void Checker::barrier(Block* block) {
    const Fiber* first = nullptr;
    if (block->arrived < block->num_threads)
        for (const Fiber& f : block->fibers)
            if (f.state == State::kBarrier) {
                Past& past = ids_[ids_by_chunk_[block->check->first_id / kIdChunk]].past.back();
                past.few = block->arrived;
                past.first_of_few = f.check->id;
                break;
            }
    join_all([&](auto&& use) {
        for (Fiber& f : block->fibers)
            if (f.state == State::kBarrier) use(*f.check);
    });
    if (recorder) recorder->barrier(*block);
    for (Fiber& f : block->fibers) {
        if (f.state != State::kBarrier) continue;
        if (!first) {
            first = &f;
            const ThreadCheck& t = *f.check;
            if (recorder) recorder->learned(t.clock, t.rank, alone(static_cast<size_t>(block->arrived), t));
        }
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

void Checker::meet(const std::vector<Fiber*>& fibers) {
    join_all([&](auto&& use) {
        for (Fiber* f : fibers) use(*f->check);
    });
    for (Fiber* f : fibers) f->check->met_by_number = true;
    if (!recorder) return;
    recorder->met(fibers);
    recorder->learned(fibers[0]->check->clock, fibers[0]->check->rank, alone(fibers.size(), *fibers[0]->check));
}

void Checker::syncwarp(Warp* warp, uint32_t mask) {
    join_all([&](auto&& use) {
        for (uint32_t rest = mask; rest; rest &= rest - 1) use(*warp->lanes[__builtin_ctz(rest)].check);
    });
    if (!recorder) return;
    recorder->syncwarp(*warp, mask);
    const ThreadCheck& any = *warp->lanes[__builtin_ctz(mask)].check;
    recorder->learned(any.clock, any.rank, alone(static_cast<size_t>(__builtin_popcount(mask)), any));
}

}  // namespace epemu
