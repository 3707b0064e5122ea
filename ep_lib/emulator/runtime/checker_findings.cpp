// From a conflict to a finding: what kind it is, what is missing, and all that is known of both sides.
#include "checker.hpp"
#include "network.hpp"

#include <algorithm>

namespace epemu {
namespace {

constexpr size_t kMaxFindings = 200;  // different pairs of lines

constexpr const char* kSyncwarp = "missing __syncwarp";
constexpr const char* kSyncwarpAmongMany = "missing __syncwarp (__syncthreads if other warps take part)";
constexpr const char* kSyncthreads = "missing __syncthreads";
constexpr const char* kReleaseAcquire = "release/acquire or a fence";
constexpr const char* kCredit = "credit before reuse";

const char* warp_barrier(size_t threads) { return threads > kWarpSize ? kSyncwarpAmongMany : kSyncwarp; }

}  // namespace

const Checker::Record* Checker::record_of(uint32_t id, uint32_t time) const {
    const auto it = record_by_op_.find(static_cast<uint64_t>(id) << 32 | time);
    return it == record_by_op_.end() ? nullptr : &records_[it->second];
}

// Null if this pair of places is known already (it is counted) or there are too many.
Checker::Finding* Checker::note(const char* kind, const Side& first, const Side& second) {
    const uint64_t low = std::min(first.pc, second.pc), high = std::max(first.pc, second.pc);
    const auto [it, added] = finding_by_place_.try_emplace(high << 32 | low, findings_.size());
    if (!added || findings_.size() >= kMaxFindings) {
        if (it->second < findings_.size()) findings_[it->second].count++;
        return nullptr;
    }
    findings_.push_back({kind, "", "", "", first, second, 1});
    return &findings_.back();
}

const ThreadCheck* Checker::running(uint32_t id, uint64_t block) const {
    for (const auto& b : m_.resident)
        if (b->id == block && b->check) return &b->check->threads[id - b->check->first_id];
    return nullptr;
}

// Has anything that `other`'s block published reached this thread?
bool Checker::knows_of_block(const ThreadCheck& t, const ThreadCheck& other) const {
    const uint32_t since = past_of(other.id, other.time).since;
    for (const ThreadCheck& mate : other.owner->threads)
        if (t.known.get(mate.id) >= since) return true;
    return false;
}

const char* Checker::remedy_of_threads(const ThreadCheck& t, uint8_t flags, const Slot& slot,
                                       std::string* detail) const {
    const Ids& theirs = ids_of(slot.id);
    const Past& past = past_of(slot.id, slot.time);
    const uint32_t their_lane = (slot.id - theirs.first) % kWarpSize, their_warp = slot.id - their_lane;
    if (flags & slot.flags & kAtomic) return "system scope (an atomic of a narrower scope is none for other GPUs)";
    if (past.block == t.block) {
        const uint32_t my_warp = t.id - (t.id - theirs.first) % kWarpSize;
        return my_warp == their_warp ? warp_barrier(t.owner->threads.size()) : kSyncthreads;
    }
    const bool crosses = theirs.rank != t.rank;
    const Hint& hint = t.owner->hint;
    if (hint.why != Hint::kNone && hint.writer_rank == theirs.rank) {
        const char* texts[] = {"", "the signal in between is stored without release, so it publishes nothing",
                               "the signal in between is loaded without acquire, so nothing is ordered after it",
                               "the signal in between has a scope that does not reach the other thread"};
        *detail = texts[hint.why];
        return hint.why == Hint::kScope ? "a scope that includes the other rank (sys) or block (gpu)" : kReleaseAcquire;
    }
    // Somebody beside the second thread did wait: what he acquired was not handed on.
    for (const ThreadCheck& mate : t.owner->threads) {
        if (mate.id == t.id || mate.known.get(slot.id) < slot.time) continue;
        *detail = "another thread of the block has acquired it, but has not handed that on through a barrier";
        const bool same_warp = (mate.id - t.owner->first_id) / kWarpSize == (t.id - t.owner->first_id) / kWarpSize;
        return same_warp ? warp_barrier(t.owner->threads.size()) : kSyncthreads;
    }
    if (!(slot.flags & kWrites)) {
        const ThreadCheck* reader = running(slot.id, past.block);
        if (!crosses || !reader || knows_of_block(*reader, t)) return crosses ? kCredit : kReleaseAcquire;
        *detail = "the reader has not waited for the writer, or only another thread of its block has";
        return "wait (acquire) before the read, then __syncwarp or __syncthreads for the other threads";
    }
    // Somebody beside the first thread did signal: his release does not cover the others' writes.
    const uint32_t threads = past.dim.x * past.dim.y * past.dim.z;
    if (t.known.get(slot.id) < past.since) {
        for (const bool warp_only : {true, false})
            for (uint32_t i = 0; i < threads; i++) {
                const uint32_t mate = theirs.first + i;
                const bool same_warp = mate - mate % kWarpSize == their_warp - their_warp % kWarpSize;
                if (mate == slot.id || (warp_only && !same_warp) || t.known.get(mate) < past.since) continue;
                *detail =
                    "another thread of the writer's block has signalled; its release covers the writer's work "
                    "only after a barrier";
                return warp_only ? warp_barrier(threads) : kSyncthreads;
            }
    }
    if (crosses && (flags & kWrites)) return kCredit;
    if (crosses && t.known.get(slot.id) >= past.since) {
        *detail =
            "the writer has signalled before, and has written since: either the signal came before the data, or "
            "the memory was used again without a credit";
        return "data before its signal, or credit before reuse";
    }
    return kReleaseAcquire;
}

// One side at least is an operation of a NIC; `t` is the later one.
const char* Checker::remedy_of_nic(const ThreadCheck& t, uint8_t flags, const Slot& slot, const char** kind) const {
    const Record* first = record_of(slot.id, slot.time);
    const Record* second = t.owner ? nullptr : record_of(t.id, t.time);
    if (flags & slot.flags & kAtomic) {
        *kind = "staged atomic";
        return "one kind of writer for a counter: NICs or GPUs";
    }
    if (first && !(slot.flags & kWrites)) {
        *kind = "source reused";
        return "quiet before reuse of the source";
    }
    if (first && !(flags & kWrites)) {
        *kind = first->kind == NetKind::kGet ? "read before arrival" : "signal overtakes data";
        return first->kind == NetKind::kGet ? "quiet before what a get brings is read"
                                            : "quiet, fence or put_signal between data and signal";
    }
    if (first && second) return "quiet or fence between the operations";
    if (second && !(flags & kWrites)) return "release/acquire or a barrier before the post";
    if (first) return "quiet, fence or put_signal between data and signal";
    if (slot.flags & kWrites) return kCredit;
    if (second->kind == NetKind::kGet) {
        *kind = "read before arrival";
        return "quiet before what a get brings is read";
    }
    // Read before it was written: too early if the reader had heard of what came after the post, else too late.
    const ThreadCheck* reader = running(slot.id, past_of(slot.id, slot.time).block);
    const Clock& known = reader ? reader->known : ranks_[ids_of(slot.id).rank].stream;
    if (known.get(second->poster_id) < second->poster_time) return kCredit;
    *kind = "signal overtakes data";
    return "quiet, fence or put_signal between data and signal";
}

void Checker::race(const ThreadCheck& t, uint8_t flags, uint32_t pc, const Slot& slot, uintptr_t address) {
    const Side first = {slot.id, slot.time, slot.pc, slot.flags}, second = {t.id, t.time, pc, flags};
    Finding* finding = note("race", first, second);
    if (!finding) return;
    finding->where = describe_address(m_, address);
    if (!t.owner || ids_of(slot.id).nic) {
        finding->remedy = remedy_of_nic(t, flags, slot, &finding->kind);
    } else {
        if (flags & slot.flags & kAtomic) finding->kind = "scope";
        finding->remedy = remedy_of_threads(t, flags, slot, &finding->detail);
    }
}

void Checker::never_written(const ThreadCheck& t, uint8_t flags, uintptr_t pc, uintptr_t address) {
    const Side side = {t.id, t.time, static_cast<uint32_t>(pc), flags};
    Finding* finding = note("uninitialised", side, side);
    if (!finding) return;
    finding->where = describe_address(m_, address);
    finding->remedy = "initialise shared memory, then __syncthreads";
}

// The library and the offset in it, from the lower half of an address.
std::string Checker::place(uint32_t pc) const {
    for (const auto& image : m_.images)
        for (const auto& s : image->segments) {
            const uint64_t offset = static_cast<uint32_t>(pc - static_cast<uint32_t>(s.begin));
            if (offset < s.end - s.begin)
                return "\"image\":" + quote(image->path) +
                       ",\"offset\":" + std::to_string(s.begin + offset - 1 - image->base);
        }
    return "\"image\":\"\",\"offset\":0";
}

std::string Checker::side(const Side& s) const {
    std::string what = (s.flags & kWrites) ? "writes" : "reads";
    if (s.flags & kAtomic) what += " atomically";
    std::string out = "{\"what\":" + quote(what) + "," + place(s.pc);
    const auto number = [&](const char* name, uint64_t value) {
        out += ",\"" + std::string(name) + "\":" + std::to_string(value);
    };
    if (!ids_of(s.id).nic) {
        const Past& past = past_of(s.id, s.time);
        const uint32_t t = s.id - ids_of(s.id).first;
        const epemu_dim3 thread = {t % past.dim.x, t / past.dim.x % past.dim.y, t / past.dim.x / past.dim.y};
        number("rank", past.rank);
        return out + ",\"block\":" + triple(past.index) + ",\"thread\":" + triple(thread) +
               ",\"kernel\":" + quote(*past.kernel) + ",\"operation\":null}";
    }
    const Record& r = *record_of(s.id, s.time);
    const char* kinds[] = {"put", "get", "atomic"};
    number("rank", r.poster.rank);
    out += ",\"block\":" + triple(r.poster.block) + ",\"thread\":" + triple(r.poster.thread) +
           ",\"kernel\":" + quote(r.poster.kernel) + ",\"operation\":{\"kind\":";
    out += quote(r.kind == NetKind::kPut && r.signal ? (r.data ? "put_signal" : "signal")
                                                     : kinds[static_cast<int>(r.kind)]);
    number("number", r.number);
    number("source", r.source);
    number("target", r.target);
    number("queue_pair", r.queue_pair);
    number("bytes", r.bytes);
    number("posted", r.posted);
    number("first_read", r.first_read);
    number("last_read", r.last_read);
    number("first_write", r.first_write);
    number("delivered", r.delivered);
    number("completed", r.completed);
    return out + "}}";
}

std::string Checker::findings() const {
    std::string out = "[";
    for (const Finding& f : findings_) {
        if (out.size() > 1) out += ',';
        out += "{\"kind\":" + quote(f.kind) + ",\"remedy\":" + quote(f.remedy) + ",\"where\":" + quote(f.where) +
               ",\"detail\":" + quote(f.detail) + ",\"count\":" + std::to_string(f.count) +
               ",\"first\":" + side(f.first) + ",\"second\":" + side(f.second) + "}";
    }
    return out + "]";
}

}  // namespace epemu
