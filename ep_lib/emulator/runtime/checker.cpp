// The checker's memory, ids of threads and blocks, launches and hosts. What it watches is in checker_accesses.cpp,
// checker_order.cpp, checker_nic.cpp and checker_copies.cpp; checker_findings.cpp notes and reports conflicts.
#include <algorithm>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "checker.hpp"
#include "network.hpp"
#include "recorder.hpp"

namespace epemu {

Checker* checker;

namespace {

constexpr uint32_t kOpIds = 256;  // reserved at once; an id rests while others are used, so that races stay visible

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

// An id for an operation of a NIC or for copies that end together, and its first time.
std::pair<uint32_t, uint32_t> Checker::new_op(int rank) {
    auto& free = free_ops_[rank];
    if (free.size() < kOpIds / 2) {
        const Ids& ids = ids_[new_ids(rank, kOpIds, true)];
        for (uint32_t i = 0; i < kOpIds; i++) free.emplace_back(ids.first + i, 1);
    }
    const auto op = free.front();
    free.pop_front();
    return op;
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
    if (racing_store_.id - block->check->first_id < block->check->threads.size()) see_value();
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

}  // namespace epemu
