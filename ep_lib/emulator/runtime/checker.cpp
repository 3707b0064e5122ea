// What the checker watches: ids of threads and blocks, launches and hosts, memory accesses, the order of threads, and
// operations of NICs. checker_findings.cpp classifies and reports conflicts.
#include <algorithm>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <utility>

#include "checker.hpp"
#include "network.hpp"
#include "recorder.hpp"

namespace epemu {

Checker* checker;

namespace {

constexpr size_t kGranule = 16, kPage = 4096, kCachedPages = 1024;
constexpr size_t kFewSlots = 6;     // beside a granule; more are kept by thread
constexpr size_t kRacesAtOnce = 4;  // races of one access with a crowd that are examined
constexpr size_t kLocations = 16;   // a thread remembers its releases and acquires at so many
constexpr size_t kPublishers = 16;  // of a location that are distinguished by block
constexpr uint64_t kManyBlocks = ~0ull, kNoBlock = ~1ull;
constexpr uint32_t kIdChunk = 32;

template <class T>
T* reserve(size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? nullptr : static_cast<T*>(memory);
}

}  // namespace

Checker::Checker(Machine& m, bool plain_volatile)
    : m_(m), plain_volatile_(plain_volatile), page_cache_(kCachedPages), ranks_(m.num_ranks), free_ops_(m.num_ranks) {
    heap_granules_ = m.heaps_bytes / kGranule;
    shared_granules_ = kSharedSlots * kSharedSlotBytes / kGranule;
    shared_written_bytes_ = kSharedSlots * kSharedSlotBytes / 8;
    heap_cells_ = reserve_cells(heap_granules_);
    shared_cells_ = reserve_cells(shared_granules_);
    shared_written_ = reserve<uint8_t>(shared_written_bytes_);
    const auto lack = [](const Cells& cells) { return !cells.first || !cells.second || !cells.rest; };
    if (lack(heap_cells_) || lack(shared_cells_) || !shared_written_) {
        give_back();
        throw std::bad_alloc();
    }
}

Checker::~Checker() {
    for (auto& op : m_.network->in_flight) delete static_cast<OpCheck*>(op->check);
    for (auto& [fiber, groups] : m_.network->copies.late)
        for (auto& group : groups)
            for (auto& op : group.copies) delete static_cast<OpCheck*>(op->check);
    give_back();
    for (auto& page : pages_) free(page.second.first);
}

Checker::Cells Checker::reserve_cells(size_t granules) {
    return {reserve<Slot>(granules * sizeof(Slot)), reserve<Slot>(granules * sizeof(Slot)),
            reserve<Rest>(granules * sizeof(Rest))};
}

// Cells of a large array lie in huge pages: scattered accesses would miss the TLB otherwise.
void Checker::has_arrays(int rank, const std::vector<Range>& arrays) {
    forget_histories();  // memory may serve other arrays from now on
    constexpr size_t kLarge = 4 << 20;
    for (const Range& array : arrays) {
        if (array.end - array.begin < kLarge) continue;
        const size_t begin = rank * m_.heap_stride + (array.begin & ~(kPage - 1)), bytes = array.end - array.begin;
        for (Slot* slots : {heap_cells_.first, heap_cells_.second})
            madvise(slots + begin / kGranule, bytes, MADV_HUGEPAGE);
    }
}

void Checker::give_back() {
    for (const auto& [cells, granules] : {std::pair(heap_cells_, heap_granules_), {shared_cells_, shared_granules_}}) {
        if (cells.first) munmap(cells.first, granules * sizeof(Slot));
        if (cells.second) munmap(cells.second, granules * sizeof(Slot));
        if (cells.rest) munmap(cells.rest, granules * sizeof(Rest));
    }
    if (shared_written_) munmap(shared_written_, shared_written_bytes_);
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
    publish_host(ranks_[launch->rank]);
    l.start = ranks_[launch->rank].host;
    l.kernel = std::make_shared<const std::string>(launch->kernel);
    if (m_.recorder) m_.recorder->launched(*launch);
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
    ids.past.push_back({ids.next_time, launch->rank, block->id, block->index, launch->block, l.kernel, launch->ticket});

    block->check = std::make_shared<BlockCheck>();
    BlockCheck& check = *block->check;
    check.first_id = ids.first;
    check.threads.resize(block->num_threads);
    for (int t = 0; t < block->num_threads; t++) {
        ThreadCheck& thread = check.threads[t];
        thread.clock = thread.proxied = l.start;
        thread.id = ids.first + t;
        thread.time = ids.next_time;
        thread.rank = launch->rank;
        thread.block = block->id;
        thread.owner = &check;
        block->fibers[t].check = &thread;
    }
    const size_t shared = block->shared - m_.shared_area;
    const size_t granules = (block->shared_bytes + kGranule - 1) / kGranule;
    const size_t first = shared / kGranule;
    forget_cells({shared_cells_.first + first, shared_cells_.second + first, shared_cells_.rest + first}, granules);
    memset(shared_written_ + shared / 8, 0, granules * kGranule / 8);
    if (recorder) {
        recorder->admitted(*block);
        recorder->learned(l.start, launch->rank);
    }
}

void Checker::finished(Block* block, bool last_of_launch) {
    if (recorder) recorder->finished(*block);
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
    witness.finished(block->id);
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
    const bool waited = !r.ended.empty() && r.ended.front().first <= ticket;
    while (!r.ended.empty() && r.ended.front().first <= ticket) {
        r.host.join(r.ended.front().second);
        r.ended.pop_front();
    }
    if (!m_.recorder || !waited) return;
    m_.recorder->host(EventKind::kHostWaited, rank);
    m_.recorder->learned(r.host, rank);
}

void Checker::publish_host(RankCheck& rank) {
    if (rank.host_time) rank.host.raise(rank.host_id, rank.host_time++);
}

void Checker::host_access(int rank, uintptr_t address, size_t size, bool writes, const std::string& where) {
    RankCheck& r = ranks_[rank];
    if (!r.host_time) {
        Ids& ids = ids_[new_ids(rank, kIdChunk, false)];
        ids.host = true;
        ids.past.push_back({0, rank, kNoBlock, {}, {1, 1, 1}, std::make_shared<const std::string>(), 0});
        r.host_id = ids.first;
        r.host_time = 1;
    }
    auto place = std::find(host_places_.begin(), host_places_.end(), where);
    if (place == host_places_.end()) place = host_places_.insert(place, where);
    ThreadCheck host = {};
    host.clock = r.host;
    host.id = r.host_id;
    host.time = r.host_time;
    host.rank = rank;
    host.block = kNoBlock;
    touch(host, address, size, writes ? kWrites : 0, static_cast<uintptr_t>(place - host_places_.begin()));
}

void Checker::host_met() {
    forget_histories();
    VectorClock all;
    for (RankCheck& r : ranks_) {
        publish_host(r);
        all.join(r.host);
    }
    for (RankCheck& r : ranks_) r.host = all;
    if (!m_.recorder) return;
    m_.recorder->host(EventKind::kHostMet, -1);
    for (int rank = 0; rank < m_.num_ranks; rank++) m_.recorder->learned(all, rank);
}

// ---- accesses -----------------------------------------------------------------------------------------------------

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

inline Checker::Cell Checker::cell_at(uintptr_t address) {
    const uintptr_t in_heaps = address - reinterpret_cast<uintptr_t>(m_.heaps);
    if (in_heaps < m_.heaps_bytes) return heap_cells_[in_heaps / kGranule];
    const uintptr_t in_shared = address - reinterpret_cast<uintptr_t>(m_.shared_area);
    if (in_shared < kSharedSlots * kSharedSlotBytes) return shared_cells_[in_shared / kGranule];
    return cells_of_page(address / kPage)[address % kPage / kGranule];
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
        const WarpAccesses* mine = crowd.find(a.t.id / kWarpSize);
        const uint32_t lane = a.t.id % kWarpSize;
        if (mine && (mine->lanes >> lane & 1) && mine->time[lane] == a.t.time) return Fate::kSame;
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
        for (const WarpAccesses& w : crowd.warps) {
            const uint32_t mine = w.warp == a.t.id / kWarpSize ? 1u << a.t.id % kWarpSize : 0;
            if (!a.t.clock.has_all(w.warp * kWarpSize, w.lanes & ~mine, w.time)) all = false;
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
                spare_warps_.push_back(std::move(more.crowds.back().warps));
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
    WarpAccesses& mine = crowd.warps[j.place];
    if ((mine.lanes >> lane & 1) && mine.time[lane] == a.t.time) return true;
    mine.lanes |= 1u << lane;
    mine.time[lane] = a.t.time;
    mine.pc = a.pc;
    crowd.known = VectorClock();
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
    const auto place = static_cast<size_t>(crowd->find(a.t.id / kWarpSize) - crowd->warps.data());
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

Checker::WarpAccesses* Checker::Crowd::find(uint32_t warp) {
    if (place.empty()) {
        for (WarpAccesses& w : warps)
            if (w.warp == warp) return &w;
        return nullptr;
    }
    const auto found = place.find(warp);
    return found == place.end() ? nullptr : &warps[found->second];
}

void Checker::Crowd::add(const Slot& slot) {
    constexpr size_t kFewWarps = 8;
    const uint32_t warp = slot.id / kWarpSize, lane = slot.id % kWarpSize;
    WarpAccesses* accesses = find(warp);
    if (!accesses) {
        warps.push_back({warp, 0, 0, {}});
        accesses = &warps.back();
        if (warps.size() == kFewWarps)
            for (size_t i = 0; i < warps.size(); i++) place[warps[i].warp] = static_cast<uint32_t>(i);
        if (warps.size() > kFewWarps) place[warp] = static_cast<uint32_t>(warps.size() - 1);
    }
    accesses->lanes |= 1u << lane;
    accesses->time[lane] = slot.time;
    accesses->pc = slot.pc;
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
            more.crowds.push_back({slot.bytes, flags, ids_of(slot.id).rank, {}, {}, {}});
            crowd = more.crowds.end() - 1;
            if (!spare_warps_.empty()) {
                crowd->warps = std::move(spare_warps_.back());
                crowd->warps.clear();
                spare_warps_.pop_back();
            }
        }
        if (crowd->rank != ids_of(slot.id).rank || ids_of(slot.id).nic) crowd->rank = -1;
        crowd->add(slot);
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
                                 ids.rank,  // of a NIC: who posted it
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

// ---- what orders threads: releases and acquires, fences, barriers of blocks and warps -----------------------------

namespace {

bool acquires(int order) { return order == EPEMU_ACQUIRE || order == EPEMU_ACQ_REL || order == EPEMU_SEQ_CST; }
bool releases(int order) { return order == EPEMU_RELEASE || order == EPEMU_ACQ_REL || order == EPEMU_SEQ_CST; }
uint8_t atomic_flags(int order, int scope, bool writes) {
    return static_cast<uint8_t>(kAtomic | (writes ? kWrites : 0) | (order == EPEMU_VOLATILE ? kVolatile : 0) |
                                scope << kScopeShift);
}

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
    std::vector<Observed>& all = l.observed_by[t.id];
    if (!all.empty() && all.back().to == w.number) return;
    if (all.size() == kKept) all.erase(all.begin());
    all.push_back({w.chain, w.number, t.time});
}

// Whether a strong read before this access has observed the other access, a strong write to the same place. The read is
// in this thread or happens before this access.
bool Checker::has_observed(const Access& a, const Slot& slot) const {
    if ((slot.flags & (kWrites | kAtomic)) != (kWrites | kAtomic)) return false;
    if (plain_volatile_ && (a.flags & slot.flags & kVolatile)) return false;
    const auto granule = locations_.find(a.address / kGranule);
    if (granule == locations_.end()) return false;
    for (const Location& l : granule->second) {
        if (slot.bytes != static_cast<uint16_t>(((1u << l.size) - 1) << l.address % kGranule)) continue;
        const auto last = l.last_write.find(slot.id);
        if (last == l.last_write.end()) continue;
        for (const auto& [id, all] : l.observed_by)
            for (const Observed& seen : all) {
                if (last->second < seen.from || last->second > seen.to) continue;
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
    w.number = l.last_write[t.id] = newest ? ++l.writes : kBehind + ++l.behind;
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
    witness.store(*fiber, address, size, order, scope, static_cast<uint32_t>(pc));
    Write behind;
    Write& w = newest ? l : behind;
    w.published.clear();
    w.any_release = false;
    release_into(w, l, t, order, scope);
    wrote_atomically(l, w, t, scope, t.rank, static_cast<uint32_t>(pc), false);
    if (weak) written(l, w, place, value, t, time, false);
    t.time++;  // for the words of findings: what comes before it, and what behind
    if (recorder && !newest && value != &kLater) recorder->has_value(*value);
    return newest;
}

// The read of a read-modify-write that uses the old value.
void Checker::needs_value(Fiber* fiber, uintptr_t address, int size, int scope, uintptr_t pc) {
    if (is_on_stack(fiber, address)) return;
    read_of_memory(*fiber->check, address, static_cast<size_t>(size), atomic_flags(EPEMU_RELAXED, scope, true), pc);
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

// A read-modify-write: the writes that it observes stay published with it.
void Checker::update(Fiber* fiber, uintptr_t address, uint64_t now, int size, int order, int scope, uintptr_t pc,
                     const Behind* behind) {
    if (is_on_stack(fiber, address)) return;
    machine->schedule->touched(address, static_cast<size_t>(size), Touch::kWrite);
    ThreadCheck& t = *fiber->check;
    if (recorder) recorder->next_atomic(order, scope);
    if (weak && order == EPEMU_SEQ_CST) order_by_fence(t, order, scope);  // as PTX has it
    witness.update(*fiber, address, size, order, scope, static_cast<uint32_t>(pc));
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

// ---- operations of NICs, as threads of their own ------------------------------------------------------------------
//
// Each begins with the clock of its poster. When it writes, its clock has joined the operations that its fabric orders
// before it: on rc all earlier ones of its queue pair, on any fabric those before a fence.
namespace {

constexpr uint32_t kOpIds = 256;  // reserved at once; an id rests while others are used, so that races stay visible

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

    if (op.signal) witness.posted(*poster, op.signal, static_cast<uint32_t>(pc));
    auto* check = new OpCheck;
    op.check = check;
    check->reader.clock = publish(*poster->check).clock;
    check->reader.proxied = poster->check->proxied;
    check->reader.id = id;
    check->reader.time = time;
    check->reader.rank = -1;  // outside of all ranks' scopes but the system's
    check->reader.block = kNoBlock;
    check->reader.owner = nullptr;
    check->writer = check->reader;
    VectorClock& known = check->writer.clock;
    known.join(link(fences_, op.source_rank, op.target_rank, op.queue_pair));
    known.join(link(fences_, op.source_rank, op.target_rank, -1));
    // A queue pair of rc keeps the order, except that a get may read late: later operations may already have written.
    const bool gets = op.kind == NetKind::kGet;
    VectorClock& in_order = link(gets ? read_ : written_, op.source_rank, op.target_rank, op.queue_pair);
    if (m_.network->settings.kind != Fabric::kSrd) {
        known.join(link(written_, op.source_rank, op.target_rank, op.queue_pair));
        known.join(in_order);
    }
    in_order.join(known);
    in_order.raise(id, time);
    VectorClock& earlier = link(posted_, op.source_rank, op.target_rank, op.queue_pair);
    earlier.join(known);
    earlier.raise(id, time);

    check->record = records_.size();
    record_by_op_[static_cast<uint64_t>(id) << 32 | time] = records_.size();
    records_.push_back({op.number, op.kind, op.signal != 0, op.bytes != 0, op.source_rank, op.target_rank,
                        op.queue_pair, op.bytes, op.poster, id, time,
                        op.poster.check_id ? op.poster.check_id : poster->check->id,
                        op.poster.check_id ? op.poster.check_time : poster->check->time - 1, 0, 0, 0, m_.picks});
    if (op.bytes) read_of_memory(check->reader, op.from, op.bytes, 0, pc);
    if (recorder) {
        recorder->posted(op, *poster, id);
        recorder->learned(check->reader.clock, op.source_rank);
    }
    if (op.bytes) touch(check->reader, op.from, op.bytes, 0, pc);
}

void Checker::net_read(NetOp& op, uintptr_t address, size_t bytes) {
    if (recorder) recorder->by_nic(EventKind::kNicRead, op, address, bytes, check_of(op).reader);
    Record& r = records_[check_of(op).record];
    if (!r.first_read) r.first_read = m_.picks;
    r.last_read = m_.picks;
}

void Checker::net_wrote(NetOp& op, uintptr_t address, size_t bytes) {
    Record& r = records_[check_of(op).record];
    if (!r.first_write) r.first_write = m_.picks;
    r.delivered = m_.picks;
    if (recorder) recorder->by_nic(EventKind::kNicWrite, op, address, bytes, check_of(op).writer);
    touch(check_of(op).writer, address, bytes, kWrites, op.poster.pc);
}

// This operation, and everything before it, happens before the code behind an acquire of the signal.
void Checker::net_signalled(NetOp& op, uint64_t now) {
    ThreadCheck& t = check_of(op).writer;
    records_[check_of(op).record].delivered = m_.picks;
    const bool adds = op.signal_op == EPEMU_SIGNAL_ADD;
    const auto pc = static_cast<uint32_t>(op.poster.pc);
    witness.nic_stored(t, op.source_rank, op.signal, pc);
    if (recorder) recorder->by_nic(EventKind::kNicSignal, op, op.signal, static_cast<size_t>(op.value_bytes), t);
    Location& l = location(t, op.signal, op.value_bytes);
    const size_t place = weak ? make_newest(l) : 0;
    touch(t, op.signal, op.value_bytes, system_atomic(adds && m_.network->settings.stages_atomics()), op.poster.pc,
          adds ? kReadsToo : 0);
    if (!adds || !observes(l, t, EPEMU_SCOPE_SYSTEM)) l.published.clear();
    Known known = {t.clock, t.proxied};
    known.clock.raise(t.id, t.time);
    contribute(l, t, std::move(known), EPEMU_SCOPE_SYSTEM);
    wrote_atomically(l, l, t, EPEMU_SCOPE_SYSTEM, op.source_rank, pc, adds);
    if (weak) written(l, l, place, &now, t, t.time, adds);
}

void Checker::net_completed(NetOp& op) {
    OpCheck* check = &check_of(op);
    if (recorder) recorder->by_nic(EventKind::kComplete, op, 0, 0, check->writer);
    records_[check->record].completed = m_.picks;
    free_ops_[op.source_rank].emplace_back(check->reader.id, check->reader.time + 1);
    delete check;
    op.check = nullptr;
}

// ---- bulk copies --------------------------------------------------------------------------------------------------

void Checker::copy_posted(NetOp& op, Fiber* poster, BulkCheck* check) {
    auto* threads = new OpCheck;
    op.check = threads;
    const bool first = !check->time;
    if (first) {
        auto& free = free_ops_[op.source_rank];
        if (free.size() < kOpIds / 2) {
            const Ids& ids = ids_[new_ids(op.source_rank, kOpIds, true)];
            for (uint32_t i = 0; i < kOpIds; i++) free.emplace_back(ids.first + i, 1);
        }
        check->id = free.front().first;
        check->time = free.front().second;
        check->rank = op.source_rank;
        free.pop_front();
    }
    ThreadCheck& reader = threads->reader;
    reader.clock = publish(*poster->check).clock;
    reader.proxied = poster->check->proxied;
    reader.id = check->id;
    reader.time = check->time;
    reader.rank = -1;
    reader.block = kNoBlock;
    reader.owner = nullptr;
    threads->writer = reader;
    threads->writer.time++;
    if (first) {
        for (const uint32_t time : {reader.time, reader.time + 1})
            record_by_op_[static_cast<uint64_t>(reader.id) << 32 | time] = records_.size();
        records_.push_back({op.number, op.kind, false, true, op.source_rank, op.target_rank, 0, op.bytes, op.poster,
                            reader.id, reader.time, poster->check->id, poster->check->time - 1, 0, op.to, op.to,
                            m_.picks});
    }
    threads->record = record_by_op_[static_cast<uint64_t>(reader.id) << 32 | reader.time];
    Record& record = records_[threads->record];
    record.call = op.kind != NetKind::kBulkStore ? 0 : poster->check->stores_called;
    record.to_begin = std::min(record.to_begin, op.to);
    record.to_end = std::max(record.to_end, op.to + op.bytes);
    if (recorder) {
        recorder->posted(op, *poster, check->id);
        recorder->learned(reader.clock, op.source_rank);
    }
    if (op.kind != NetKind::kAsyncCopy) {
        touch(reader, op.from, op.bytes, 0, op.poster.pc, kAsync);
        return;
    }
    // The copy uses the generic proxy. Its write comes last, but counts from now on: later conflicting accesses are
    // still to come.
    if (op.copy->source_bytes) touch(reader, op.from, op.copy->source_bytes, 0, op.poster.pc);
    touch(threads->writer, op.to, op.bytes, kWrites, op.poster.pc);
}

void Checker::store_called(Fiber* fiber) {
    ThreadCheck& t = *fiber->check;
    t.called_at[++t.stores_called % std::size(t.called_at)] = ++t.time;
}

void Checker::copy_read(const NetOp& op) {
    const OpCheck& check = *static_cast<OpCheck*>(op.check);
    if (recorder) recorder->by_nic(EventKind::kNicRead, op, op.from, op.bytes, check.reader);
    Record& r = records_[check.record];
    if (!r.first_read) r.first_read = m_.picks;
    r.last_read = m_.picks;
}

void Checker::copy_wrote(NetOp& op) {
    Record& r = records_[check_of(op).record];
    if (!r.first_write) r.first_write = m_.picks;
    r.delivered = r.completed = m_.picks;
    if (recorder) {
        recorder->by_nic(EventKind::kNicWrite, op, op.to, op.bytes, check_of(op).writer);
        recorder->by_nic(EventKind::kComplete, op, 0, 0, check_of(op).writer);
    }
    if (op.kind != NetKind::kAsyncCopy) touch(check_of(op).writer, op.to, op.bytes, kWrites, op.poster.pc, kAsync);
    delete &check_of(op);
    op.check = nullptr;
}

// The barrier itself is a shared object with atomic accesses.
Known Checker::barrier_arrived(Fiber* fiber, uintptr_t barrier, uintptr_t pc) {
    touch(*fiber->check, barrier, sizeof(uint64_t), atomic_flags(EPEMU_RELEASE, EPEMU_SCOPE_BLOCK, true), pc,
          kReadsToo);
    return publish(*fiber->check);
}

// `again`: this thread has waited for this round before.
void Checker::barrier_waited(Fiber* fiber, uintptr_t barrier, const Known& complete, bool again, uintptr_t pc) {
    join(*fiber->check, complete);
    fiber->check->asked_again_pc = again ? static_cast<uint32_t>(pc) : 0;
    fiber->check->waited_pc = static_cast<uint32_t>(pc);
    if (fiber->lane == 0)  // lane 0 arrives for all lanes
        touch(*fiber->check, barrier, sizeof(uint64_t), atomic_flags(EPEMU_ACQUIRE, EPEMU_SCOPE_BLOCK, false), pc);
    if (recorder) recorder->learned(fiber->check->clock, fiber->check->rank, fiber->check->id);
}

void Checker::copies_complete(const BulkCheck& check, bool written, Known* known) {
    if (check.time) known->clock.raise(check.id, check.time + written);
}

void Checker::copies_awaited(Fiber* fiber, const BulkCheck& check, bool written) {
    if (check.time) fiber->check->clock.raise(check.id, check.time + written);
    if (recorder) recorder->learned(fiber->check->clock, fiber->check->rank, fiber->check->id);
}

void Checker::copies_forgotten(const BulkCheck& check) {
    if (check.time) free_ops_[check.rank].emplace_back(check.id, check.time + 2);
}

void Checker::copies_end_with_block(const BulkCheck& check, const Block* block, bool read_awaited) {
    if (!check.time) return;
    launches_[block->launch].end.raise(check.id, check.time + 1);
    if (read_awaited) return;
    const Record& r = *record_of(check.id, check.time);
    const Side side = {check.id, check.time, static_cast<uint32_t>(r.poster.pc), 0};
    Finding& finding = note(side, side);
    finding.where = "shared memory of rank " + std::to_string(r.source) + " block " + triple(block->index);
    finding.verdict.kind = "source reused";
    finding.verdict.remedy = "tma_wait_read<0> before the block ends: its shared memory goes to another block";
    finding.verdict.certainty = 22;
}

void Checker::rounds_end_with_block(const Known& complete, const Block* block) {
    launches_[block->launch].end.join(complete.clock);
}

void Checker::copy_outlives(const NetOp& op, const Block* block) {
    if (op.kind != NetKind::kBulkLoad) return;  // a store may continue after its read
    const BulkCheck& check = op.copy->check;
    const Side side = {check.id, check.time + 1, static_cast<uint32_t>(op.poster.pc), kWrites};
    Finding& finding = note(side, side);
    finding.where = describe_address(m_, op.to);
    finding.verdict.kind = "read before arrival";
    finding.verdict.remedy = "tma_wait before the block ends: its shared memory goes to another block";
    finding.verdict.certainty = 22;
    judge_phase(*op.copy->fiber->check, &finding.verdict);
    launches_[block->launch].end.raise(check.id, check.time + 1);
}

void Checker::polled(uintptr_t address, uintptr_t pc) {
    if (!plain_volatile_) return;
    polled_words_.insert(address / sizeof(uint64_t));
    polled_at_.insert(static_cast<uint32_t>(pc));
}

// Later bulk copies see everything before this fence.
void Checker::proxy_fence(Fiber* fiber) {
    ThreadCheck& t = *fiber->check;
    t.proxied = t.clock;
    t.proxied_time = t.time++;
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
    if (!recorder) return;
    recorder->quiet(*fiber, pc);
    recorder->learned(fiber->check->clock, fiber->check->rank, fiber->check->id);
}

}  // namespace epemu
