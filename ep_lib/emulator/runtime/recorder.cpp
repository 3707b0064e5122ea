#include "recorder.hpp"

#include <algorithm>

#include "checker.hpp"
#include "machine.hpp"
#include "network.hpp"

namespace epemu {

Recorder* recorder;

namespace {

constexpr size_t kLookBack = 64;  // events searched for one to merge with
constexpr size_t kValueBytes = 8;

bool overlap(const Event& a, const Event& b) {
    return a.address < b.address + b.bytes && b.address < a.address + a.bytes;
}

bool sees_the_same(const Fiber& f, uintptr_t address) {
    const PollSet& polls = *f.polls;
    for (int i = 0; i < polls.num_loads; i++)
        if (polls.loads[i].address == address) return read_raw(address, polls.loads[i].size) == polls.loads[i].value;
    return false;
}

uint32_t index_of(const Fiber& f) { return static_cast<uint32_t>(f.warp - f.block->warps.data()) * kWarpSize + f.lane; }

}  // namespace

bool Recorder::is_full() {
    if (events_.size() < limit_) return false;
    dropped_++;
    return true;
}

// Merges an event with an equal one of a neighbour in this turn: adjacent bytes of an array, or other lanes of the
// warp. Returns whether it did.
bool Recorder::merge(const Event& e) {
    const bool plain = e.kind == EventKind::kAccess && !(e.flags & kAtomic);
    const bool state = e.kind == EventKind::kWait || e.kind == EventKind::kResume || e.kind == EventKind::kEnd;
    if (!(plain && !whole_) && !state) return false;
    const size_t oldest = events_.size() - std::min(events_.size(), kLookBack);
    for (size_t i = events_.size(); i-- > oldest;) {
        Event& old = events_[i];
        if (old.kind == EventKind::kOrdered || old.kind == EventKind::kFinding) return false;
        if (old.turn != e.turn || old.block != e.block || old.thread / kWarpSize != e.thread / kWarpSize) return false;
        const bool same = old.kind == e.kind && old.pc == e.pc && old.flags == e.flags && old.order == e.order;
        if (same && state && old.address == e.address && old.value == e.value) {
            old.lanes |= e.lanes;
            old.thread = std::min(old.thread, e.thread);
            return true;
        }
        const bool behind = old.address + old.bytes == e.address, before = e.address + e.bytes == old.address;
        if (same && plain && (behind || before)) {
            old.address = std::min(old.address, e.address);
            old.bytes += e.bytes;
            old.lanes |= e.lanes;
            old.thread = std::min(old.thread, e.thread);
            if (old.bytes > kValueBytes) old.detail &= static_cast<uint8_t>(~kHasValue);
            latest_ = i + 1;
            return true;
        }
        if (old.kind == EventKind::kAccess) {
            if (state && (old.lanes & e.lanes)) return false;  // keeps a thread's own order
            if (plain && ((old.flags | e.flags) & kWrites) && overlap(old, e)) return false;
            if (old.flags & kAtomic) return false;
        } else if (old.kind != EventKind::kWait && old.kind != EventKind::kResume && old.kind != EventKind::kEnd) {
            return false;
        } else if (old.lanes & e.lanes) {
            return false;
        }
    }
    return false;
}

bool Recorder::add(Event e) {
    read_latest();
    e.turn = static_cast<uint32_t>(m_.picks);
    if (merge(e)) return true;
    if (is_full()) return false;
    events_.push_back(e);
    latest_ = events_.size();
    return true;
}

void Recorder::read_latest() {
    if (!unread_) return;
    Event& e = events_[unread_ - 1];
    unread_ = 0;
    const bool digest = e.bytes > kValueBytes;
    if (digest && !whole_) return;
    const auto* bytes = reinterpret_cast<const uint8_t*>(e.address);
    e.value = 0;
    for (uint32_t i = 0; i < e.bytes; i++)
        e.value = digest ? (e.value ^ bytes[i]) * 0x100000001b3u : e.value | static_cast<uint64_t>(bytes[i]) << 8 * i;
    e.detail |= kHasValue;
}

void Recorder::has_value(uint64_t value) {
    if (!unread_) return;
    Event& e = events_[unread_ - 1];
    unread_ = 0;
    e.value = value;
    e.detail |= kHasValue;
}

Event Recorder::of_thread(EventKind kind, const Fiber& f) const {
    Event e = {};
    e.kind = kind;
    e.rank = static_cast<int16_t>(f.block->launch->rank);
    e.block = static_cast<uint32_t>(f.block->id);
    e.thread = index_of(f);
    e.lanes = 1u << f.lane;
    e.pc = static_cast<uint32_t>(f.pc);
    return e;
}

int Recorder::home_of(uintptr_t address, int rank) const {
    const uintptr_t in_heaps = address - reinterpret_cast<uintptr_t>(m_.heaps);
    return in_heaps < m_.heaps_bytes ? static_cast<int>(in_heaps >> m_.heap_shift) : rank;
}

uint8_t Recorder::text(const char* what) {
    auto at = std::find(texts_.begin(), texts_.end(), what);
    if (at == texts_.end()) at = texts_.insert(at, what);
    return static_cast<uint8_t>(at - texts_.begin());
}

// ---- launches, blocks, threads ------------------------------------------------------------------------------------

void Recorder::launched(const Launch& launch) {
    Event e = {};
    e.kind = EventKind::kLaunch;
    e.rank = static_cast<int16_t>(launch.rank);
    e.value = static_cast<uint64_t>(launch.ticket);
    add(e);
}

void Recorder::admitted(const Block& block) {
    const Launch& launch = *block.launch;
    blocks_.resize(std::max<size_t>(blocks_.size(), block.id + 1));
    blocks_[block.id] = {launch.rank,          launch.ticket, triple(block.index),
                         triple(launch.block), launch.kernel, reinterpret_cast<uintptr_t>(block.shared),
                         block.shared_bytes};
    Event e = {};
    e.kind = EventKind::kAdmit;
    e.rank = static_cast<int16_t>(launch.rank);
    e.block = static_cast<uint32_t>(block.id);
    add(e);
}

void Recorder::finished(const Block& block) {
    Event e = {};
    e.kind = EventKind::kFinish;
    e.rank = static_cast<int16_t>(block.launch->rank);
    e.block = static_cast<uint32_t>(block.id);
    for (const Fiber& f : block.fibers) {
        waiting_.erase(&f);
        looking_.erase(&f);
    }
    add(e);
}

void Recorder::paused(const Fiber& fiber) {
    if (fiber.state == State::kRunnable || fiber.state == State::kPrinting || fiber.state == State::kDone) return;
    const bool polls = fiber.state == State::kPolling;
    if (polls && looking_.erase(&fiber)) {
        waiting_.insert(&fiber);
        return;
    }
    goes_on(fiber);
    Event e = of_thread(EventKind::kWait, fiber);
    e.flags = static_cast<uint8_t>(fiber.state);
    e.order = text(fiber.what);
    if (polls) {
        e.address = fiber.polls->first().address;
        e.value = fiber.polls->first().value;
        e.bytes = fiber.polls->first().size;
    }
    if (add(e)) waiting_.insert(&fiber);
}

void Recorder::resumed(const Fiber& fiber) {
    if (!waiting_.erase(&fiber)) return;
    if (fiber.polls && fiber.polls->num_loads) {
        looking_.insert(&fiber);
    } else {
        add(of_thread(EventKind::kResume, fiber));
    }
}

void Recorder::goes_on(const Fiber& fiber) {
    if (!looking_.empty() && looking_.erase(&fiber)) add(of_thread(EventKind::kResume, fiber));
}

void Recorder::ended(const Fiber& fiber) {
    goes_on(fiber);
    waiting_.erase(&fiber);
    Event e = of_thread(EventKind::kEnd, fiber);
    e.pc = 0;
    add(e);
}

// ---- what threads do ----------------------------------------------------------------------------------------------

void Recorder::accessed(const ThreadCheck& t, uintptr_t address, size_t bytes, uint8_t flags, bool updates,
                        uintptr_t pc) {
    if (!looking_.empty() && looking_.count(current)) {
        if (!(flags & kWrites) && sees_the_same(*current, address)) return;
        goes_on(*current);
    }
    Event e = {};
    e.kind = EventKind::kAccess;
    e.rank = static_cast<int16_t>(t.rank);
    e.block = static_cast<uint32_t>(t.block);
    e.thread = t.id - t.owner->first_id;
    e.lanes = 1u << e.thread % kWarpSize;
    e.address = address;
    e.bytes = static_cast<uint32_t>(bytes);
    e.pc = static_cast<uint32_t>(pc);
    e.flags = flags;
    if (flags & kAtomic) {
        e.order = static_cast<uint8_t>(order_);
        e.scope = static_cast<uint16_t>(scope_);
    }
    if (updates) e.detail = kUpdates;
    if (!add(e)) return;
    event_of_[static_cast<uint64_t>(t.id) << 32 | e.pc] = static_cast<uint32_t>(latest_ - 1);
    unread_ = latest_;  // a load's value is read too: it cannot change before the next event
    const int home = home_of(address, t.rank);
    if (home != t.rank && !(flags & kWrites)) learn(t.clock, home, t.id, address, bytes);
    if (flags & kWrites) written(home, t, address, bytes);
}

void Recorder::written(int rank, const ThreadCheck& t, uintptr_t address, size_t bytes) {
    auto& all = written_[rank];
    const auto event = static_cast<uint32_t>(latest_ - 1);
    if (!all.empty()) {
        Written& last = all.back();
        if (last.event == event && last.id == t.id && last.time == t.time && last.address + last.bytes == address) {
            last.bytes += bytes;
            return;
        }
    }
    all.push_back({event, t.id, t.time, address, bytes});
}

void Recorder::fence(const Fiber& fiber, int order, int scope) {
    goes_on(fiber);
    Event e = of_thread(EventKind::kFence, fiber);
    e.order = static_cast<uint8_t>(order + 1);
    e.scope = static_cast<uint16_t>(scope);
    add(e);
}

void Recorder::barrier(const Block& block) {
    const Fiber* first = nullptr;
    for (const Fiber& f : block.fibers) {
        if (f.state != State::kBarrier) continue;
        if (!first) first = &f;
        goes_on(f);
        waiting_.erase(&f);
    }
    if (first) add(of_thread(EventKind::kBarrier, *first));
}

void Recorder::met(const std::vector<Fiber*>& fibers) {
    for (const Fiber* f : fibers) {
        waiting_.erase(f);
        add(of_thread(EventKind::kNamedBarrier, *f));
    }
}

void Recorder::syncwarp(const Warp& warp, uint32_t mask) {
    Event e = of_thread(EventKind::kSyncwarp, warp.lanes[__builtin_ctz(mask)]);
    e.lanes = mask;
    for (uint32_t rest = mask; rest; rest &= rest - 1) waiting_.erase(&warp.lanes[__builtin_ctz(rest)]);
    add(e);
}

// ---- NICs and hosts -----------------------------------------------------------------------------------------------

void Recorder::posted(const NetOp& op, const Fiber& fiber, uint32_t id) {
    goes_on(fiber);
    Event e = of_thread(EventKind::kPost, fiber);
    e.pc = static_cast<uint32_t>(op.poster.pc);
    e.value = messages_.size();
    e.address = op.from;
    e.bytes = static_cast<uint32_t>(op.bytes);
    message_of_[&op] = static_cast<uint32_t>(messages_.size());
    messages_.push_back({static_cast<int>(op.kind), op.source_rank, op.target_rank, op.queue_pair, op.number, op.bytes,
                         op.signal, op.from, op.to});
    if (add(e)) event_of_[static_cast<uint64_t>(id) << 32 | e.pc] = static_cast<uint32_t>(latest_ - 1);
}

void Recorder::by_nic(EventKind kind, const NetOp& op, uintptr_t address, size_t bytes, const ThreadCheck& t) {
    Event e = {};
    e.kind = kind;
    e.rank = static_cast<int16_t>(op.source_rank);
    e.block = ~0u;
    e.thread = message_of_[&op];
    e.address = address;
    e.bytes = static_cast<uint32_t>(bytes);
    e.pc = static_cast<uint32_t>(op.poster.pc);
    if (!add(e) || kind == EventKind::kComplete) return;
    event_of_[static_cast<uint64_t>(t.id) << 32 | e.pc] = static_cast<uint32_t>(latest_ - 1);
    if (kind == EventKind::kNicRead) return;
    unread_ = latest_;
    written(home_of(address, op.source_rank), t, address, bytes);
}

void Recorder::quiet(const Fiber& fiber, uintptr_t pc) {
    goes_on(fiber);
    Event e = of_thread(EventKind::kQuiet, fiber);
    e.pc = static_cast<uint32_t>(pc);
    add(e);
}

void Recorder::host(EventKind kind, int rank) {
    if (kind == EventKind::kHostMet && !events_.empty() && events_.back().kind == kind) return;
    Event e = {};
    e.kind = kind;
    e.rank = static_cast<int16_t>(rank);
    add(e);
}

// ---- what follows from them ---------------------------------------------------------------------------------------

void Recorder::learned(const VectorClock& clock, int rank, uint32_t self) { learn(clock, rank, self, 0, ~size_t{0}); }

// Adds order events for the writes that touch these bytes.
void Recorder::learn(const VectorClock& clock, int rank, uint32_t self, uintptr_t address, size_t bytes) {
    const auto found = written_.find(rank);
    if (found == written_.end() || events_.empty()) return;
    const auto is_ordered = [&](const Written& w) {
        if (w.address + w.bytes <= address || (w.address > address && w.address - address >= bytes)) return false;
        if (w.id == self || !happens_before(w.id, w.time, clock)) return false;
        Event e = {};
        e.kind = EventKind::kOrdered;
        e.rank = static_cast<int16_t>(rank);
        e.value = w.event;
        e.address = w.address;
        e.bytes = static_cast<uint32_t>(w.bytes);
        if (!is_full()) events_.push_back(e);
        return true;
    };
    auto& all = found->second;
    all.erase(std::remove_if(all.begin(), all.end(), is_ordered), all.end());
}

void Recorder::found(size_t finding, uint32_t first_id, uint32_t first_pc, bool has_first) {
    if (events_.empty() || is_full()) return;
    Event e = {};
    e.kind = EventKind::kFinding;
    e.value = finding;
    const auto first = event_of_.find(static_cast<uint64_t>(first_id) << 32 | first_pc);
    e.address = has_first && first != event_of_.end() ? first->second : ~0ull;
    events_.push_back(e);
}

void Recorder::reported() {
    if (!events_.empty() && events_.back().kind == EventKind::kFinding) events_.back().flags = 1;
}

std::string Recorder::info(const Checker& checker) const {
    const auto number = [](uint64_t n) { return std::to_string(n); };
    std::string out = "{\"heaps\":" + number(reinterpret_cast<uintptr_t>(m_.heaps)) +
                      ",\"stride\":" + number(m_.heap_stride) + ",\"dropped\":" + number(dropped_) + ",\"blocks\":[";
    for (const BlockInfo& b : blocks_) {
        if (out.back() != '[') out += ',';
        if (b.index.empty()) {
            out += "null";
            continue;
        }
        out += "{\"rank\":" + std::to_string(b.rank) + ",\"ticket\":" + std::to_string(b.ticket) +
               ",\"index\":" + b.index + ",\"dim\":" + b.dim + ",\"kernel\":" + quote(b.kernel) +
               ",\"shared\":" + number(b.shared) + ",\"shared_bytes\":" + number(b.shared_bytes) + "}";
    }
    out += "],\"messages\":[";
    for (const Message& m : messages_) {
        if (out.back() != '[') out += ',';
        out += "{\"kind\":" + std::to_string(m.kind) + ",\"source\":" + std::to_string(m.source) +
               ",\"target\":" + std::to_string(m.target) + ",\"queue_pair\":" + std::to_string(m.queue_pair) +
               ",\"number\":" + number(m.number) + ",\"bytes\":" + number(m.bytes) + ",\"signal\":" + number(m.signal) +
               ",\"from\":" + number(m.from) + ",\"to\":" + number(m.to) + "}";
    }
    out += "],\"texts\":[";
    for (const char* text : texts_) out += std::string(out.back() == '[' ? "" : ",") + quote(text);
    out += "],\"places\":{";
    std::unordered_set<uint32_t> told;
    for (const Event& e : events_) {
        if (!e.pc || !told.insert(e.pc).second) continue;
        if (out.back() != '{') out += ',';
        out += "\"" + std::to_string(e.pc) + "\":" + checker.spot(e.pc);
    }
    return out + "}}";
}

}  // namespace epemu
