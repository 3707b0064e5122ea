// Notes conflicts between two accesses, and reports them as JSON: the kind of mistake, the missing synchronisation, its
// place, and the known facts of both sides. checker_findings_threads.cpp and its neighbours judge conflicts.
#include <algorithm>

#include "checker.hpp"
#include "checker_findings.hpp"
#include "machine.hpp"
#include "network.hpp"
#include "recorder.hpp"

namespace epemu {
namespace {

constexpr size_t kMaxFindings = 200;  // different pairs of lines
constexpr uint64_t kJudged = 48;      // occurrences of each that are judged, by Finding::judged

}  // namespace

const Checker::Record* Checker::record_of(uint32_t id, uint32_t time) const {
    const auto it = record_by_op_.find(static_cast<uint64_t>(id) << 32 | time);
    return it == record_by_op_.end() ? nullptr : &records_[it->second];
}

// The finding for this pair of places, with one more occurrence. If there are too many, the last one counts the rest.
Checker::Finding& Checker::note(const Side& first, const Side& second) {
    const uint64_t low = std::min(first.pc, second.pc), high = std::max(first.pc, second.pc);
    const auto [it, added] = finding_by_place_.try_emplace(high << 32 | low, findings_.size());
    if (added && findings_.size() == kMaxFindings) it->second = kMaxFindings - 1;
    if (it->second == findings_.size()) findings_.push_back({{}, "", first, second, 0, {}});
    Finding& finding = findings_[it->second];
    finding.count++;
    if (recorder) recorder->found(it->second, first.id, first.pc, &first != &second);
    if (recorder && finding.count == 1) recorder->reported();
    const bool nic = ids_of(second.id).nic;
    finding.ranks.insert(nic ? record_of(second.id, second.time)->poster.rank : ids_of(second.id).rank);
    return finding;
}

// Reports a finding by its latest noted occurrence, which is the surest.
void Checker::report_as(Finding& finding, const Side& first, const Side& second) {
    finding.first = first;
    finding.second = second;
    if (recorder) recorder->reported();
}

void Checker::race(const Access& a, const Slot& slot, const Cell& cell, bool again) {
    if (has_observed(a, slot)) return;
    const Side first = {slot.id, slot.time, slot.pc, slot.flags}, second = {a.t.id, a.t.time, a.pc, a.flags};
    Finding& finding = note(first, second);
    const bool warp = slot.id / kWarpSize == a.t.id / kWarpSize;
    if (++finding.judged[warp ? 0 : ids_of(slot.id).first == ids_of(a.t.id).first ? 1 : 2] > kJudged) return;
    if (plain_volatile_ && (a.flags & slot.flags & kVolatile)) finding.words.insert(a.address / sizeof(uint64_t));
    const bool stores = a.flags == kWrites && (slot.flags & ~kAgain) == kWrites && a.t.owner && !ids_of(slot.id).nic;
    if (stores) {
        const uintptr_t word = a.address & ~(sizeof(uint64_t) - 1);
        racing_store_ = {a.t.id, static_cast<size_t>(&finding - findings_.data()), word, read_raw(word, 8)};
    }
    Verdict verdict;
    with_room([&] {
        verdict = judge({a.t, a.bytes, a.flags, a.pc, slot, cell, again, a.address});
        const uint64_t other = block_of(slot.id, slot.time);
        if (!stores || verdict.signal) return;
        const auto [mine, theirs] = witness.looked_alike(a.t.block, a.t.id, other, slot.id, a.address);
        if (!mine) return;
        verdict.look = mine->pc;
        verdict.looked_at = mine->address;
        verdict.looked[0] = theirs->time;
        verdict.looked[1] = mine->time;
        verdict.certainty++;
    });
    const Verdict& known = finding.verdict;
    if (verdict.certainty < known.certainty) return;
    if (verdict.certainty == known.certainty && (known.to || !verdict.to)) return;
    finding.verdict = std::move(verdict);
    finding.where = describe_address(m_, a.address);
    report_as(finding, first, second);
}

void Checker::see_value() {
    const bool same = read_raw(racing_store_.address, 8) == racing_store_.before;
    findings_[racing_store_.finding].stores_seen[same]++;
    racing_store_.id = UINT32_MAX;
}

void Checker::never_written(const ThreadCheck& t, uint8_t flags, uintptr_t pc, uintptr_t address, size_t size,
                            bool shared) {
    const Side side = {t.id, t.time, static_cast<uint32_t>(pc), flags};
    Finding& finding = note(side, side);
    if (finding.count > 1) return;
    finding.where = describe_address(m_, address);
    finding.verdict.kind = "uninitialised";
    finding.verdict.remedy = shared
                                 ? "initialise shared memory, then __syncthreads"
                                 : "initialise the array: fill= of symmetric(), to_device(), or a kernel before this";
    finding.verdict.how = shared ? "written" : "at";
    finding.verdict.what = !shared ? "initialise the memory that is read" : size == 1 ? "a byte" : "";
    finding.verdict.to = side.pc;
}

void Checker::read_only_of_written(const ThreadCheck& t, uint32_t pc, const Slot& slot, uintptr_t address) {
    const Side first = {slot.id, slot.time, slot.pc, slot.flags}, second = {t.id, t.time, pc, 0};
    Finding& finding = note(first, second);
    if (finding.verdict.certainty >= 22) return;
    finding.where = describe_address(m_, address);
    report_as(finding, first, second);
    finding.verdict.kind = "read-only path";
    finding.verdict.remedy =
        "a plain load (ld_na_v4), without __restrict__: ld_nc, __ldg and const T* __restrict__ are for what is not "
        "written while the kernel runs";
    finding.verdict.certainty = 22;
    finding.verdict.what = "use a plain load";
    finding.verdict.how = "at";
    finding.verdict.to = pc;
}

void Checker::undefined(const Fiber* fiber, uintptr_t pc, const char* kind, std::string remedy, std::string detail) {
    const Side side = {fiber->check->id, fiber->check->time, static_cast<uint32_t>(pc), 0};
    Finding& finding = note(side, side);
    if (finding.count > 1) return;
    finding.verdict.kind = kind;
    finding.verdict.remedy = std::move(remedy);
    finding.verdict.detail = std::move(detail);
    finding.verdict.certainty = 22;
}

// `gone` has ended without reaching the warp-wide operation in which `fiber` waits for it.
void Checker::never_came(const Fiber* fiber, const Fiber* gone, std::string detail) {
    const auto side = [](const Fiber* f, uint32_t pc) { return Side{f->check->id, f->check->time, pc, 0}; };
    Finding& finding = note(side(fiber, static_cast<uint32_t>(fiber->pc)), side(gone, gone->check->last_pc));
    if (finding.count > 1) return;
    finding.verdict.kind = "mask";
    finding.verdict.remedy = kLanesThatCome;
    finding.verdict.detail = std::move(detail);
    finding.verdict.certainty = 22;
}

std::string* Checker::other_value(const Fiber* fiber, uintptr_t pc, const char* kind) {
    const Side side = {fiber->check->id, fiber->check->time, static_cast<uint32_t>(pc), 0};
    Finding& finding = note(side, side);
    if (finding.count > 1) return nullptr;
    finding.verdict.kind = kind;
    const bool shift = finding.verdict.kind[0] == 's';
    finding.verdict.remedy = shift ? "a branch for amounts of the width and more"
                                   : "clamp the value before the cast, or use an intrinsic such as __float2int_rz";
    finding.verdict.certainty = 22;
    return &finding.verdict.detail;
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

// Its offset in its library, of which ranks may have copies.
uint64_t Checker::offset_of(uint32_t pc) const {
    for (const auto& image : m_.images)
        for (const auto& s : image->segments)
            if (static_cast<uint32_t>(pc - static_cast<uint32_t>(s.begin)) < s.end - s.begin)
                return static_cast<uint32_t>(pc - static_cast<uint32_t>(image->base));
    return 0;
}

std::string Checker::spot(uint32_t pc) const { return pc ? "{" + place(pc) + "}" : "null"; }

std::string Checker::side(const Side& s) const {
    std::string what = (s.flags & kWrites) ? "writes" : "reads";
    if (ids_of(s.id).host)
        return "{\"what\":" + quote(what) +
               ",\"image\":\"\",\"offset\":0,\"rank\":" + std::to_string(ids_of(s.id).rank) +
               ",\"block\":[0,0,0],\"thread\":[0,0,0],\"kernel\":\"\",\"operation\":null,\"host\":" +
               quote(host_places_[s.pc]) + "}";
    if (s.flags & kVolatile) {
        what += " (volatile)";
    } else if (s.flags & kAtomic) {
        what += " atomically";
    }
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
    const char* kinds[] = {"put", "get", "atomic", "bulk load", "bulk store", "async copy"};
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

std::string Checker::who_stored(const SyncStore& s) const { return who_did({s.id, s.time, s.pc}); }
std::string Checker::who_did(const Deed& d) const { return side({d.id, d.time, d.pc, kWrites}); }

std::string Checker::findings() const {
    std::string out = "[";
    for (const Finding& f : findings_) {
        const Verdict v = settled(f);
        const auto polled = [&](uintptr_t word) { return polled_words_.count(word) != 0; };
        if (std::any_of(f.words.begin(), f.words.end(), polled)) continue;
        if (!f.words.empty() && (polled_at_.count(f.first.pc) || polled_at_.count(f.second.pc))) continue;
        if (std::string(v.how) == "mark" && witness.looks_again(v.from)) continue;  // it waits there
        if (out.size() > 1) out += ',';
        out += "{\"number\":" + std::to_string(&f - findings_.data()) + ",\"kind\":" + quote(v.kind) +
               ",\"remedy\":" + quote(v.remedy) + ",\"where\":" + quote(f.where) + ",\"detail\":" + quote(v.detail) +
               ",\"certainty\":" + std::to_string(v.certainty) + ",\"count\":" + std::to_string(f.count) +
               ",\"ranks\":[";
        for (const int rank : f.ranks) out += (rank == *f.ranks.begin() ? "" : ",") + std::to_string(rank);
        out += "],\"place\":{\"what\":" + quote(v.what) + ",\"how\":" + quote(v.how) + ",\"from\":" + spot(v.from) +
               ",\"to\":" + spot(v.to) + "},\"signal\":" + spot(v.signal) + ",\"called\":" + spot(v.called) +
               ",\"wait\":" + spot(v.wait) + ",\"first\":" + side(f.first) + ",\"second\":" + side(f.second) + "}";
    }
    return out + "]";
}

std::string Checker::spots(const std::set<uint32_t>& pcs) const {
    std::string out = "[";
    for (const uint32_t pc : pcs) out += (out.size() > 1 ? "," : "") + spot(pc);
    return out + "]";
}
std::string Checker::polls() const { return spots(polled_at_); }
std::string Checker::clocks() const { return spots(clocks_); }
std::string Checker::choices() const { return spots(chosen_from_); }

// The verdict at the end of the run. "swap" (a signal comes before its data) is withdrawn if the writer signals again.
Checker::Verdict Checker::settled(const Finding& f) const {
    Verdict v = f.verdict;
    if (v.lock && !witness.is_exclusive(v.lock)) {
        v.detail =
            "compare-and-swap and exchange order nothing by themselves: what is behind such a word is not published";
        v.remedy = "release/acquire on the swaps (and a count beside the value, if one may come back: ABA)";
        v.what = "use acquire and release, or fences around it,";
        return v;
    }
    if (v.poster_may_wait) {
        const bool came_first = ids_of(f.first.id).nic;
        const Side &op = came_first ? f.first : f.second, &other = came_first ? f.second : f.first;
        const NetOrder* quiet = quiet_behind(*record_of(op.id, op.time));
        if (!quiet) return v;
        const bool warp = other.id / kWarpSize == quiet->id / kWarpSize;
        v.remedy = warp ? kSyncwarp : kSyncthreads;
        v.detail =
            "the thread that posts this waits until it is done, and another one of its block does not wait for it";
        v.what = warp ? "__syncwarp()" : "__syncthreads()";
        v.how = "between";
        v.from = quiet->pc;
        v.to = other.pc;
        v.certainty = 30;
        return v;
    }
    if (v.mixed) {
        const uint64_t one = block_of(f.first.id, f.first.time), other = block_of(f.second.id, f.second.time);
        if (one != other && !witness.is_poll(v.wait) && witness.have_met(one, other)) {
            v.remedy = kGridBarrier;
            v.what = "a barrier of the grid";
            v.how = "around_two";
            v.from = f.first.pc;
            v.to = f.second.pc;
        } else if (v.sets_flag) {
            v.remedy = "atomics on both sides: release where it is set, acquire where it is looked at";
        } else if (witness.loads_pair(v.wait)) {
            v.remedy = kOneStore;
            v.what = "store both words at once, by ep::st_relaxed_sys_u64x2,";
        } else if (!witness.is_poll(v.wait)) {
            v.remedy = "atomics on both sides, or an order between the two (a barrier, release/acquire)";
            v.what = "use an atomic too, or come after the other thread's release";
        }
        v.wait = 0;
        return v;
    }
    if (v.waited_on) {
        const SyncStore* given = witness.store_at(v.giver, v.waited_on);
        if (!given) return v;
        v.signal = given->pc;
        v.wait = v.waited_in;
        const bool credit = v.kind == std::string(kReused);
        v.detail = credit ? "the writer's wait for a credit was over with one that no reader had given"
                          : "what the reader has waited for was another thread's signal: a count says how many have "
                            "signalled, and not who";
        v.how = credit ? "credit_fewer" : "wait_count";
        v.from = credit ? v.wait : given->pc;
        if (!credit)
            v.to = v.wait, v.remedy = "wait until all have signalled that may come first, or for a signal of each";
        return v;
    }
    const auto change = [&](const Side& s, uint32_t since) {
        return witness.store_at(block_of(s.id, s.time), v.looked_at, s.id, since);
    };
    const SyncStore* by = v.look ? change(f.first, v.looked[0]) : nullptr;
    if (!by && v.look) by = change(f.second, v.looked[1]);
    if (by) {
        v.kind = "race";
        v.detail = "both have looked at one word and found the same, and the look and the change of it are two steps";
        v.remedy =
            "one atomic that looks and changes: a compare-and-swap from the value that was found (go on if it gives "
            "that value, else look again), or an atomicAdd whose old value is the thread's own number";
        v.what = "look and change by one atomic";
        v.how = "both";
        v.from = v.look;
        v.to = by->pc;
        return v;
    }
    const Unsettled& u = v.unsettled;
    constexpr int kEvidence = 30;  // of a synchronisation that was meant
    if (f.stores_seen[true] && !f.stores_seen[false] && v.certainty < kEvidence) {
        v.detail = "both store the same value";
        v.remedy =
            "one thread that stores it, or an atomic (atomicExch, a relaxed store): plain stores by two threads are a "
            "race even of one value";
        v.how = "same";
        v.from = f.first.pc;
        v.to = f.second.pc;
        v.certainty--;  // another run may show different values
        return v;
    }
    if (!u.is) return v;
    const auto signalled = [&](uint32_t but) {
        return witness.signalled_since(u.writer_block, u.writer, u.written, but);
    };
    if (std::string(v.how) != "swap") {  // a barrier is missing before the signal, unless one comes behind a barrier
        const uint32_t behind = signalled(u.in_any_line ? 0 : v.to);
        if (!behind || !v.to) return v;
        v.from = v.to;
    }
    const uint32_t later = signalled(v.from), again = signalled(0);
    if (!later && !again) {
        v.signal = v.from;
        return v;
    }
    if (v.in_one_rank) {
        v.signal = v.from;
        v.how = "";
        v.remedy = "data before its signal; if it comes before the next one of this thread, wait for that one";
        v.detail = "the reader has acquired a signal of the writer, but an earlier one than this write";
        return v;
    }
    v.kind = "race";
    v.signal = later ? later : again;
    witness.signalled_to(u.reader_block, u.writer_block, u.writer, u.written, &v.signal, &v.wait);
    v.how = v.wait ? "wait_round" : "wait_for";
    v.from = v.signal;
    v.to = v.wait ? v.wait : u.read_pc;
    v.remedy = v.wait ? kWaitRound : kWaitFirst;
    v.detail = "what the reader has waited for is an earlier signal; the one that follows this write comes later";
    return v;
}

}  // namespace epemu
