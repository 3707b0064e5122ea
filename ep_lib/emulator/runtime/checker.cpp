// Ids of threads and blocks, launches and hosts, and the memory of accesses. What orders threads is in checker_sync.cpp,
// what NICs do in checker_network.cpp, what a conflict means in checker_verdicts.cpp, and how it is told in
// checker_findings.cpp.
#include "checker.hpp"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>

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

// ---- ids, launches, the host ---------------------------------------------------------------------------------------

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
        thread.known = l.start;
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
    const Clock* previous = nullptr;
    for (ThreadCheck& t : block->check->threads) {
        if (!previous || !t.known.same(*previous)) l.end.join(t.known);
        previous = &t.known;
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
    Clock all;
    for (RankCheck& r : ranks_) all.join(r.host);
    for (const auto& link : posted_) all.join(link.second);  // the network is drained where all hosts meet
    for (RankCheck& r : ranks_) r.host = all;
}

// ---- accesses ------------------------------------------------------------------------------------------------------

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
        if (t.known.get(slot.id) >= slot.time) {
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

}  // namespace epemu
