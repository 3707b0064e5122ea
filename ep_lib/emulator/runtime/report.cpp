// Reports as JSON for Python, which adds file names and source lines.
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

#include "checker.hpp"
#include "machine.hpp"
#include "fault_injection.hpp"

namespace epemu {

std::string quote(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            char escaped[8];
            snprintf(escaped, sizeof escaped, "\\u%04x", c);
            out += escaped;
        } else {
            out += c;
        }
    }
    return out + '"';
}

std::string triple(const epemu_dim3& d) {
    return '[' + std::to_string(d.x) + ',' + std::to_string(d.y) + ',' + std::to_string(d.z) + ']';
}

// A place in a kernel: its library and the offset in it, which addr2line understands.
std::string place(const Fiber& f, uintptr_t pc) {
    const Image* image = f.block->launch->image;
    return "\"image\":" + quote(image->path) +
           ",\"offset\":" + std::to_string(image->contains(pc, false) ? pc - 1 - image->base : 0);
}

std::string* Machine::other_value(const Fiber* f, uintptr_t pc, const char* kind) {
    const auto [it, added] =
        other_values.try_emplace(pc, OtherValue{kind, place(*f, pc), f->block->launch->kernel, ""});
    return added ? &it->second.text : nullptr;
}

std::string thread(const Fiber& f) {
    const Launch* launch = f.block->launch;
    return "\"rank\":" + std::to_string(launch->rank) + ",\"block\":" + triple(f.block->index) +
           ",\"thread\":" + triple(f.thread) + ",\"kernel\":" + quote(launch->kernel);
}

namespace {

std::string hex(uint64_t value) {
    char text[20];
    snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
    return text;
}

std::string waits_in(const Machine& m, const Fiber& f) {
    if (has_stopped(m, f.block->launch->rank)) return "(stopped, as the fabric's stopped_ranks says)";
    switch (f.state) {
        case State::kRunnable: return f.stack ? "(still running)" : "(not started)";
        case State::kPolling: {
            std::string text = f.what;
            const int first = f.polls->begins();
            for (int i = first; i < f.polls->num_loads; i++) {
                const auto& load = f.polls->loads[i];
                text += (i > first ? ", " : " on ") + describe_address(m, load.address, f.block->launch) + " (sees " +
                        std::to_string(load.value) + ")";
            }
            return text;
        }
        case State::kWarp: {
            uint32_t arrived = 0;  // at the same operation
            for (const Fiber& g : f.block->fibers)
                if (g.warp == f.warp && g.state == State::kWarp && g.op == f.op && g.mask == f.mask)
                    arrived |= 1u << g.lane;
            return std::string(f.what) + " (mask " + hex(f.mask) + ", arrived " + hex(arrived) + ", exited " +
                   hex(f.warp->exited) + ")";
        }
        case State::kNetwork: return describe_pending(m, f);
        case State::kNamed: return std::string(f.what) + " (other threads of the block have not come)";
        case State::kBarrier:
            return std::string(f.what) + " (" + std::to_string(f.block->arrived) + " of " +
                   std::to_string(f.block->live) + " threads arrived)";
        default: return f.what;
    }
}

// Threads of one rank that wait alike are one entry: the first thread and their number.
struct Group {
    const Fiber* first;
    size_t count;
};
using Key = std::tuple<int, uint64_t, uintptr_t, uintptr_t, int>;

Key group_of(const Machine& m, const Fiber& f) {
    const int rank = f.block->launch->rank;
    const bool polls = f.state == State::kPolling && !has_stopped(m, rank);
    return {rank, polls ? f.polls->first().address : 0, f.pc, polls ? f.polls->caller : 0, static_cast<int>(f.state)};
}

// The known threads that this one waits for: of the same barrier or mask, or the holder of the lock.
std::vector<const Fiber*> waits_for(const Machine& m, const Fiber& f) {
    std::vector<const Fiber*> others;
    if (f.state == State::kNamed) {
        for (const Fiber& g : f.block->fibers)
            if (g.state != State::kDone && g.state != State::kNamed) others.push_back(&g);
    } else if (f.state == State::kBarrier) {
        for (const Fiber& g : f.block->fibers)
            if (g.state != State::kDone && g.state != State::kBarrier) others.push_back(&g);
    } else if (f.state == State::kWarp) {
        for (int lane = 0; lane < f.warp->num_lanes; lane++) {
            const Fiber& g = f.warp->lanes[lane];
            const bool here = g.state == State::kWarp && g.mask == f.mask && g.op == f.op;
            if ((f.mask >> lane & 1) && g.state != State::kDone && !here) others.push_back(&g);
        }
    } else if (f.state == State::kPolling && m.checker) {
        if (const SyncStore* taken = m.checker->witness.holder(f.polls->first().address))
            for (const auto& block : m.resident)
                for (const Fiber& g : block->fibers)
                    if (block->id == taken->block && g.state != State::kDone && g.check && g.check->id == taken->id)
                        others.push_back(&g);
    }
    return others;
}

// Facts about the location that a thread polls: the holder if it is a lock, the last store, the earlier value.
std::string polled(const Machine& m, const Fiber& f) {
    if (f.state != State::kPolling || !m.checker) return "null";
    const auto& load = f.polls->first();
    const uintptr_t address = load.address;
    const Witness& witness = m.checker->witness;
    const SyncStore *holder = witness.holder(address), *last = witness.last_store(address);
    std::string out = "{\"sees\":" + std::to_string(load.value) +
                      ",\"holder\":" + (holder ? m.checker->who_stored(*holder) : "null") +
                      ",\"taken_for\":" + m.checker->spot(holder ? holder->caller : 0) +
                      ",\"last\":" + (last ? m.checker->who_stored(*last) : "null") +
                      ",\"nobody\":" + (last ? "false" : "true") + ",\"old\":[";
    bool first = true;
    for (const OldValue& old : witness.old_values(address)) {
        out += std::string(first ? "" : ",") + "{\"value\":" + std::to_string(old.value) +
               ",\"at\":" + m.checker->spot(old.pc) + "}";
        first = false;
    }
    const Lost lost = witness.lost(address, load.size);
    out += "],\"lost\":";
    if (!lost.over.pc) return out + "null}";
    return out + "{\"value\":" + std::to_string(lost.value) + ",\"made\":" + std::to_string(lost.made) +
           ",\"by\":" + m.checker->who_did(lost.by) + ",\"over\":" + m.checker->who_did(lost.over) + "}}";
}

// Of a thread that has added to what it polls, as at a barrier: the threads that have added less often, or (in shared
// memory) those of its block that never have. `number_of`: of the group of a waiting thread.
std::string behind(const Machine& m, const Fiber& f, const std::function<size_t(const Fiber&)>& number_of) {
    const auto* added =
        f.state == State::kPolling && m.checker ? m.checker->witness.added(f.polls->first().address) : nullptr;
    const auto mine = added ? added->find(f.check->id) : decltype(added->end())();
    if (!added || mine == added->end()) return "null";
    const Added* late = nullptr;  // its first
    const Fiber *first = nullptr, *never = nullptr;
    size_t count = 0, missing = 0;
    for (const auto& [id, other] : *added) {
        if (other.times >= mine->second.times) continue;
        count++;
        if (!late || id < late->last.id) late = &other;
    }
    for (const auto& block : m.resident)
        for (const Fiber& g : block->fibers) {
            if (late && g.state != State::kDone && g.check->id == late->last.id) first = &g;
            if (block.get() != f.block || added->count(g.check->id)) continue;
            if (!missing++) never = &g;
        }
    const bool is_shared =
        f.polls->first().address - reinterpret_cast<uintptr_t>(f.block->shared) < f.block->shared_bytes;
    if (!late && !(is_shared && never)) return "null";
    if (!late) count = missing, first = never;
    return "{\"times\":" + std::to_string(mine->second.times) + ",\"count\":" + std::to_string(count) +
           ",\"last\":" + (late ? m.checker->who_did(late->last) : "null") +
           ",\"first\":" + (first ? "{" + thread(*first) + "}" : "null") +
           ",\"now\":" + (first && first->state != State::kDone ? std::to_string(number_of(*first)) : "null") + "}";
}

std::string waiters(const Machine& m) {
    std::map<Key, Group> groups;
    std::vector<const Block*> blocks;
    for (const auto& b : m.resident)
        if (!b->launch->is_service) blocks.push_back(b.get());  // no thread waits for a service to end
    std::sort(blocks.begin(), blocks.end(), [](const Block* a, const Block* b) { return a->id < b->id; });
    for (const Block* block : blocks)
        for (const Fiber& f : block->fibers) {
            if (f.state == State::kDone) continue;
            groups.try_emplace(group_of(m, f), Group{&f, 0}).first->second.count++;
        }
    std::vector<Group> ordered;
    for (const auto& entry : groups) ordered.push_back(entry.second);
    std::stable_sort(ordered.begin(), ordered.end(), [](const Group& a, const Group& b) {
        return a.first->block->launch->rank < b.first->block->launch->rank;
    });
    const auto number_of = [&](const Fiber& f) {
        const Fiber* leader = groups.at(group_of(m, f)).first;
        return static_cast<size_t>(
            std::find_if(ordered.begin(), ordered.end(), [&](const Group& g) { return g.first == leader; }) -
            ordered.begin());
    };
    std::string out = "[";
    for (const Group& g : ordered) {
        const Fiber& f = *g.first;
        if (out.size() > 1) out += ',';
        out += "{" + thread(f) + ",\"count\":" + std::to_string(g.count) + ",\"what\":" + quote(waits_in(m, f)) +
               ",\"address\":" + (f.state == State::kPolling ? std::to_string(f.polls->first().address) : "null") +
               "," + place(f, f.pc) +
               ",\"called\":" + (f.state == State::kPolling ? "{" + place(f, f.polls->caller) + "}" : "null") +
               ",\"polled\":" + polled(m, f) + ",\"behind\":" + behind(m, f, number_of) + ",\"for\":[";
        std::set<size_t> awaited;
        for (const Fiber* other : waits_for(m, f)) awaited.insert(number_of(*other));
        for (const size_t i : awaited) out += (i == *awaited.begin() ? "" : ",") + std::to_string(i);
        out += "]}";
    }
    return out + "]";
}

// Grids with blocks that wait for resident ones to end: a barrier of all blocks then never ends.
std::string not_started(const Machine& m) {
    std::string out = "[";
    for (const Rank& rank : m.ranks) {
        if (rank.queue.empty() || !rank.resident_blocks) continue;
        const Launch& launch = *rank.queue.front();
        if (launch.next_block == launch.num_blocks) continue;
        out += (out.size() > 1 ? ",{\"rank\":" : "{\"rank\":") + std::to_string(launch.rank) +
               ",\"kernel\":" + quote(launch.kernel) + ",\"first\":" + std::to_string(launch.next_block) +
               ",\"blocks\":" + std::to_string(launch.num_blocks) +
               ",\"resident\":" + std::to_string(rank.resident_blocks) + "}";
    }
    return out + "]";
}

constexpr const char* kFaultNames[] = {"none", "address", "trap", "assert", "signal", "stack", "hang"};

}  // namespace

// An array by the kernel's name for it.
struct NamedArray {
    std::string name;  // the parameter that points to it; empty: none does
    size_t offset, element;
};

// The array of a launch, or of its rank, that has an address; empty if none does.
static Range array_at(const Machine& m, const Launch& launch, uintptr_t address) {
    for (const auto* ranges : {&launch.ranges, &m.ranks[launch.rank].ranges})
        for (const Range& r : *ranges)
            if (address >= r.begin && address < r.end) return r;
    const uintptr_t heap = reinterpret_cast<uintptr_t>(m.heaps) + launch.rank * m.heap_stride;
    if (launch.arrays)
        for (const Range& r : *launch.arrays)
            if (address - heap >= r.begin && address - heap < r.end) return {heap + r.begin, heap + r.end, r.writable};
    return {};
}

// Names an array by the arguments of a launch: by the pointer that is closest below the address. A symmetric array in any
// rank's heap.
static NamedArray named_by(const Machine& m, const Launch& launch, uintptr_t address) {
    const auto heaps = reinterpret_cast<uintptr_t>(m.heaps);
    if (address - heaps < m.heaps_bytes)
        address = heaps + launch.rank * m.heap_stride + ((address - heaps) & (m.heap_stride - 1));
    const Range array = array_at(m, launch, address);
    if (!array.end) return {};
    std::istringstream parameters(launch.parameters);
    size_t position = 0, offset = 0, element = 0;
    std::string name;
    NamedArray found{};
    while (parameters >> position >> offset >> element >> name) {
        uintptr_t begin = 0;
        memcpy(&begin, static_cast<char*>(launch.args[position]) + offset, sizeof begin);
        const bool closer = found.name.empty() || address - begin < found.offset;
        if (begin >= array.begin && begin <= address && closer) found = {name, address - begin, element};
    }
    return found;
}

// The same, preferably by this launch, or by any that is not done.
static NamedArray named(const Machine& m, uintptr_t address, const Launch* first) {
    if (!first && current) first = current->block->launch;
    NamedArray found = first ? named_by(m, *first, address) : NamedArray{};
    for (const Rank& rank : m.ranks)
        for (const auto& launch : rank.queue)
            if (found.name.empty()) found = named_by(m, *launch, address);
    return found;
}

// An address in a kernel's terms: "flags[16]". Empty if no parameter points to the array.
static std::string element_at(const Machine& m, uintptr_t address, const Launch* seen_by) {
    const NamedArray array = named(m, address, seen_by);
    const size_t inside = array.element ? array.offset % array.element : array.offset;
    const std::string index = array.element ? '[' + std::to_string(array.offset / array.element) + ']' : "";
    return array.name + index + (inside ? " + " + std::to_string(inside) + " bytes" : "");
}

// A place in an array of one rank.
static std::string in_array(const Machine& m, uintptr_t address, const Range& r, int rank, const Launch* seen_by) {
    std::string name = element_at(m, address, seen_by);
    if (name.empty())
        name = "byte " + std::to_string(address - r.begin) + " of an array of " + std::to_string(r.end - r.begin) +
               " bytes";
    return name + " of rank " + std::to_string(rank) + (r.writable ? "" : ", which is read-only");
}

static std::string in_parentheses(const std::string& name) { return name.empty() ? "" : " (" + name + ")"; }

// Describes an offset of a rank's heap outside of all arrays; empty if an array has it. `close`: an index may have led
// there from the array before it.
static std::string beside_arrays(const Machine& m, int rank, const std::vector<Range>& arrays, uintptr_t offset,
                                 const Launch* seen_by, bool* close) {
    constexpr uintptr_t kClose = 1 << 16;
    const Rank& owner = m.ranks[rank];
    const uint64_t heap_bytes = m.settings.heap_bytes;
    const auto at = [&](const Range& r) {
        const auto address = reinterpret_cast<uintptr_t>(m.heaps) + rank * m.heap_stride + r.begin;
        return " symmetric array of " + std::to_string(r.end - r.begin) + " bytes at heap+" + hex(r.begin) +
               in_parentheses(named(m, address, seen_by).name);
    };
    const auto has = [&](const Range& r) { return offset >= r.begin && offset < r.end; };
    const Range *before = nullptr, *freed = nullptr;
    for (const Range& r : arrays)
        if (offset >= r.begin) before = &r;
    if (before && has(*before)) return "";
    for (const Range& r : owner.freed)
        if (has(r)) freed = &r;
    if (freed) return ", in the" + at(*freed) + ", which was freed";
    if (offset >= heap_bytes && before == &arrays.back() && before->begin < heap_bytes)
        return ", past the end of the symmetric heap (" + std::to_string(heap_bytes) + " bytes)";
    if (!before || before == &arrays.front()) return ", where nothing is allocated";  // the first is the fault record
    *close = offset - before->end < kClose;
    return ", where nothing is allocated, " + std::to_string(offset - before->end) + " bytes past the end of the" +
           at(*before);
}

// The case of ep::peer_ptr with an invalid rank. Empty if it is not that case.
static std::string rank_that_is_not(const Machine& m, uintptr_t address) {
    constexpr intptr_t kRanks = 64;  // addresses further away do not come from peer_ptr
    const auto distance = static_cast<intptr_t>(address - reinterpret_cast<uintptr_t>(m.heaps));
    const intptr_t peer = distance >> m.heap_shift;
    const uintptr_t offset = distance & (m.heap_stride - 1);
    if (peer >= -kRanks && peer < m.num_ranks + kRanks && (peer < 0 || peer >= m.num_ranks) && current &&
        !current->block->launch->arrays->empty() && offset < current->block->launch->arrays->back().end)
        return "heap+" + hex(offset) + " of rank " + std::to_string(peer) +
               ", and there is no such rank: ranks are 0 to " + std::to_string(m.num_ranks - 1);
    return "";
}

// The case of ep::peer_ptr with a pointer that is not symmetric. The result may be inside a heap, if the array is close
// to the heaps. Empty if it is not that case.
static std::string copy_that_is_not(const Machine& m, uintptr_t address) {
    if (!current) return "";
    const Launch& launch = *current->block->launch;
    const auto stack = reinterpret_cast<uintptr_t>(current->stack);
    for (int to = 0; to < m.num_ranks; to++) {
        const uintptr_t mine = address - (static_cast<intptr_t>(to) - launch.rank) * m.heap_stride;
        if (mine - reinterpret_cast<uintptr_t>(m.heaps) < m.heaps_bytes) continue;  // it is symmetric
        std::string what;
        for (const Range& r : launch.ranges)
            if (mine >= r.begin && mine < r.end) what = "an array that is not symmetric (rank.symmetric makes those)";
        if (mine - reinterpret_cast<uintptr_t>(current->block->shared) < current->block->shared_bytes)
            what = "__shared__ memory";
        if (mine - stack < m.settings.stack_bytes) what = "a local variable";
        if (const std::string name = variable_at(m, mine); !name.empty()) what = "the kernel's variable " + name;
        if (to != launch.rank && !what.empty())
            return hex(address) + ", which is nothing: ep::peer_ptr was asked for rank " + std::to_string(to) +
                   "'s copy of " + what + ", and only arrays in the symmetric heap have one";
    }
    return "";
}

static std::string mistaken_peer(const Machine& m, uintptr_t address) {
    const std::string copy = copy_that_is_not(m, address);
    return copy.empty() ? rank_that_is_not(m, address) : copy;
}

static std::string described(const Machine& m, uintptr_t address, const Launch* seen_by) {
    const uintptr_t in_heaps = address - reinterpret_cast<uintptr_t>(m.heaps);
    if (in_heaps < m.heaps_bytes) {
        const uintptr_t offset = in_heaps & (m.heap_stride - 1);
        const int number = static_cast<int>(in_heaps >> m.heap_shift);
        const std::string rank = "rank " + std::to_string(number);
        const SymmetricArrays& arrays = current ? current->block->launch->arrays : m.ranks[number].arrays;
        bool close = false;
        const std::string beside = arrays ? beside_arrays(m, number, *arrays, offset, seen_by, &close) : "";
        const std::string copy = beside.empty() || close ? "" : copy_that_is_not(m, address);
        if (!copy.empty()) return copy;
        const std::string name = beside.empty() ? element_at(m, address, seen_by) : "";
        return name.empty() ? rank + " heap+" + hex(offset) + beside : name + " of " + rank;
    }
    const uintptr_t in_shared = address - reinterpret_cast<uintptr_t>(m.shared_area);
    if (in_shared < kSharedSlots * kSharedSlotBytes) {
        const size_t slot = in_shared / kSharedSlotBytes, offset = in_shared % kSharedSlotBytes;
        for (const auto& block : m.resident)
            if (block->slot == slot)
                return "shared memory+" + hex(offset) + in_parentheses(shared_variable_at(*block, offset)) +
                       " of rank " + std::to_string(block->launch->rank) + " block " + std::to_string(block->index.x) +
                       ", which has " + std::to_string(block->shared_bytes) + " bytes (static " +
                       std::to_string(block->launch->static_shared) + " + dynamic " +
                       std::to_string(block->launch->dynamic_shared) + ")";
        const std::string text = mistaken_peer(m, address);  // shared memory lies near the heaps
        return text.empty() ? "shared memory that belongs to no block" : text;
    }
    for (const Rank& rank : m.ranks)
        for (const Range& r : rank.ranges)
            if (address >= r.begin && address < r.end)
                return in_array(m, address, r, static_cast<int>(&rank - m.ranks.data()), seen_by);
    if (address < 4096) return hex(address) + ", a null pointer";
    for (const Rank& rank : m.ranks)
        for (const auto& launch : rank.queue)
            for (const Range& r : launch->ranges)
                if (address >= r.begin && address < r.end) return in_array(m, address, r, launch->rank, seen_by);
    for (const Rank& rank : m.ranks)
        if (address - reinterpret_cast<uintptr_t>(rank.heap.memory) < rank.heap.used)
            return hex(address) + ", in the heap of malloc, where nothing is allocated (freed, or past its end)";
    if (const std::string name = variable_at(m, address); !name.empty()) return "the kernel's variable " + name;
    if (const std::string text = mistaken_peer(m, address); !text.empty()) return text;
    const uintptr_t stack_end = current ? reinterpret_cast<uintptr_t>(current->stack) + m.settings.stack_bytes : 0;
    if (address >= stack_end && address - stack_end < m.settings.stack_bytes)
        return hex(address) + ", past the end of a local array and of the thread's stack";
    const Range* nearest = nullptr;
    if (current)
        for (const Range& r : current->block->launch->ranges)
            if (address >= r.end && (!nearest || r.end > nearest->end)) nearest = &r;
    if (nearest && address - nearest->end < (1 << 20)) {
        const std::string name = named(m, nearest->begin, seen_by).name;
        return hex(address) + ", " + std::to_string(address - nearest->end) + " bytes past the end of an array of " +
               std::to_string(nearest->end - nearest->begin) + " bytes that was passed to the kernel" +
               (name.empty() ? "" : " as " + name);
    }
    return hex(address) + ", which is in no heap, no shared memory and no array passed to the kernel";
}

std::string describe_address(const Machine& m, uintptr_t address, const Launch* seen_by) {
    std::string text;
    with_room([&] { text = described(m, address, seen_by); });
    return text;
}

std::string describe_range(const Machine& m, uintptr_t address, size_t bytes) {
    const std::string first = describe_address(m, address), last = describe_address(m, address + bytes - 1);
    std::string text = std::to_string(bytes) + " bytes at " + first;
    // The first byte may be valid.
    if (bytes > 1 && first.find(',') == std::string::npos && last.find(',') != std::string::npos)
        text += ", the last one at " + last;
    return text;
}

void note_quiescence(Machine& m) {
    if (m.num_parked < m.most_waiting) return;
    m.most_waiting = m.num_parked;
    m.quiescence = waiters(m);
}

void write_report(Machine& m, Outcome outcome) {
    std::string out = "{";
    if (outcome == Outcome::kFault && m.fault == Fault::kHang) outcome = Outcome::kStopped;
    const char* names[] = {"done", "deadlock", "fault", "stopped"};
    const bool is_livelock = outcome == Outcome::kStopped && !m.livelock.empty();
    out += "\"outcome\":" + quote(is_livelock ? "livelock" : names[static_cast<int>(outcome)]);
    if (is_livelock) out += ",\"livelock\":" + m.livelock;
    if (m.faulting)
        out += ",\"fault\":{\"kind\":" + quote(kFaultNames[static_cast<int>(m.fault)]) +
               ",\"text\":" + quote(m.fault_text) + ",\"address\":" + std::to_string(m.fault_address) + "," +
               thread(*m.faulting) + "," + place(*m.faulting, m.fault_pc) + "}";
    out += ",\"waiters\":" + waiters(m) + ",\"not_started\":" + not_started(m) + "}";
    m.report = out;
}

}  // namespace epemu
