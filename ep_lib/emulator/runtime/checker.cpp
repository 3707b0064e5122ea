// What the checker watches: ids of threads and blocks, launches and hosts, accesses to memory, what orders threads, and
// operations of NICs. What a conflict means and how it is reported is in checker_findings.cpp.
#include <algorithm>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "checker.hpp"
#include "network.hpp"

namespace epemu {

Checker* checker;

namespace {

constexpr size_t kGranule = 16, kPage = 4096, kCachedPages = 1024;
constexpr uint32_t kIdChunk = 32;

template <class T>
T* reserve(size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? nullptr : static_cast<T*>(memory);
}

bool on_stack(const Fiber* fiber, uintptr_t address) {
    return address - reinterpret_cast<uintptr_t>(fiber->stack) < machine->settings.stack_bytes;
}

}  // namespace

Checker::Checker(Machine& m) : m_(m), page_cache_(kCachedPages), ranks_(m.num_ranks) {
    heap_cells_bytes_ = m.heaps_bytes / kGranule * sizeof(Cell);
    shared_cells_bytes_ = kSharedSlots * kSharedSlotBytes / kGranule * sizeof(Cell);
    shared_written_bytes_ = kSharedSlots * kSharedSlotBytes / 8;
    heap_cells_ = reserve<Cell>(heap_cells_bytes_);
    shared_cells_ = reserve<Cell>(shared_cells_bytes_);
    shared_written_ = reserve<uint8_t>(shared_written_bytes_);
    if (!heap_cells_ || !shared_cells_ || !shared_written_) throw std::bad_alloc();
    free_ops_.resize(m.num_ranks);
}

Checker::~Checker() {
    for (auto& op : m_.network->in_flight) delete static_cast<OpCheck*>(op->check);
    if (heap_cells_) munmap(heap_cells_, heap_cells_bytes_);
    if (shared_cells_) munmap(shared_cells_, shared_cells_bytes_);
    if (shared_written_) munmap(shared_written_, shared_written_bytes_);
    for (auto& page : pages_) free(page.second);
}

// ---- ids, launches, the host --------------------------------------------------------------------------------------

size_t Checker::new_ids(int rank, uint32_t count, bool nic) {
    const auto first = static_cast<uint32_t>(ids_by_chunk_.size() * kIdChunk);
    ids_by_chunk_.resize(ids_by_chunk_.size() + count / kIdChunk, static_cast<uint32_t>(ids_.size()));
    ids_.push_back({first, count, rank, nic});
    return ids_.size() - 1;
}

const Checker::Past& Checker::past_of(uint32_t id, uint32_t time) const {
    const auto& past = ids_of(id).past;
    size_t i = past.size() - 1;
    while (i > 0 && past[i].since > time) i--;
    return past[i];
}

void Checker::launched(Launch* launch) {
    LaunchCheck& l = launches_[launch];
    l.start = ranks_[launch->rank].host;
    l.kernel = std::make_shared<const std::string>(launch->kernel);
}

void Checker::admitted(Block* block) {
    Launch* launch = block->launch;
    LaunchCheck& l = launches_[launch];
    if (!l.started) {
        l.started = true;
        l.start.join(ranks_[launch->rank].stream);
    }
    const uint32_t count = (block->num_threads + kIdChunk - 1) / kIdChunk * kIdChunk;
    auto& free = free_ids_[static_cast<uint64_t>(launch->rank) << 32 | count];
    size_t index;
    if (free.empty()) {
        index = new_ids(launch->rank, count, false);
    } else {
        index = free.front();
        free.pop_front();
    }
    l.ids.push_back(index);
    Ids& ids = ids_[index];
    ids.past.push_back({ids.next_time, launch->rank, block->id, block->index, launch->block, l.kernel});

    block->check = std::make_shared<BlockCheck>();
    BlockCheck& check = *block->check;
    check.first_id = ids.first;
    check.threads.resize(block->num_threads);
    for (int t = 0; t < block->num_threads; t++) {
        ThreadCheck& thread = check.threads[t];
        thread.clock = l.start;
        thread.id = ids.first + t;
        thread.time = ids.next_time;
        thread.rank = launch->rank;
        thread.block = block->id;
        thread.owner = &check;
        block->fibers[t].check = &thread;
    }
    const size_t shared = block->shared - m_.shared_area;
    const size_t granules = (block->shared_bytes + kGranule - 1) / kGranule;
    memset(static_cast<void*>(shared_cells_ + shared / kGranule), 0, granules * sizeof(Cell));
    memset(shared_written_ + shared / 8, 0, granules * kGranule / 8);
}

void Checker::finished(Block* block, bool last_of_launch) {
    Launch* launch = block->launch;
    LaunchCheck& l = launches_[launch];
    uint32_t latest = 0;
    const VectorClock* previous = nullptr;
    for (ThreadCheck& t : block->check->threads) {
        if (!previous || !t.clock.same(*previous)) l.end.join(t.clock);
        previous = &t.clock;
        latest = std::max(latest, t.time);
    }
    for (ThreadCheck& t : block->check->threads) l.end.raise(t.id, t.time);
    ids_[ids_by_chunk_[block->check->first_id / kIdChunk]].next_time = latest + 1;
    if (!last_of_launch) return;
    RankCheck& rank = ranks_[launch->rank];
    rank.stream.join(l.end);
    rank.ended.emplace_back(launch->ticket, l.end);
    for (size_t index : l.ids)
        free_ids_[static_cast<uint64_t>(launch->rank) << 32 | ids_[index].count].push_back(index);
    launches_.erase(launch);
}

void Checker::host_waited(int rank, int64_t ticket) {
    RankCheck& r = ranks_[rank];
    while (!r.ended.empty() && r.ended.front().first <= ticket) {
        r.host.join(r.ended.front().second);
        r.ended.pop_front();
    }
}

void Checker::host_met() {
    VectorClock all;
    for (RankCheck& r : ranks_) all.join(r.host);
    for (const auto& link : posted_) all.join(link.second);  // the network is drained at a barrier of all hosts
    for (RankCheck& r : ranks_) r.host = all;
}

// ---- accesses -----------------------------------------------------------------------------------------------------

Checker::Cell* Checker::cells_of_page(uintptr_t page) {
    CachedPage& cached = page_cache_[page % kCachedPages];
    if (cached.page == page) return cached.cells;
    Cell*& cells = pages_[page];
    if (!cells) cells = static_cast<Cell*>(calloc(kPage / kGranule, sizeof(Cell)));
    cached = {page, cells};
    return cells;
}

// The scope that an operation needs to reach from one thread to another.
int Checker::scope_between(const ThreadCheck& t, int rank, uint64_t block) {
    if (t.block == block) return EPEMU_SCOPE_BLOCK;
    return t.rank == rank ? EPEMU_SCOPE_DEVICE : EPEMU_SCOPE_SYSTEM;
}

bool Checker::conflict(const ThreadCheck& t, uint8_t flags, const Slot& slot) const {
    if (!((flags | slot.flags) & kWrites)) return false;
    if (!(flags & slot.flags & kAtomic)) return true;
    if ((flags & slot.flags & kWrites) && ((flags ^ slot.flags) & kStaged)) return true;
    const int scope = std::min(flags >> kScopeShift & 3, slot.flags >> kScopeShift & 3);
    if (scope == EPEMU_SCOPE_SYSTEM) return false;
    const Ids& ids = ids_of(slot.id);
    return scope < (ids.nic ? static_cast<int>(EPEMU_SCOPE_SYSTEM)
                            : scope_between(t, ids.rank, past_of(slot.id, slot.time).block));
}

inline void Checker::touch_cell(Cell& cell, const ThreadCheck& t, uint16_t bytes, uint8_t flags, uint32_t pc,
                                uintptr_t address, bool own_memory) {
    Slot* place = nullptr;
    bool again = (flags & (kWrites | kAtomic)) == kWrites && !(bytes & ~cell.written());
    const auto take = [&](Slot& slot) {
        if ((slot.flags & kWrites) && slot.id == t.id && slot.time == t.time) again = slot.flags & kAgain;
        slot.bytes = 0;
        place = &slot;
    };
    for (Slot& slot : cell.slots) {
        if (!slot.bytes) {
            if (!place) place = &slot;
            continue;
        }
        if (!(slot.bytes & bytes)) continue;
        const bool covers = !(slot.bytes & ~bytes);
        // An access that took the place of a plain one must be plain itself: atomics forgive each other.
        const bool replaces =
            covers && ((flags & kWrites) || !(slot.flags & kWrites)) && (!(flags & kAtomic) || (slot.flags & kAtomic));
        if (slot.id == t.id) {
            if (slot.time == t.time && (slot.flags & ~kAgain) == flags && !(bytes & ~slot.bytes)) return;
            if (replaces) take(slot);
            continue;
        }
        if (own_memory && ids_of(slot.id).rank != t.rank) {  // another rank's array that was there before
            slot.bytes = 0;
            place = &slot;
            continue;
        }
        if (happens_before(slot.id, slot.time, t.clock)) {
            if (replaces) take(slot);
            continue;
        }
        if (conflict(t, flags, slot)) race(t, flags, pc, slot, cell, again, address);
    }
    if (!place) place = &cell.slots[next_victim_++ % 4];
    if ((flags & (kWrites | kAtomic)) == kWrites) cell.add_written(bytes);
    const auto all_flags = static_cast<uint8_t>(flags | (again ? kAgain : 0));
    *place = {t.id, t.time, pc, bytes, all_flags, place->of_cell};
}

void Checker::touch(const ThreadCheck& t, uintptr_t address, size_t size, uint8_t flags, uintptr_t pc) {
    const uintptr_t in_heaps = address - reinterpret_cast<uintptr_t>(m_.heaps);
    const uintptr_t in_shared = address - reinterpret_cast<uintptr_t>(m_.shared_area);
    const bool heap = in_heaps < m_.heaps_bytes, shared = in_shared < kSharedSlots * kSharedSlotBytes;
    bool any_written = !shared;
    for (const uintptr_t end = address + size; address < end;) {
        const size_t first = address % kGranule, n = std::min<size_t>(kGranule - first, end - address);
        const auto bytes = static_cast<uint16_t>(((1u << n) - 1) << first);
        Cell* cell;
        if (heap) {
            cell = heap_cells_ + (address - reinterpret_cast<uintptr_t>(m_.heaps)) / kGranule;
        } else if (shared) {
            const size_t offset = address - reinterpret_cast<uintptr_t>(m_.shared_area);
            cell = shared_cells_ + offset / kGranule;
            uint16_t& written = reinterpret_cast<uint16_t*>(shared_written_)[offset / kGranule];
            any_written |= (written & bytes) != 0;
            if (flags & kWrites) written |= bytes;
        } else {
            cell = cells_of_page(address / kPage) + address % kPage / kGranule;
        }
        touch_cell(*cell, t, bytes, flags, static_cast<uint32_t>(pc), address, !heap && !shared);
        address += n;
    }
    // Some byte is enough: what lies between the members of a struct is copied, and never written.
    if (!any_written && (!(flags & kWrites) || (flags & kAtomic))) never_written(t, flags, pc, address - size);
}

void Checker::access(Fiber* fiber, uintptr_t address, size_t size, uint8_t flags, uintptr_t pc) {
    if (on_stack(fiber, address) || !size) return;
    touch(*fiber->check, address, size, flags, pc);
}

// ---- what orders threads: releases and acquires, fences, barriers of blocks and warps -----------------------------

namespace {

constexpr uint64_t kManyBlocks = ~0ull;

bool acquires(int order) { return order == EPEMU_ACQUIRE || order == EPEMU_ACQ_REL || order == EPEMU_SEQ_CST; }
bool releases(int order) { return order == EPEMU_RELEASE || order == EPEMU_ACQ_REL || order == EPEMU_SEQ_CST; }
uint8_t atomic_flags(int scope, bool writes) {
    return static_cast<uint8_t>(kAtomic | (writes ? kWrites : 0) | scope << kScopeShift);
}

}  // namespace

VectorClock Checker::publish(ThreadCheck& t) {
    t.clock.raise(t.id, t.time++);
    return t.clock;
}

Checker::Location& Checker::location(const ThreadCheck& t, uintptr_t address) {
    Location& l = locations_[address];
    const bool heap = address - reinterpret_cast<uintptr_t>(m_.heaps) < m_.heaps_bytes;
    const bool shared = address - reinterpret_cast<uintptr_t>(m_.shared_area) < kSharedSlots * kSharedSlotBytes;
    const uint64_t owner = heap ? 0 : shared ? t.block << 8 | 1 : static_cast<uint64_t>(t.rank) << 8 | 2;
    if (l.owner != owner) l = Location{owner};
    return l;
}

void Checker::contribute(Location& l, const ThreadCheck& t, VectorClock clock, int scope) {
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
    const uint32_t before = t.clock.get(l.writer);
    for (const Published& p : l.published) {
        const int needed = scope_between(t, p.rank, p.block);
        if (p.scope < needed || scope < needed) {
            too_narrow = true;
        } else if (acquires(order)) {
            t.clock.join(p.clock);
        } else {
            t.pending[needed].join(p.clock);
        }
    }
    if (!t.owner || l.writer_rank < 0 || l.writer == t.id) return;
    if (t.clock.get(l.writer) > before) note_acquired(t, l, pc);
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

void Checker::note_acquired(ThreadCheck& t, const Location& l, uint32_t pc) {
    constexpr size_t kKept = 8;
    t.waited_pc = pc;
    const auto remember = [&](std::deque<AcquiredSignal>& all) {
        const auto known = std::find_if(all.begin(), all.end(), [&](const AcquiredSignal& h) {
            return h.writer_rank == l.writer_rank && h.store_pc == l.store_pc && h.load_pc == pc;
        });
        if (known != all.end()) {
            all.erase(known);
        } else if (all.size() == kKept) {
            all.pop_front();
        }
        all.push_back({l.writer_rank, l.store_pc, pc});
    };
    remember(t.owner->acquired);
    remember(ranks_[t.rank].acquired);
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
        t.clock.join(t.pending[s]);
        t.pending[s] = VectorClock();
    }
    const VectorClock covered = publish(t);
    for (int s = 0; s <= scope; s++) t.fenced[s] = covered;
    Hint& hint = t.owner->hint;
    if (hint.why != Hint::kNotAcquired) return;
    const int needed = hint.writer_rank == t.rank ? EPEMU_SCOPE_DEVICE : EPEMU_SCOPE_SYSTEM;
    hint = scope < needed ? Hint{Hint::kScope, hint.writer_rank, hint.store_pc, hint.load_pc} : Hint{};
}

// What happened before any of these threads happens before all of them from now on. The joined clock is made while no
// other one shares its nodes.
template <class Each>
void Checker::join_all(const Each& each) {
    VectorClock joined, previous;
    each([&](ThreadCheck& t) {
        if (!previous.same(t.clock)) joined.join(t.clock);
        previous = t.clock;
    });
    previous = VectorClock();
    each([](ThreadCheck& t) { t.clock = VectorClock(); });
    each([&](ThreadCheck& t) { joined.raise(t.id, t.time++); });
    each([&](ThreadCheck& t) { t.clock = joined; });
}

void Checker::barrier(Block* block) {
    const Fiber* first = nullptr;
    join_all([&](auto&& use) {
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
    join_all([&](auto&& use) {
        for (uint32_t rest = mask; rest; rest &= rest - 1) use(*warp->lanes[__builtin_ctz(rest)].check);
    });
}

// ---- operations of NICs, as threads of their own ------------------------------------------------------------------
//
// Each begins with the clock of its poster. When it writes, its clock has joined what its fabric keeps before it: on rc
// all that was posted earlier on its queue pair, on any fabric what a fence put before it.
namespace {

constexpr uint32_t kOpIds = 256;  // taken at once; an id rests while others are used, so that races stay visible
constexpr uint64_t kNoBlock = ~1ull;

uint8_t system_atomic(bool staged) {
    return static_cast<uint8_t>(kWrites | kAtomic | EPEMU_SCOPE_SYSTEM << kScopeShift | (staged ? kStaged : 0));
}
OpCheck& check_of(NetOp& op) { return *static_cast<OpCheck*>(op.check); }

}  // namespace

VectorClock& Checker::link(std::unordered_map<uint64_t, VectorClock>& clocks, int source, int target, int queue_pair) {
    return clocks[(static_cast<uint64_t>(source) << 16 | static_cast<uint64_t>(target)) << 32 |
                  static_cast<uint32_t>(queue_pair)];
}

void Checker::net_posted(NetOp& op, Fiber* poster, uintptr_t pc) {
    auto& free = free_ops_[op.source_rank];
    if (free.size() < kOpIds / 2) {
        const Ids& ids = ids_[new_ids(op.source_rank, kOpIds, true)];
        for (uint32_t i = 0; i < kOpIds; i++) free.emplace_back(ids.first + i, 1);
    }
    const auto [id, time] = free.front();
    free.pop_front();

    auto* check = new OpCheck;
    op.check = check;
    check->reader.clock = publish(*poster->check);
    check->reader.id = id;
    check->reader.time = time;
    check->reader.rank = -1;  // outside of all ranks' scopes but the system's
    check->reader.block = kNoBlock;
    check->reader.owner = nullptr;
    check->writer = check->reader;
    VectorClock& known = check->writer.clock;
    known.join(link(fences_, op.source_rank, op.target_rank, op.queue_pair));
    known.join(link(fences_, op.source_rank, op.target_rank, -1));
    VectorClock& earlier = link(posted_, op.source_rank, op.target_rank, op.queue_pair);
    if (m_.network->settings.kind != Fabric::kSrd) known.join(earlier);
    earlier.join(known);
    earlier.raise(id, time);

    check->record = records_.size();
    record_by_op_[static_cast<uint64_t>(id) << 32 | time] = records_.size();
    records_.push_back({op.number, op.kind, op.signal != 0, op.bytes != 0, op.source_rank, op.target_rank,
                        op.queue_pair, op.bytes, op.poster, poster->check->id, poster->check->time - 1, m_.picks});
    if (op.bytes) touch(check->reader, op.from, op.bytes, 0, pc);
}

void Checker::net_read(NetOp& op) {
    Record& r = records_[check_of(op).record];
    if (!r.first_read) r.first_read = m_.picks;
    r.last_read = m_.picks;
}

void Checker::net_wrote(NetOp& op, uintptr_t address, size_t bytes) {
    Record& r = records_[check_of(op).record];
    if (!r.first_write) r.first_write = m_.picks;
    r.delivered = m_.picks;
    touch(check_of(op).writer, address, bytes, kWrites, op.poster.pc);
}

// This operation, and all that happened before it, happens before what follows an acquire of the signal.
void Checker::net_signalled(NetOp& op, bool staged) {
    ThreadCheck& t = check_of(op).writer;
    records_[check_of(op).record].delivered = m_.picks;
    Location& l = location(t, op.signal);
    if (op.signal_op == EPEMU_SIGNAL_SET) l.published.clear();
    VectorClock clock = t.clock;
    clock.raise(t.id, t.time);
    contribute(l, t, std::move(clock), EPEMU_SCOPE_SYSTEM);
    l.writer = t.id;
    l.writer_rank = op.source_rank;
    l.store_pc = static_cast<uint32_t>(op.poster.pc);
    touch(t, op.signal, op.value_bytes, system_atomic(staged), op.poster.pc);
}

void Checker::net_completed(NetOp& op) {
    OpCheck* check = &check_of(op);
    records_[check->record].completed = m_.picks;
    free_ops_[op.source_rank].emplace_back(check->reader.id, check->reader.time + 1);
    delete check;
    op.check = nullptr;
}

VectorClock Checker::net_posted_so_far(int source, int target, int queue_pair) {
    VectorClock all;
    for (int to = 0; to < m_.num_ranks; to++) {
        if (target >= 0 && to != target) continue;
        for (int qp = 0; qp < m_.network->settings.queue_pairs; qp++)
            if (queue_pair < 0 || qp == queue_pair) all.join(link(posted_, source, to, qp));
    }
    return all;
}

void Checker::net_fence(int source, int target, int queue_pair) {
    link(fences_, source, target, queue_pair).join(net_posted_so_far(source, target, queue_pair));
}

void Checker::net_quiet(Fiber* fiber, const VectorClock& covered, uintptr_t pc) {
    fiber->check->clock.join(covered);
    fiber->check->waited_pc = static_cast<uint32_t>(pc);
}

}  // namespace epemu
