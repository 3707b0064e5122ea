// What the checker tells of a conflict: all that is known of both sides, as JSON. What it means is in
// checker_verdicts.cpp.
#include "checker.hpp"
#include "network.hpp"

#include <algorithm>

namespace epemu {
namespace {

constexpr size_t kMaxFindings = 200;  // different pairs of lines
constexpr uint64_t kJudged = 48;      // occurrences of each that are looked at closely

}  // namespace

const Checker::Record* Checker::record_of(uint32_t id, uint32_t time) const {
    const auto it = record_by_op_.find(static_cast<uint64_t>(id) << 32 | time);
    return it == record_by_op_.end() ? nullptr : &records_[it->second];
}

// The finding of this pair of places, with one occurrence more. Where there are too many, the last one takes the rest.
Checker::Finding& Checker::note(const Side& first, const Side& second) {
    const uint64_t low = std::min(first.pc, second.pc), high = std::max(first.pc, second.pc);
    const auto [it, added] = finding_by_place_.try_emplace(high << 32 | low, findings_.size());
    if (added && findings_.size() == kMaxFindings) it->second = kMaxFindings - 1;
    if (it->second == findings_.size()) findings_.push_back({{}, "", first, second, 0, {}});
    Finding& finding = findings_[it->second];
    finding.count++;
    const bool nic = ids_of(second.id).nic;
    finding.ranks.insert(nic ? record_of(second.id, second.time)->poster.rank : ids_of(second.id).rank);
    return finding;
}

void Checker::race(const ThreadCheck& t, uint8_t flags, uint32_t pc, const Slot& slot, const Cell& cell, bool again,
                   uintptr_t address) {
    const Side first = {slot.id, slot.time, slot.pc, slot.flags}, second = {t.id, t.time, pc, flags};
    Finding& finding = note(first, second);
    if (finding.count > kJudged) return;
    Verdict verdict = judge({t, flags, pc, slot, cell, again});
    const Verdict& known = finding.verdict;
    if (verdict.certainty < known.certainty) return;
    if (verdict.certainty == known.certainty && (known.to || !verdict.to)) return;
    finding.verdict = std::move(verdict);
    finding.where = describe_address(m_, address);
    finding.first = first;
    finding.second = second;
}

void Checker::never_written(const ThreadCheck& t, uint8_t flags, uintptr_t pc, uintptr_t address) {
    const Side side = {t.id, t.time, static_cast<uint32_t>(pc), flags};
    Finding& finding = note(side, side);
    if (finding.count > 1) return;
    finding.where = describe_address(m_, address);
    finding.verdict.kind = "uninitialised";
    finding.verdict.remedy = "initialise shared memory, then __syncthreads";
    finding.verdict.how = "written";
    finding.verdict.to = side.pc;
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

std::string Checker::spot(uint32_t pc) const { return pc ? "{" + place(pc) + "}" : "null"; }

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
        const Verdict& v = f.verdict;
        if (out.size() > 1) out += ',';
        out += "{\"kind\":" + quote(v.kind) + ",\"remedy\":" + quote(v.remedy) + ",\"where\":" + quote(f.where) +
               ",\"detail\":" + quote(v.detail) + ",\"certainty\":" + std::to_string(v.certainty) +
               ",\"count\":" + std::to_string(f.count) + ",\"ranks\":[";
        for (const int rank : f.ranks) out += (rank == *f.ranks.begin() ? "" : ",") + std::to_string(rank);
        out += "],\"place\":{\"what\":" + quote(v.what) + ",\"how\":" + quote(v.how) + ",\"from\":" + spot(v.from) +
               ",\"to\":" + spot(v.to) + "},\"first\":" + side(f.first) + ",\"second\":" + side(f.second) + "}";
    }
    return out + "]";
}

}  // namespace epemu
