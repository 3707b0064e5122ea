// Memory accesses: which earlier ones each granule remembers, and which of them a new one conflicts with.
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "checker.hpp"
#include "recorder.hpp"

namespace epemu {
namespace {

constexpr size_t kFewSlots = 6;     // beside a granule; more are kept by thread
constexpr size_t kRacesAtOnce = 4;  // races of one access with a crowd that are examined

}  // namespace

Checker::Cells Checker::cells_of_page(uintptr_t page) {
    CachedPage& cached = page_cache_[page % kCachedPages];
    if (cached.page == page) return cached.cells;
    Cells& cells = pages_[page];
    if (!cells.first) {
        constexpr size_t kGranules = kPage / kGranule, kSlots = kGranules * sizeof(Slot);
        char* memory = static_cast<char*>(aligned_alloc(alignof(Rest), 2 * kSlots + kGranules * sizeof(Rest)));
        if (!memory) no_memory();
        memset(memory, 0, kSlots);
        Slot* const slots = reinterpret_cast<Slot*>(memory);
        cells = {slots, slots + kGranules, reinterpret_cast<Rest*>(memory + 2 * kSlots)};
    }
    cached = {page, cells};
    return cells;
}

void Checker::fill_unwritten(uintptr_t begin, uintptr_t end) {
    constexpr uintptr_t kWord = sizeof kUnwritten;
    for (uintptr_t a = (begin + kWord - 1) & ~(kWord - 1); a + kWord <= end; a += kWord)
        *reinterpret_cast<uint32_t*>(a) = kUnwritten;
    for (uintptr_t a = begin; a < end; a += kGranule)
        if (Cell cell = cell_at(a); cell.written()) cell.forget_written();
}

// Compares the whole word around it as well: one or two bytes may match by chance.
bool Checker::is_unwritten(uintptr_t address, size_t size) {
    const uintptr_t in_shared = address - reinterpret_cast<uintptr_t>(m_.shared_area);
    if (in_shared < kSharedSlots * kSharedSlotBytes) return false;
    const uintptr_t end = address + size;
    for (uintptr_t a = address & ~(sizeof kUnwritten - 1); a < end; a += sizeof kUnwritten) {
        if (*reinterpret_cast<const uint32_t*>(a) != kUnwritten) return false;
        if (cell_at(a).written() >> a % kGranule & 0xf) return false;
    }
    return true;
}

// The scope that an operation needs to synchronise one thread with another.
int Checker::scope_between(const ThreadCheck& t, int rank, uint64_t block) {
    if (t.block == block) return EPEMU_SCOPE_BLOCK;
    return t.rank == rank ? EPEMU_SCOPE_DEVICE : EPEMU_SCOPE_SYSTEM;
}

uint64_t Checker::block_of(uint32_t id, uint32_t time) const {
    return ids_of(id).nic ? kNoBlock : past_of(id, time).block;
}

// Whether the two accesses conflict: one of them writes, and they are not atomic to each other.
bool Checker::conflict(const Access& a, const Slot& slot) const {
    if (!((a.flags | slot.flags) & kWrites)) return false;
    if (!(a.flags & slot.flags & kAtomic) || a.bytes != slot.bytes) return true;
    if (plain_volatile_ && (a.flags & slot.flags & kVolatile)) return true;
    if ((a.flags & slot.flags & kWrites) && ((a.flags ^ slot.flags) & kStaged)) return true;
    const int scope = std::min(a.flags >> kScopeShift & 3, slot.flags >> kScopeShift & 3);
    if (scope == EPEMU_SCOPE_SYSTEM) return false;
    const Ids& ids = ids_of(slot.id);
    return scope < (ids.nic ? static_cast<int>(EPEMU_SCOPE_SYSTEM)
                            : scope_between(a.t, ids.rank, past_of(slot.id, slot.time).block));
}

// Whether any access that conflicts with the older one conflicts with this one too.
inline bool Checker::replaces(const Access& a, const Slot& slot) const {
    if (slot.bytes & ~a.bytes) return false;
    if ((slot.flags & kWrites) && !(a.flags & kWrites)) return false;
    if (!(a.flags & kAtomic)) return true;
    constexpr uint8_t kKind = kAtomic | kStaged | kVolatile;
    return !((a.flags ^ slot.flags) & kKind) && slot.bytes == a.bytes &&
           (slot.flags >> kScopeShift & 3) >= (a.flags >> kScopeShift & 3) &&
           (slot.id == a.t.id || block_of(slot.id, slot.time) == a.t.block);
}

// Inlined, since almost all accesses end here, at the first slot of a cell.
__attribute__((always_inline)) inline Checker::Fate Checker::compare_first(const Slot& slot, const Access& a,
                                                                           const Cell& cell, bool* again) {
    if (!(slot.bytes & a.bytes)) return Fate::kStays;
    const bool mine = slot.id == a.t.id;
    if (mine && slot.time == a.t.time && (slot.flags & ~kAgain) == a.flags &&
        ((a.flags & kAtomic) ? a.bytes == slot.bytes : !(a.bytes & ~slot.bytes)))
        return Fate::kSame;
    if (!mine) {
        if (a.own_memory && ids_of(slot.id).rank != a.t.rank) return Fate::kGoes;  // an earlier array of another rank
        if (!happens_before(slot.id, slot.time, a.t.clock)) {
            if (conflict(a, slot)) {
                a.told = true;
                race(a, slot, cell, *again);
            }
            return Fate::kStays;
        }
        if ((a.details & kAsync) && (slot.flags & kWrites) && !ids_of(slot.id).nic &&
            !happens_before(slot.id, slot.time, a.t.proxied)) {
            a.told = true;
            not_fenced(a, slot);
        }
    }
    if (!replaces(a, slot)) return Fate::kStays;
    if (mine && (slot.flags & kWrites) && slot.time == a.t.time) *again = slot.flags & kAgain;
    return Fate::kGoes;
}

Checker::Fate Checker::compare(const Slot& slot, const Access& a, const Cell& cell, bool* again) {
    return compare_first(slot, a, cell, again);
}

// The same for many accesses of one kind: usually their common part decides.
Checker::Fate Checker::compare_crowd(Crowd& crowd, const Access& a, const Cell& cell, bool again) {
    if (!(crowd.bytes & a.bytes)) return Fate::kStays;
    if (a.own_memory && crowd.rank != a.t.rank) return Fate::kGoes;
    const bool same_kind = crowd.bytes == a.bytes && crowd.flags == a.flags;
    if (same_kind) {
        const WarpAccesses* mine = crowd.warps.find(a.t.id / kWarpSize);
        const uint32_t lane = a.t.id % kWarpSize;
        if (mine && (mine->lanes >> lane & 1) && crowd.time_of(*mine, lane) == a.t.time) return Fate::kSame;
    }
    if (!((crowd.flags | a.flags) & kWrites)) return Fate::kStays;
    const int scope = std::min(a.flags >> kScopeShift & 3, crowd.flags >> kScopeShift & 3);
    const bool both_atomic = (a.flags & crowd.flags & kAtomic) && crowd.bytes == a.bytes;
    const bool one_kind_of_writer = !(a.flags & crowd.flags & kWrites) || !((a.flags ^ crowd.flags) & kStaged);
    const bool both_volatile = plain_volatile_ && (a.flags & crowd.flags & kVolatile);
    if (both_atomic && one_kind_of_writer && !both_volatile &&
        (scope == EPEMU_SCOPE_SYSTEM || (scope == EPEMU_SCOPE_DEVICE && crowd.rank == a.t.rank)))
        return Fate::kStays;
    if (!crowd.known.same(a.t.clock) || crowd.known.empty()) {
        bool all = true;
        size_t races = 0;
        for (const WarpAccesses& w : crowd.warps.all) {
            const uint32_t mine = w.number == a.t.id / kWarpSize ? 1u << a.t.id % kWarpSize : 0;
            uint32_t same[kWarpSize];
            if (!w.apart) std::fill_n(same, kWarpSize, w.time);
            const uint32_t* times = w.apart ? crowd.times[w.apart - 1].data() : same;
            if (!a.t.clock.has_all(w.number * kWarpSize, w.lanes & ~mine, times)) all = false;
        }
        if (!all)
            crowd.for_each([&](const Slot& slot) {
                if (slot.id == a.t.id || happens_before(slot.id, slot.time, a.t.clock)) return true;
                if (!conflict(a, slot)) return true;
                a.told = true;
                race(a, slot, cell, again);
                return ++races < kRacesAtOnce;
            });
        if (!all) return Fate::kStays;
        crowd.known = a.t.clock;
    }
    return !(a.flags & kAtomic) && !(crowd.bytes & ~a.bytes) && ((a.flags & kWrites) || !(crowd.flags & kWrites))
               ? Fate::kGoes
               : Fate::kStays;
}

void Checker::touch_cell(Cell cell, const Access& a) {
    Slot* place = nullptr;
    Slot* wider = nullptr;  // this thread's access on the same line to other bytes
    const bool writes_plainly = (a.flags & (kWrites | kAtomic)) == kWrites;
    bool again = writes_plainly && !(a.bytes & ~cell.written());
    bool left = false;
    const auto says_the_same = [&](Slot& slot, Fate fate) {
        if (slot.bytes) {
            if (fate == Fate::kSame) return true;
            if (fate == Fate::kStays) {
                if (slot.id == a.t.id && slot.time == a.t.time && slot.pc == a.pc) wider = &slot;
                return false;
            }
            slot.bytes = 0;
            left = true;
        }
        if (!place) place = &slot;
        return false;
    };
    if (says_the_same(*cell.first, compare_first(*cell.first, a, cell, &again))) return;
    if (cell.has_second()) {
        if (says_the_same(*cell.second, compare(*cell.second, a, cell, &again))) return;
    } else if (!place) {
        place = cell.second;
    }
    if (cell.has_rest())
        for (Slot& slot : cell.rest->slots)
            if (says_the_same(slot, compare(slot, a, cell, &again))) return;
    if (const uint32_t beside = cell.more()) {
        More& more = more_[beside - 1];
        const size_t before = more.slots.size() + more.crowds.size();
        for (size_t i = 0; i < more.slots.size();) {
            const Fate fate = compare(more.slots[i], a, cell, &again);
            if (fate == Fate::kSame) return;
            if (fate == Fate::kGoes) {
                more.slots[i] = more.slots.back();
                more.slots.pop_back();
            } else {
                i++;
            }
        }
        for (size_t i = 0; i < more.crowds.size();) {
            const Fate fate = compare_crowd(more.crowds[i], a, cell, again);
            if (fate == Fate::kSame) return;
            if (fate == Fate::kGoes) {
                std::swap(more.crowds[i], more.crowds.back());
                spare_crowds_.push_back(std::move(more.crowds.back()));
                more.crowds.pop_back();
            } else {
                i++;
            }
        }
        if (a.flags || left || more.slots.size() + more.crowds.size() != before) more.version = ++versions_;
        left = true;
        if (more.slots.empty() && more.crowds.empty()) {
            free_more_.push_back(beside - 1);
            cell.rest->more = 0;
        }
    }
    const bool had_rest = cell.has_rest();
    if (writes_plainly) cell.add_written(a.bytes);
    // If this call has just opened the rest, this access goes there.
    if (place == cell.second && !cell.has_second() && cell.has_rest() != had_rest) place = nullptr;
    if ((a.flags & kWrites) && cell.synchronises()) overwritten(a);
    const auto flags = static_cast<uint8_t>(a.flags | (again ? kAgain : 0));
    if (wider && wider->flags == flags && !(flags & kAtomic)) {
        wider->bytes |= a.bytes;
    } else if (place || !cell.has_rest()) {
        if (!place) place = cell.open_rest().slots;
        if (place == cell.second) cell.first->of_cell |= kHasSecond;
        *place = {a.t.id, a.t.time, a.pc, a.bytes, flags, place == cell.first ? place->of_cell : uint8_t{0}};
    } else {
        Crowd* crowd = remember(*cell.rest, {a.t.id, a.t.time, a.pc, a.bytes, flags, 0});
        if (crowd && !a.flags && !a.details && !a.told) has_joined(cell, a, crowd);
    }
    if (left) cell.close_what_is_empty();
}

inline Checker::JoinedCrowd& Checker::joined_crowd(const Cell& cell, const Access& a) {
    const uint64_t mixed = (reinterpret_cast<uintptr_t>(cell.first) + a.bytes + a.pc) * 0x9e3779b97f4a7c15u;
    return joined_crowds_[mixed >> (64 - kJoinedBits)];
}

// Whether a lane of this warp has just made the same access, so that this one has the same outcome.
inline bool Checker::joins_crowd(const Cell& cell, const Access& a) {
    const JoinedCrowd& j = joined_crowd(cell, a);
    const uint32_t lane = a.t.id % kWarpSize;
    if (a.flags || a.details || j.cell != cell.first || j.what != (a.pc | uint64_t{a.bytes} << 32) ||
        j.warp != a.t.id / kWarpSize || j.clock != a.t.clock.stamp() || j.version != j.more->version ||
        (j.apart >> lane & 1))
        return false;
    Crowd& crowd = j.more->crowds[j.crowd];
    WarpAccesses& mine = crowd.warps.all[j.place];
    if (!(mine.lanes >> lane & 1) || crowd.time_of(mine, lane) != a.t.time) crowd.add(mine, lane, a.t.time, a.pc);
    return true;
}

// Notes that a read has joined a crowd, so that other lanes of its warp can skip the accesses that are ordered before
// this one.
void Checker::has_joined(const Cell& cell, const Access& a, Crowd* crowd) {
    More& more = more_[cell.more() - 1];
    JoinedCrowd& j = joined_crowd(cell, a);
    j = {};
    for (const Crowd& other : more.crowds)
        if ((other.bytes & a.bytes) && (other.flags & kWrites)) return;
    uint32_t apart = 0;
    bool ordered = true;
    cell.any_slot([&](const Slot& slot) {
        if (slot.id / kWarpSize == a.t.id / kWarpSize) apart |= 1u << slot.id % kWarpSize;
        if (!(slot.bytes & a.bytes) || !(slot.flags & kWrites)) return false;
        ordered = happens_before(slot.id, slot.time, a.t.clock);
        return !ordered;
    });
    if (!ordered) return;
    const auto place = static_cast<size_t>(crowd->warps.find(a.t.id / kWarpSize) - crowd->warps.all.data());
    j = {cell.first,
         a.pc | uint64_t{a.bytes} << 32,
         a.t.id / kWarpSize,
         a.t.clock.stamp(),
         more.version,
         apart,
         &more,
         static_cast<size_t>(crowd - more.crowds.data()),
         place};
}

// touch_cell with a shortcut: an earlier access may decide the outcome. Inlined: almost all accesses end here.
__attribute__((always_inline)) inline void Checker::step(Cell cell, const Access& a) {
    const Words first(*cell.first);
    const uint64_t of_cell = first.high >> 56;
    if (of_cell & kHasRest) {
        __builtin_prefetch(cell.second, 1);
        __builtin_prefetch(cell.rest, 1);
        if (joins_crowd(cell, a)) return;
        a.told = false;
        return touch_cell(cell, a);
    }
    const Words second = of_cell & kHasSecond ? Words(*cell.second) : Words();
    const Words who(a.t.id | uint64_t{a.t.time} << 32, a.t.clock.stamp() | uint64_t{a.t.proxied.stamp()} << 32);
    const Words what(a.pc | uint64_t{a.bytes} << 32 | uint64_t{a.flags} << 48 | uint64_t{a.details} << 56,
                     a.own_memory);
    const uint64_t mixed = (first.low + 31 * second.low + what.low) * 0x9e3779b97f4a7c15u;
    Step& step = steps_[mixed >> (64 - kStepBits)];
    if (step.before[0] == first && step.before[1] == second && step.who == who && step.what == what) {
        step.after[0].to(cell.first);
        if (step.after[0].high >> 56 & kHasSecond) step.after[1].to(cell.second);
        return;
    }
    a.told = false;
    touch_cell(cell, a);
    if (a.told || cell.has_rest()) return;
    step = {who, what, {first, second}, {Words(*cell.first), cell.has_second() ? Words(*cell.second) : Words()}};
}

void Checker::Crowd::add(WarpAccesses& w, uint32_t lane, uint32_t time, uint32_t pc) {
    if (!(w.lanes & ~(1u << lane)) && !w.apart) w.time = time;
    if (!w.apart && w.time != time) {
        times.emplace_back().fill(w.time);
        w.apart = static_cast<uint32_t>(times.size());
    }
    if (w.apart) times[w.apart - 1][lane] = time;
    w.lanes |= 1u << lane;
    w.pc = pc;
    known = VectorClock();
}

// Keeps an access outside of the cell, which is full. Returns the crowd that the access has joined, if it has.
Checker::Crowd* Checker::remember(Rest& rest, const Slot& access) {
    if (!rest.more) {
        uint32_t index = static_cast<uint32_t>(more_.size());
        if (free_more_.empty()) {
            more_.emplace_back().slots.reserve(kFewSlots);
        } else {
            index = free_more_.back();
            free_more_.pop_back();
        }
        rest.more = index + 1;
        more_[index].version = ++versions_;
    }
    More& more = more_[rest.more - 1];
    if (more.crowds.empty() && more.slots.size() < kFewSlots) {
        more.slots.push_back(access);
        return nullptr;
    }
    const auto add = [&](const Slot& slot) {
        const auto flags = static_cast<uint8_t>(slot.flags & ~kAgain);
        auto crowd = std::find_if(more.crowds.begin(), more.crowds.end(),
                                  [&](const Crowd& c) { return c.bytes == slot.bytes && c.flags == flags; });
        if (crowd == more.crowds.end()) {
            more.crowds.emplace_back();
            crowd = more.crowds.end() - 1;
            if (!spare_crowds_.empty()) {  // reuse one, whose vectors have grown already
                *crowd = std::move(spare_crowds_.back());
                spare_crowds_.pop_back();
                crowd->warps.clear();
                crowd->times.clear();
            }
            crowd->bytes = slot.bytes;
            crowd->flags = flags;
            crowd->rank = ids_of(slot.id).rank;
        }
        if (crowd->rank != ids_of(slot.id).rank || ids_of(slot.id).nic) crowd->rank = -1;
        crowd->add(crowd->warps[slot.id / kWarpSize], slot.id % kWarpSize, slot.time, slot.pc);
        return &*crowd;
    };
    for (const Slot& slot : more.slots) add(slot);
    more.slots.clear();
    return add(access);
}

void Checker::forget_cells(Cells cells, size_t count) {
    if (more_.size() > free_more_.size())
        for (size_t i = 0; i < count; i++)
            if (const uint32_t beside = cells[i].more()) {
                More& more = more_[beside - 1];
                more.slots.clear();
                more.crowds.clear();
                more.version = 0;
                free_more_.push_back(beside - 1);
            }
    memset(static_cast<void*>(cells.first), 0, count * sizeof(Slot));
}

void Checker::touch_run(Cell cell, uintptr_t end, const Access& first) {
    Access a = first;
    while (a.address < end) {
        const size_t offset = a.address % kGranule, n = std::min<size_t>(kGranule - offset, end - a.address);
        a.bytes = static_cast<uint16_t>(((1u << n) - 1) << offset);
        step(cell, a);
        a.address += n;
        cell.first++;
        cell.second++;
        cell.rest++;
        if (a.address % kPage == 0 && a.address < end) cell = cell_at(a.address);
    }
}

// Marks these bytes of shared memory as written, if this access writes. Returns whether any was written before.
inline bool Checker::any_written_in_shared(size_t offset, size_t size, bool writes) {
    uint16_t any = 0;
    for (const size_t end = offset + size; offset < end;) {
        const size_t first = offset % kGranule, n = std::min<size_t>(kGranule - first, end - offset);
        const auto bytes = static_cast<uint16_t>(((1u << n) - 1) << first);
        uint16_t& written = reinterpret_cast<uint16_t*>(shared_written_)[offset / kGranule];
        any |= written & bytes;
        if (writes) written |= bytes;
        offset += n;
    }
    return any;
}

void Checker::keep(const ThreadCheck& t, uintptr_t address, size_t size, uint8_t flags, uint8_t details) {
    constexpr size_t kRepeats = 16;  // a polling loop would fill the log
    if (accesses.size() >= kept_accesses) return;
    const Ids& ids = ids_of(t.id);
    const int32_t block = ids.nic ? 0 : static_cast<int32_t>(past_of(t.id, t.time).index.x);
    const AccessRecord record = {address,
                                 static_cast<uint32_t>(size),
                                 flags,
                                 ids.rank,  // for a NIC's operation, the poster's
                                 block,
                                 ids.nic ? -1 : static_cast<int32_t>(t.id - ids.first),
                                 (details & kReadsToo) | t.details};
    const bool may_poll = !ids.nic && (!(flags & kWrites) || (details & kReadsToo));
    for (size_t i = accesses.size(); may_poll && i-- && i + kRepeats >= accesses.size();)
        if (!memcmp(&accesses[i], &record, sizeof record)) return;
    accesses.push_back(record);
}

void Checker::touch(const ThreadCheck& t, uintptr_t address, size_t size, uint8_t flags, uintptr_t pc,
                    uint8_t details) {
    if (__builtin_expect(kept_accesses != 0, 0)) keep(t, address, size, flags, details);
    if (__builtin_expect(recorder != nullptr, 0) && t.owner)
        recorder->accessed(t, address, size, flags, details & kReadsToo, pc);
    const uintptr_t in_heaps = address - reinterpret_cast<uintptr_t>(m_.heaps);
    const uintptr_t in_shared = address - reinterpret_cast<uintptr_t>(m_.shared_area);
    const bool heap = in_heaps < m_.heaps_bytes, shared = in_shared < kSharedSlots * kSharedSlotBytes;
    const bool any_written = !shared || any_written_in_shared(in_shared, size, flags & kWrites);
    const size_t first = address % kGranule;
    // A shift by more bits than the type has is undefined: the compiler would conclude that no access is that long.
    const auto bytes = static_cast<uint16_t>((size < kGranule ? (1u << size) - 1 : 0xffffu) << first);
    const Access a = {t, bytes, flags, details, static_cast<uint32_t>(pc), address, !heap && !shared};
    const Cell cell = cell_at(address);
    if (size == kGranule) {
        // Lanes of a warp often take 16 bytes each, four times in a row, and then the next ones.
        constexpr size_t kAhead = 4 * kWarpSize;
        __builtin_prefetch(cell.first + kAhead, 1);
        __builtin_prefetch(reinterpret_cast<const char*>(address) + kAhead * kGranule, 1);
    }
    if (first + size <= kGranule) {
        step(cell, a);
    } else {
        touch_run(cell, address + size, a);
    }
    // One written byte is enough: the padding of a struct is copied, but never written.
    if (!any_written && (!(flags & kWrites) || (details & kReadsToo))) never_written(t, flags, pc, address, size);
}

void Checker::access(Fiber* fiber, uintptr_t address, size_t size, uint8_t flags, uintptr_t pc) {
    if (!size) return;
    fiber->check->last_pc = static_cast<uint32_t>(pc);
    if (__builtin_expect(fiber->check->id == racing_store_.id, 0)) see_value();
    if (!(flags & kWrites)) {
        // The compiler may use the read-only path for this load.
        for (const Range& range : fiber->block->launch->read_only)
            if (address - range.begin < range.end - range.begin) read_only(fiber, address, size, pc);
        read_of_memory(*fiber->check, address, size, flags, pc);
        if (m_.reads_matter) m_.schedule->met(address, size);
    }
    touch(*fiber->check, address, size, flags, pc);
}

// The read-only path caches values while the kernel runs. Data of other kernels may arrive meanwhile, if this kernel
// has not read there before; data that the same kernel writes, here or on another rank, must not be read so.
void Checker::read_only(Fiber* fiber, uintptr_t address, size_t size, uintptr_t pc) {
    if (is_on_stack(fiber, address)) return;
    const ThreadCheck& t = *fiber->check;
    const Launch* launch = fiber->block->launch;
    const VectorClock& start = launches_[launch].start;
    for (const uintptr_t end = address + size; address < end; address = (address / kGranule + 1) * kGranule) {
        const size_t first = address % kGranule, n = std::min<size_t>(kGranule - first, end - address);
        const auto bytes = static_cast<uint16_t>(((1u << n) - 1) << first);
        const Cell cell = cell_at(address);
        const auto look = [&](const Slot& slot) {
            if (!(slot.bytes & bytes) || !(slot.flags & kWrites)) return false;
            if (happens_before(slot.id, slot.time, start)) return false;
            if (slot.id != t.id && !happens_before(slot.id, slot.time, t.clock)) return false;  // a race as well
            const std::string& kernel = ids_of(slot.id).nic ? record_of(slot.id, slot.time)->poster.kernel
                                                            : *past_of(slot.id, slot.time).kernel;
            if (kernel == launch->kernel) read_only_of_written(t, static_cast<uint32_t>(pc), slot, address);
            return false;
        };
        cell.any_slot(look);
        if (!cell.more()) continue;
        const More& more = more_[cell.more() - 1];
        for (const Slot& slot : more.slots) look(slot);
        for (const Crowd& crowd : more.crowds)
            if (crowd.flags & kWrites)
                crowd.for_each([&](const Slot& slot) {
                    look(slot);
                    return true;
                });
    }
}

void Checker::swaps(Fiber* fiber, uintptr_t address, size_t size, uintptr_t pc) {
    if (is_on_stack(fiber, address)) return;
    const uintptr_t in_shared = address - reinterpret_cast<uintptr_t>(m_.shared_area);
    const bool shared = in_shared < kSharedSlots * kSharedSlotBytes;
    const std::pair<uint32_t, uintptr_t> key = {fiber->check->id, address};
    if (shared ? !any_written_in_shared(in_shared, size, true) : is_unwritten(address, size)) {
        unwritten_swaps_[key] = {size, pc};
    } else if (!unwritten_swaps_.empty()) {
        unwritten_swaps_.erase(key);
    }
}

void Checker::found(Fiber* fiber, uintptr_t address) {
    witness.uses(*fiber, address, true);
    if (unwritten_swaps_.empty()) return;
    const auto swap = unwritten_swaps_.find({fiber->check->id, address});
    if (swap == unwritten_swaps_.end()) return;
    const bool shared = address - reinterpret_cast<uintptr_t>(m_.shared_area) < kSharedSlots * kSharedSlotBytes;
    never_written(*fiber->check, kWrites | kAtomic, swap->second.pc, address, swap->second.size, shared);
    unwritten_swaps_.erase(swap);
}

void Checker::polled(uintptr_t address, uintptr_t pc) {
    if (!plain_volatile_) return;
    polled_words_.insert(address / sizeof(uint64_t));
    polled_at_.insert(static_cast<uint32_t>(pc));
}

}  // namespace epemu
