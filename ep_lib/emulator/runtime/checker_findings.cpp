// Classifies a conflict between two accesses and reports it as JSON: the kind of mistake, what is missing, where to put
// it, and the known facts of both sides.
#include <algorithm>
#include <stddef.h>

#include "checker.hpp"
#include "machine.hpp"
#include "network.hpp"
#include "recorder.hpp"

namespace epemu {
namespace {

constexpr size_t kMaxFindings = 200;  // different pairs of lines
constexpr uint64_t kJudged = 48;      // occurrences of each that are judged

}  // namespace

// ---- what can be missing, in the words of reports -----------------------------------------------------------------

constexpr const char* kSyncwarp = "missing __syncwarp";
constexpr const char* kSyncwarpAmongMany = "missing __syncwarp (__syncthreads if other warps take part)";
constexpr const char* kSyncthreads = "missing __syncthreads";
constexpr const char* kDivergentBarrier = "divergent barrier: one __syncthreads that all threads of the block reach";
constexpr const char* kSyncwarpBeforeCredit =
    "missing __syncwarp between the read and its credit, which comes after it";
constexpr const char* kSyncthreadsBeforeCredit =
    "missing __syncthreads between the read and its credit, which comes after it";
constexpr const char* kCreditOfSibling =
    "another thread of the reader's block has given the credit; it covers the reader's work only after a barrier";
constexpr const char* kEachSignal =
    "wait (acquire) for the signal of each put: another one does not say that this one has arrived";
constexpr const char* kReleaseAcquire = "release/acquire or a fence";
constexpr const char* kWait = "wait for the writer's signal (release/acquire) before the read";
constexpr const char* kWaitFirst =
    "wait (acquire) before the read, then __syncwarp or __syncthreads for the other threads";
constexpr const char* kWaitRound =
    "wait for this round's signal: for a value that grows with each round (a count: round x signals a round)";
constexpr const char* kCredit = "credit before reuse";
constexpr const char* kQuiet = "quiet, fence or put_signal between data and signal";
constexpr const char* kDataFirst = "data before its signal, and a quiet, fence or release between them";
constexpr const char* kAtomicSignal =
    "an atomic access to the signal (release to set it, acquire to wait for it) on both sides";
constexpr const char* kWaitWritten =
    "tma_wait_written between a bulk store and the signal that tells of it (it follows the wait)";
constexpr const char* kCopyWait = "__pipeline_wait_prior(0)";
constexpr const char* kStoresAndLooks =
    "each of the two looks at a word that the other one stores, and both are in what that is to keep for one";
constexpr const char* kOneAtomicLock =
    "a lock that one atomic takes (atom_cas_acquire from 0 to 1, until it gives 0) and st_release of 0 gives back; or "
    "all "
    "rules of Dekker, Peterson or the bakery, with __threadfence_system (fence.sc) between each store and its looks";
constexpr const char* kMeetAgain =
    "a second barrier by number at the end of each round, which no warp passes before the reader has read";
constexpr const char* kLanesThatCome =
    "the operation outside of the branch, or a mask of the lanes that come to it (of __ballot_sync before the branch)";
constexpr const char* kReused = "slot reused";
constexpr const char* kOvertakes = "signal overtakes data";

constexpr const char* kFences[] = {"__threadfence_block()", "__threadfence()", "__threadfence_system()"};
constexpr const char* kScopes[] = {"block", "gpu", "sys"};
constexpr const char* kReach[] = {"threads of its own block only", "threads of its own GPU only", "everyone"};
constexpr const char* kOtherIs[] = {"in the same block", "in another block", "on another rank"};

inline bool acquires(int order) { return order == EPEMU_ACQUIRE || order == EPEMU_ACQ_REL || order == EPEMU_SEQ_CST; }
inline const char* warp_barrier(size_t threads) { return threads > kWarpSize ? kSyncwarpAmongMany : kSyncwarp; }

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
    if (finding.count > kJudged) return;
    if (plain_volatile_ && (a.flags & slot.flags & kVolatile)) finding.words.insert(a.address / sizeof(uint64_t));
    Verdict verdict;
    with_room([&] { verdict = judge({a.t, a.bytes, a.flags, a.pc, slot, cell, again, a.address}); });
    const Verdict& known = finding.verdict;
    if (verdict.certainty < known.certainty) return;
    if (verdict.certainty == known.certainty && (known.to || !verdict.to)) return;
    finding.verdict = std::move(verdict);
    finding.where = describe_address(m_, a.address);
    report_as(finding, first, second);
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

// `gone` has ended without coming to the operation of its warp in which this thread waited for it.
void Checker::never_came(const Fiber* fiber, const Fiber* gone, std::string detail) {
    const auto side = [](const Fiber* f, uint32_t pc) { return Side{f->check->id, f->check->time, pc, 0}; };
    const Side here = side(fiber, static_cast<uint32_t>(fiber->pc));
    Finding& finding = note(here, here);  // that a lane reads another one which takes no part says more
    if (finding.count > 1) return;
    finding.second = side(gone, gone->check->last_pc);
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

std::string Checker::who_stored(const SyncStore& s) const { return side({s.id, s.time, s.pc, kWrites}); }

std::string Checker::findings() const {
    std::string out = "[";
    for (const Finding& f : findings_) {
        const Verdict v = settled(f);
        const auto polled = [&](uintptr_t word) { return polled_words_.count(word) != 0; };
        if (std::any_of(f.words.begin(), f.words.end(), polled)) continue;
        if (!f.words.empty() && (polled_at_.count(f.first.pc) || polled_at_.count(f.second.pc))) continue;
        if (out.size() > 1) out += ',';
        out += "{\"number\":" + std::to_string(&f - findings_.data()) + ",\"kind\":" + quote(v.kind) +
               ",\"remedy\":" + quote(v.remedy) + ",\"where\":" + quote(f.where) + ",\"detail\":" + quote(v.detail) +
               ",\"certainty\":" + std::to_string(v.certainty) + ",\"count\":" + std::to_string(f.count) +
               ",\"ranks\":[";
        for (const int rank : f.ranks) out += (rank == *f.ranks.begin() ? "" : ",") + std::to_string(rank);
        out += "],\"place\":{\"what\":" + quote(v.what) + ",\"how\":" + quote(v.how) + ",\"from\":" + spot(v.from) +
               ",\"to\":" + spot(v.to) + "},\"signal\":" + spot(v.signal) + ",\"wait\":" + spot(v.wait) +
               ",\"first\":" + side(f.first) + ",\"second\":" + side(f.second) + "}";
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

// "swap": a signal comes before its data. Wrong if the writer signals once more.
Checker::Verdict Checker::settled(const Finding& f) const {
    Verdict v = f.verdict;
    if (v.lock && !witness.is_exclusive(v.lock)) {
        v.detail =
            "compare-and-swap and exchange order nothing by themselves: what is behind such a word is not published";
        v.remedy = "release/acquire on the swaps (and a count beside the value, if one may come back: ABA)";
        v.what = "use acquire and release, or fences around it,";
        return v;
    }
    if (v.mixed) {
        if (v.sets_flag) {
            v.remedy = "atomics on both sides: release where it is set, acquire where it is looked at";
        } else if (witness.loads_pair(v.wait)) {
            v.remedy = "one store for both words, as one load reads them: nothing keeps two stores together";
            v.what = "store both words at once, by ep::st_relaxed_sys_u64x2,";
        } else if (!witness.is_poll(v.wait)) {
            v.remedy = "atomics on both sides, or an order between the two (a barrier, release/acquire)";
            v.what = "use an atomic too, or come after the other thread's release";
        }
        v.wait = 0;
        return v;
    }
    const Unsettled& u = v.unsettled;
    if (!u.is) return v;
    const auto signalled = [&](uint32_t but) {
        return witness.signalled_since(u.writer_block, u.writer, u.written, but);
    };
    if (std::string(v.how) != "swap") {  // a barrier is missing before the signal, unless one comes behind a barrier
        const uint32_t behind = signalled(v.to);
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

// ---- what a conflict means: which mistake it is, what is missing, and where to put it -----------------------------
//
// One occurrence seldom decides. A lane that reads before lane 0's wait looks like one that reads behind it; but if
// lane 0 has acquired the data and the lane has not, a barrier is missing. So each occurrence has a certainty, and the
// surest is reported:
//
//   10  threads of one warp (12: of one block) with nothing in between; one more if that must be so in the first round.
//       Less sure than the same lines across blocks
//   20  only known: the two are unordered
//   21  memory that was used before: most likely again too early
//   22  memory that was not used before, and a thread that has not waited at all
//   23  ... that has acquired something else from the writer: the signal came before the data
//   24  ... that has acquired the writer's actions after its post: the signal overtook the data
//   25  ... while a thread of the same block (26: warp) still waits
//   30  a signal in between without release, acquire or enough scope
//   31  a thread of the same warp (32: block) is ordered and this one is not
//   50  no order would help: atomics are missing or mixed with plain accesses
const ThreadCheck* Checker::running(uint32_t id, uint64_t block) const {
    for (const auto& b : m_.resident)
        if (b->id == block && b->check) return &b->check->threads[id - b->check->first_id];
    return nullptr;
}

// Whether any publication of `other`'s block has reached this thread.
bool Checker::knows_of_block(const ThreadCheck& t, const ThreadCheck& other) const {
    const uint32_t since = past_of(other.id, other.time).since;
    for (const ThreadCheck& sibling : other.owner->threads)
        if (happens_before(sibling.id, since, t.clock)) return true;
    return false;
}

// A thread of `other`'s block about which `t` knows more than `other` does: it has signalled without a barrier between
// the two. Preferably one of the same warp.
const ThreadCheck* Checker::sibling_ahead(const ThreadCheck& t, const ThreadCheck* other) const {
    const ThreadCheck* found = nullptr;
    if (!other) return nullptr;
    for (const ThreadCheck& sibling : other->owner->threads) {
        if (sibling.id == other->id || t.clock.get(sibling.id) <= other->clock.get(sibling.id)) continue;
        found = &sibling;
        if (sibling.id / kWarpSize == other->id / kWarpSize) break;
    }
    return found;
}

// The line of the latest signal from `writer_rank` that the reader's block has acquired, or, if the block has ended, its
// rank.
uint32_t Checker::signal_of(int reader_rank, const ThreadCheck* reader, int writer_rank, uint32_t but,
                            uint32_t* wait) const {
    const auto& all = reader ? reader->owner->acquired : ranks_[reader_rank].acquired;
    for (auto signal = all.rbegin(); signal != all.rend(); ++signal)
        if (signal->writer_rank == writer_rank && signal->store_pc != but) {
            if (wait) *wait = signal->load_pc;
            return signal->store_pc;
        }
    return 0;
}

// Another thread of the block that is in a polling loop, preferably one of the same warp.
const Fiber* Checker::polling_sibling(const ThreadCheck& t) const {
    const Fiber* found = nullptr;
    for (const auto& block : m_.resident) {
        if (block->id != t.block) continue;
        for (const Fiber& f : block->fibers) {
            if (f.state != State::kPolling || f.check == &t) continue;
            if (!found || f.check->id / kWarpSize == t.id / kWarpSize) found = &f;
        }
    }
    return found;
}

// A thread reads too early, while another thread of its block correctly waits.
bool Checker::judge_waiting_sibling(const ThreadCheck* reader, uint32_t read_at, uint32_t pc, Verdict* v) const {
    if (!reader || reader->time != read_at) return false;  // it has met others since it read
    const Fiber* found = polling_sibling(*reader);
    if (!found) return false;
    std::set<uint32_t> waiting;  // warps of the block that wait in this line
    for (const SyncLoad* look : witness.loads_of(reader->block))
        if (look->pc == static_cast<uint32_t>(found->pc)) waiting.insert(look->id / kWarpSize);
    const bool each = waiting.size() > 1;  // each warp waits for itself
    const bool warp = each || found->check->id / kWarpSize == reader->id / kWarpSize;
    v->remedy = warp ? warp_barrier(reader->owner->threads.size()) : kSyncthreads;
    v->detail = "another thread of the block waits, but this one reads without waiting for it at a barrier";
    v->certainty = each ? 27 : warp ? 25 : 26;
    v->what = warp ? "__syncwarp()" : "__syncthreads()";
    v->how = "between";
    v->from = static_cast<uint32_t>(found->pc);
    v->to = pc;
    return true;
}

// At least one side is a host's Python.
Checker::Verdict Checker::judge_host(const Conflict& c) const {
    Verdict v;
    v.certainty = 45;
    const bool by_nic = ids_of(c.t.id).nic || ids_of(c.slot.id).nic;
    if (by_nic) {
        if (!((ids_of(c.t.id).nic ? c.flags : c.slot.flags) & kWrites)) v.kind = "source reused";
        v.remedy =
            "a quiet in the kernel that posts this, before it ends (and rank.barrier() before another rank's host goes "
            "on): neither the end of a kernel nor a barrier of hosts waits for NICs";
    } else if (ids_of(c.t.id).rank == ids_of(c.slot.id).rank) {
        v.remedy = "rank.synchronize() between the launch and what the host does";
    } else {
        v.remedy =
            "rank.barrier() between what the host does and the other rank's kernel: rank.synchronize() waits for the "
            "kernels of its own rank";
    }
    return v;
}

Checker::Verdict Checker::judge(const Conflict& c) const {
    if (ids_of(c.t.id).host || ids_of(c.slot.id).host) return judge_host(c);
    Verdict v;
    const Record* first = ids_of(c.slot.id).nic ? record_of(c.slot.id, c.slot.time) : nullptr;
    const Record* second = c.t.owner ? nullptr : record_of(c.t.id, c.t.time);
    if (is_copy(first) || is_copy(second)) return judge_copy(c, first, second);
    const bool nic = !c.t.owner || ids_of(c.slot.id).nic;
    if (c.flags & c.slot.flags & kAtomic) {
        if (c.bytes == c.slot.bytes && (c.flags & c.slot.flags & kVolatile)) {  // plain_volatile is on
            if (!judge_hand_over(c, &v, false) && !judge_one_sided_lock(c, &v)) {
                v.remedy = "release/acquire or a fence on both sides, or a barrier: volatile orders nothing";
                v.certainty = 20;
                v.from = c.slot.pc;
                v.to = c.pc;
            }
            v.kind = "volatile";
            return v;
        }
        const bool staged = (c.flags & c.slot.flags & kWrites) && ((c.flags ^ c.slot.flags) & kStaged);
        v.certainty = 50;
        if (c.bytes != c.slot.bytes && !staged) {
            v.kind = "width";
            v.remedy = "one width for all atomics on a location";
            v.what = "make both atomics of one width";
            v.how = c.pc == c.slot.pc ? "at" : "both";
            v.from = c.slot.pc;
            v.to = c.pc;
            return v;
        }
        const int needed = nic ? static_cast<int>(EPEMU_SCOPE_SYSTEM)
                               : scope_between(c.t, ids_of(c.slot.id).rank, past_of(c.slot.id, c.slot.time).block);
        v.kind = staged ? "staged atomic" : "scope";
        v.remedy = staged ? "one kind of writer for a counter: NICs or GPUs"
                          : std::string("scope: ") + kScopes[needed] + " is the smallest that reaches a thread " +
                                kOtherIs[needed] + (needed == EPEMU_SCOPE_SYSTEM ? " (the system)" : " (the device)");
        v.what = staged ? "let only one kind add there" : std::string("give it the scope ") + kScopes[needed];
        v.how = staged ? "both" : "at";
        v.from = c.slot.pc;
        v.to = staged ? c.pc : (c.flags >> kScopeShift & 3) < (c.slot.flags >> kScopeShift & 3) ? c.pc : c.slot.pc;
        return v;
    }
    if ((c.flags ^ c.slot.flags) & kAtomic && (nic || past_of(c.slot.id, c.slot.time).block != c.t.block)) {
        const bool second_is_atomic = c.flags & kAtomic;
        const uint32_t atomic_pc = second_is_atomic ? c.pc : c.slot.pc, plain_pc = second_is_atomic ? c.slot.pc : c.pc;
        const bool by_nic = nic && ids_of(second_is_atomic ? c.slot.id : c.t.id).nic;
        const bool plain_writes = (second_is_atomic ? c.slot.flags : c.flags) & kWrites;
        const bool atomic_writes = (second_is_atomic ? c.flags : c.slot.flags) & kWrites;
        v.certainty = 50;
        v.how = "at";
        v.to = plain_pc;
        if (!by_nic) {
            v.remedy = kAtomicSignal;
            v.what = "use an atomic with release or acquire, such as ep::st_release_sys or ep::ld_acquire_sys";
            v.mixed = true;
            v.sets_flag = atomic_writes && !plain_writes;
            v.wait = atomic_pc;
        } else if (!plain_writes) {  // a NIC reads data that a thread writes
            v.remedy = "wait (acquire) for a signal of the thread that sets it, before the post that reads it";
            v.how = "wait_post";
            v.from = atomic_pc;
        } else if (atomic_writes) {
            v.remedy = "one kind of writer: a NIC brings bytes where threads use atomics";
            v.what = "let only one of them write there";
            v.how = "both";
            v.from = atomic_pc;
        } else {  // a NIC writes data that a thread polls
            v.remedy = "a signal of its own behind the data (put_signal): the bytes of a put come in any order";
            v.what = "wait for that signal, not for the data itself,";
            v.to = atomic_pc;
        }
        return v;
    }
    return nic ? judge_nic(c) : judge_threads(c);
}

// For threads and NICs alike: there was a synchronisation, but it does not reach the second access.
bool Checker::judge_synchronisation(const Conflict& c, Verdict* v) const {
    const ThreadCheck& t = c.t;
    if (!t.owner) return false;
    const Record* op = record_of(c.slot.id, c.slot.time);
    const int from_rank = !op ? ids_of(c.slot.id).rank : op->kind == NetKind::kPut || is_copy(op) ? op->source : -1;
    // Another thread of the block did wait, but did not hand its knowledge on.
    const ThreadCheck* waited = nullptr;
    for (const ThreadCheck& sibling : t.owner->threads) {
        if (sibling.id == t.id || sibling.id == c.slot.id) continue;
        if (!happens_before(c.slot.id, c.slot.time, sibling.clock)) continue;
        waited = &sibling;
        if (sibling.id / kWarpSize == t.id / kWarpSize) break;
    }
    // (In memory that was written before, it may rightly be a round ahead. If this thread itself has a signal from
    // behind the post of a put, the signal has overtaken the put, whatever other threads have acquired since.)
    const bool overtaken = op && op->kind == NetKind::kPut && op->poster.rank != t.rank &&
                           happens_before(op->poster_id, op->poster_time, t.clock);
    if (waited && !overtaken && !(c.slot.flags & kAgain)) {
        bool warp = waited->id / kWarpSize == t.id / kWarpSize;
        uint32_t wait_pc = waited->waited_pc;
        const Fiber* polls = warp ? nullptr : polling_sibling(t);
        if (polls &&
            polls->check->id / kWarpSize == t.id / kWarpSize) {  // each warp waits for itself, and this one still
            warp = true;
            wait_pc = static_cast<uint32_t>(polls->pc);
        }
        v->kind = "race";
        v->remedy = warp ? warp_barrier(t.owner->threads.size()) : kSyncthreads;
        v->detail = "another thread of the block has acquired it, but has not handed that on through a barrier";
        v->certainty = warp ? 31 : 32;
        v->what = warp ? "__syncwarp()" : "__syncthreads()";
        v->how = wait_pc ? "between" : "before";
        v->from = wait_pc;
        v->to = c.pc;
        return true;
    }
    Hint hint = t.owner->hint;
    const std::vector<SyncLoad> waits = witness.waits_of(t.block);
    const auto is_relaxed = [&](auto&& same) {
        return std::any_of(waits.begin(), waits.end(),
                           [&](const SyncLoad& l) { return !acquires(l.order) && same(l); });
    };
    if (hint.why == Hint::kNotAcquired && !is_relaxed([&](const SyncLoad& l) { return l.pc == hint.load_pc; }))
        hint.why = Hint::kNone;
    for (const ThreadCheck& sibling : t.owner->threads)
        for (const Known& pending : sibling.pending)
            if (hint.why == Hint::kNone && happens_before(c.slot.id, c.slot.time, pending.clock) &&
                is_relaxed([&](const SyncLoad& l) { return l.id == sibling.id; }))
                hint = {Hint::kNotAcquired, from_rank, 0, 0, 0, 0};
    if (hint.why == Hint::kNone || hint.writer_rank != from_rank || from_rank < 0) return false;
    if (!op && hint.writer == c.slot.id && hint.stored < c.slot.time) return false;  // it came before the write
    if (!op && c.t.clock.get(hint.writer) >= hint.stored) return false;  // known in another way, which explains nothing
    const char* texts[] = {"", "the signal in between is stored without release, so it publishes nothing",
                           "the signal in between is loaded without acquire, so nothing is ordered after it",
                           "the signal in between has a scope that does not reach the other thread"};
    const char* advice[] = {"", "store the signal with release", "load the signal with acquire",
                            "give both a scope that reaches the other thread"};
    v->kind = "race";
    v->detail = texts[hint.why];
    v->remedy =
        hint.why == Hint::kScope ? "a scope that includes the other rank (sys) or block (gpu)" : kReleaseAcquire;
    v->certainty = 30;
    v->what = advice[hint.why];
    v->how = hint.why == Hint::kScope ? "both" : "at";
    v->from = hint.store_pc;
    v->to = hint.why == Hint::kNotReleased ? hint.store_pc : hint.load_pc;
    return true;
}

namespace {

bool releases(int order) { return order == EPEMU_RELEASE || order == EPEMU_ACQ_REL || order == EPEMU_SEQ_CST; }

// One side of a hand-over: how far its release or acquire reaches, and the line that keeps it from reaching further.
struct Reach {
    int scope = -1;  // -1: it neither releases nor acquires
    uint32_t pc = 0;
    bool by_fence = false;
    void take(int wider, uint32_t line, bool fence) {
        if (wider > scope) *this = {wider, line, fence};
    }
};

}  // namespace

// Of a thread that has seen what another one stored: whether that was stored after this event, as it should have been
// published and acquired then.
bool Checker::follows(const Event& e, const SyncLoad& l) {
    const SyncStore& s = l.seen;
    if (!s.pc || s.kind == SyncKind::kNic || s.block != e.block || s.id == l.id) return false;
    return s.id == e.id ? s.time >= e.time : happens_before(e.id, e.time, s.known);
}

// Whether the store and the look order what was done before with what comes behind: if not, what is missing there.
bool Checker::judge_link(const Event& e, const SyncLoad& l, int rank, uint64_t block, Verdict* v) const {
    const SyncStore& s = l.seen;
    const bool own = s.id == e.id;
    const int needed = s.block == block ? EPEMU_SCOPE_BLOCK : s.rank == rank ? EPEMU_SCOPE_DEVICE : EPEMU_SCOPE_SYSTEM;
    Reach given, taken;
    bool fenced_too_early = false;  // before a barrier, behind which the thread knows other threads' writes
    if (releases(s.order)) given.take(s.scope, s.pc, false);
    for (const FenceSeen& f : s.fences) {
        if (f.pc && (own ? f.time >= e.time : happens_before(e.id, e.time, f.known))) {
            given.take(std::min(f.scope, s.scope), f.scope < s.scope ? f.pc : s.pc, f.scope < s.scope);
        } else if (f.pc && !own && f.scope >= needed) {
            fenced_too_early = true;
        }
    }
    if (acquires(l.order)) taken.take(l.scope, l.pc, false);
    if (l.fence.pc)
        taken.take(std::min(l.fence.scope, l.scope), l.fence.scope < l.scope ? l.fence.pc : l.pc,
                   l.fence.scope < l.scope);
    if (given.scope >= needed && taken.scope >= needed) return false;
    const bool lock = (l.swap || s.gives_turn) && witness.is_lock(l.address, e.id);
    const bool giver = given.scope < needed;
    const Reach& side = giver ? given : taken;
    const std::string fence = kFences[needed], thing = lock ? "lock" : "signal";
    v->kind = "race";
    v->certainty = lock ? 51 : 40;
    v->signal = s.pc;
    v->wait = l.pc;
    v->how = "at";
    v->lock = lock ? l.address : 0;
    if (side.scope >= 0) {
        const std::string narrow = side.by_fence ? lock ? "the fence at the lock" : "the fence"
                                   : giver       ? "the " + thing + "'s store"
                                                 : "the " + thing + "'s load";
        v->detail = narrow + (lock ? " reaches " : " between the two reaches ") + kReach[side.scope] +
                    ", and the other thread is " + kOtherIs[needed];
        v->remedy = "scope: " + (side.by_fence ? fence : std::string(kScopes[needed])) +
                    " is the smallest that reaches a thread " + kOtherIs[needed];
        v->what = side.by_fence ? "use " + fence : std::string("give it the scope ") + kScopes[needed];
        v->to = side.pc;
    } else if (lock) {
        v->detail = giver ? "both hold the lock here, but it is given back without release: what was done under it is "
                            "not published"
                          : "both hold the lock here, but it is taken without acquire: what was done under it before "
                            "need not be seen";
        v->remedy =
            std::string("release/acquire of the lock: ") + fence + " after it is taken and before it is given back";
        v->what = giver ? "give the lock back with release (or put " + fence + " before it)"
                        : "take the lock with acquire (or put " + fence + " after it)";
        v->to = giver ? s.pc : l.pc;
    } else {
        v->detail = giver ? "the signal in between is stored without release, so it publishes nothing"
                          : "the signal in between is loaded without acquire, so nothing is ordered after it";
        const bool both = giver && taken.scope < needed;
        v->remedy = std::string(kReleaseAcquire) +
                    (both    ? ", before the signal and after the wait: "
                     : giver ? " before the signal: "
                             : " after the wait: ") +
                    fence + " is enough";
        v->what = both && s.pc == l.pc ? "use acquire and release (acq_rel)"
                  : giver              ? "store the signal with release"
                                       : "load the signal with acquire";
        v->to = giver ? s.pc : l.pc;
        if (giver && fenced_too_early) {
            v->detail =
                "the fence comes before the barrier, and so covers, in PTX's memory model, only what its own thread "
                "has done; the "
                "signal behind the barrier is stored without release";
            v->what = "put " + fence + " behind the barrier, before the signal";
        }
    }
    return true;
}

// A thread that had done the first access has stored something, and this thread has seen it, or, with `others`, has seen
// it by way of a third thread: so it was to be ordered. Which link of that is missing?
bool Checker::judge_hand_over(const Conflict& c, Verdict* v, bool others) const {
    const ThreadCheck& t = c.t;
    const Slot& slot = c.slot;
    if (!t.owner || ids_of(slot.id).nic) return false;
    const Event first = {slot.id, slot.time, past_of(slot.id, slot.time).block};
    for (const SyncLoad& l : witness.waits_of(t.block)) {
        if (l.is_of(c.address)) continue;  // the location of the conflict itself
        if (l.id != t.id && !happens_before(l.id, l.time, t.clock)) continue;
        if (!others) {
            if (follows(first, l) && judge_link(first, l, t.rank, t.block, v)) return true;
            continue;
        }
        const SyncStore& s = l.seen;
        if (!s.pc || s.kind == SyncKind::kNic || s.block == t.block) continue;
        for (const SyncLoad& before : witness.waits_of(s.block)) {
            const Event third = {before.id, before.time, s.block};
            if (!follows(first, before) || !follows(third, l)) continue;
            if (!judge_link(first, before, s.rank, s.block, v) && !judge_link(third, l, t.rank, t.block, v)) continue;
            v->detail = "by way of a third thread, " + v->detail;
            v->certainty = 23;
            return true;
        }
    }
    return false;
}

// One side held a lock, the other did not take it.
bool Checker::judge_one_sided_lock(const Conflict& c, Verdict* v) const {
    if (!c.t.owner || ids_of(c.slot.id).nic) return false;
    const SyncStore *theirs = witness.held(c.slot.id, c.slot.time, &v->lock),
                    *mine = witness.held(c.t.id, c.t.time, &v->lock);
    if ((theirs != nullptr) == (mine != nullptr)) return false;
    v->kind = "race";
    v->certainty = 45;
    v->signal = (theirs ? theirs : mine)->pc;
    v->detail = "one of the two holds a lock, and the other does not take it";
    v->remedy = "the same lock on both sides";
    v->how = "take";
    v->from = v->signal;
    v->to = theirs ? c.pc : c.slot.pc;
    return true;
}

// A wait that ended at once, because of a value of an earlier launch.
bool Checker::judge_stale(const ThreadCheck* reader, const Past& writer, Verdict* v) const {
    if (!reader) return false;
    for (const SyncLoad& l : witness.waits_of(reader->block)) {
        const SyncStore& s = l.seen;
        if (!s.pc || s.rank != writer.rank || !s.launch) continue;
        if (l.id != reader->id && !happens_before(l.id, l.time, reader->clock)) continue;
        if (s.launch >= writer.launch || l.launch <= 1) return false;
        v->kind = "race";
        v->certainty = 41;
        v->detail = "the wait was over with the value that launch " + std::to_string(s.launch) +
                    " stored; this is launch " + std::to_string(writer.launch);
        v->remedy =
            "an epoch: signal and wait for a value that grows with each launch (or clear the signal between them)";
        v->what = "wait for this launch's value";
        v->how = "at";
        v->to = l.pc;
        v->signal = s.pc;
        v->wait = l.pc;
        return true;
    }
    return false;
}

// The writer has waited for a credit, but one from before the read.
void Checker::judge_old_credit(const ThreadCheck& writer, uint64_t reader_block, Verdict* v) const {
    const std::vector<SyncLoad> data_waits = witness.waits_of(reader_block);
    if (data_waits.empty()) return;
    for (const SyncLoad& l : witness.waits_of(writer.block)) {
        if (!l.seen.pc || l.seen.block != reader_block || l.seen.kind == SyncKind::kNic) continue;
        if (l.id != writer.id && !happens_before(l.id, l.time, writer.clock)) continue;
        // Where the reader waits in this line for data, it is a credit only if it is given behind the read.
        const bool of_data = std::any_of(data_waits.begin(), data_waits.end(),
                                         [&](const SyncLoad& d) { return offset_of(d.pc) == offset_of(l.pc); });
        v->signal = l.seen.pc;
        v->wait = l.pc;
        v->how = of_data ? "credit_or_data" : "credit_old";
        v->detail = "the writer has waited for a credit, but that one was given before this read";
        v->certainty++;
        return;
    }
}

// Whether the thread has read, in the same statement, the place that it writes now.
bool Checker::has_just_read(const Conflict& c) const {
    constexpr uint32_t kOneStatement = 96;  // bytes of code between a read and its write
    const auto is_it = [&](const Slot& own) {
        return own.id == c.t.id && (own.bytes & c.bytes) && !(own.flags & kWrites) && c.pc - own.pc < kOneStatement;
    };
    if (c.cell.any_slot(is_it)) return true;
    if (!c.cell.more()) return false;
    const More& more = more_[c.cell.more() - 1];
    if (std::any_of(more.slots.begin(), more.slots.end(), is_it)) return true;
    bool found = false;
    for (const Crowd& crowd : more.crowds) crowd.for_each([&](const Slot& own) { return !(found = is_it(own)); });
    return found;
}

// Whether a thread has seen a store of this other thread of the block: they also synchronise by flags.
bool Checker::hand_over_by_flags(const ThreadCheck& t, uint32_t other, uintptr_t data) const {
    for (const SyncLoad& l : witness.waits_of(t.block))
        if (l.seen.pc && l.seen.block == t.block && !l.is_of(data) &&
            ((l.id == t.id && l.seen.id == other) || (l.id == other && l.seen.id == t.id)))
            return true;
    return false;
}

Checker::Verdict Checker::judge_threads(const Conflict& c) const {
    Verdict v;
    const ThreadCheck& t = c.t;
    const Slot& slot = c.slot;
    const Ids& theirs = ids_of(slot.id);
    const Past& past = past_of(slot.id, slot.time);
    const bool reads = !(c.flags & kWrites), they_read = !(slot.flags & kWrites);
    const size_t threads = past.dim.x * past.dim.y * past.dim.z;
    v.how = "between";
    v.from = slot.pc;
    v.to = c.pc;
    if (judge_hand_over(c, &v, false) || judge_one_sided_lock(c, &v)) return v;
    const bool writes_both = !reads && !they_read && c.pc == slot.pc;  // both read, add and write back in one line
    if (writes_both && has_just_read(c) && !sibling_ahead(t, running(slot.id, past.block))) {
        v.certainty = 50;
        v.how = "at";
        const uint32_t look = witness.looks_at(t.block, t.id, past.block, slot.id);
        if (look && witness.looks_at(past.block, slot.id, t.block, t.id)) {  // each at what the other one stores
            v.detail = kStoresAndLooks;
            v.remedy = kOneAtomicLock;
            v.what = "take such a lock instead of the look";
            v.to = look;
            return v;
        }
        v.remedy = "an atomic addition (atomicAdd, red_add): read, add and write back are three steps";
        v.what = "use an atomic read-modify-write";
        return v;
    }
    const bool by_flags = past.block == t.block && hand_over_by_flags(t, slot.id, c.address);
    const ThreadCheck* const there = past.block == t.block ? running(slot.id, past.block) : nullptr;
    if (there && !by_flags && t.met_by_number && there->met_by_number) {
        const bool reuse = they_read || (slot.flags & kAgain);
        if (reuse && !(reads && they_read)) v.kind = kReused;
        v.remedy = reuse ? kMeetAgain : "a barrier by number between the two, which both pass";
        v.how = reuse ? "named_again" : "named";
        v.what = "";
        v.from = they_read ? slot.pc : c.pc;
        v.to = they_read ? c.pc : slot.pc;
        v.certainty = 14;
        return v;
    }
    if (past.block == t.block && !by_flags) {
        const bool warp = slot.id / kWarpSize == t.id / kWarpSize;
        v.remedy = warp ? warp_barrier(threads) : kSyncthreads;
        v.what = warp ? "__syncwarp()" : "__syncthreads()";
        // A write to new memory is in the first round: there is no barrier at all between the two lines.
        const bool new_memory = reads ? !(slot.flags & kAgain) : !c.again;
        v.how = new_memory ? "between_two" : "around_two";
        v.certainty = (warp ? 10 : 12) + new_memory;
        return v;
    }
    const bool crosses = theirs.rank != t.rank || by_flags;
    if (judge_synchronisation(c, &v)) return v;
    const ThreadCheck* other = running(slot.id, past.block);
    if (they_read && judge_stale(other, past_of(t.id, t.time), &v)) return v;
    if (!they_read && reads && judge_stale(&t, past, &v)) return v;
    const ThreadCheck* newer = by_flags ? nullptr : sibling_ahead(t, other);
    uint32_t sibling = newer ? newer->id : slot.id;
    if (!other && !they_read &&
        !happens_before(slot.id, past.since, t.clock))  // the writer's block is gone: did any of its threads signal?
        for (uint32_t i = 0; i < threads; i++)
            if (happens_before(theirs.first + i, past.since, t.clock) &&
                (sibling == slot.id || (theirs.first + i) / kWarpSize == slot.id / kWarpSize))
                sibling = theirs.first + i;
    // What the reader has waited for last: a signal that the writer itself has sent, too early?
    bool own_signal = false;
    for (const SyncLoad* l : witness.loads_of(t.block)) {
        if (l->id != t.id || !l->seen.pc) continue;
        own_signal = reads && l->seen.id == slot.id && l->seen.block == past.block;
        break;
    }
    // A thread that writes where it has written before may have come here after the signal, and a round too early.
    if (sibling != slot.id && !own_signal && (they_read || !(slot.flags & kAgain))) {
        const bool warp = sibling / kWarpSize == slot.id / kWarpSize;
        v.certainty = warp ? 31 : 32;
        v.what = warp ? "__syncwarp()" : "__syncthreads()";
        v.to = signal_of(t.rank, &t, theirs.rank, 0);
        if (!they_read) {
            v.unsettled = {true, past.block, slot.id, slot.time, t.block, c.pc};
        }
        if (they_read) {
            v.remedy = warp ? kSyncwarpBeforeCredit : kSyncthreadsBeforeCredit;
            v.detail = kCreditOfSibling;
            v.how = "before_credit";
        } else {
            v.remedy = warp ? warp_barrier(threads) : kSyncthreads;
            v.detail =
                "another thread of the writer's block has signalled; its release covers the writer's work only after a "
                "barrier";
            // A whole warp at most: of more, the writer may be one.
            if (!warp && past.few && past.few <= kWarpSize && past.first_of_few / kWarpSize == sibling / kWarpSize) {
                v.remedy = kDivergentBarrier;
                v.detail += " of both, and at its last one met " + std::to_string(past.few) + " of " +
                            std::to_string(threads) + " threads";
            }
            if (!v.to) v.how = "after";
        }
        return v;
    }
    if (judge_hand_over(c, &v, true)) return v;
    const bool again = they_read ? c.again : (slot.flags & kAgain) != 0;
    if (they_read) {
        v.what = "";
        if (crosses && again) {
            v.kind = kReused;
            v.remedy = kCredit;
            v.certainty = 21;
            v.how = "credit";
            judge_old_credit(t, past.block, &v);
            return v;
        }
        v.certainty = 22;
        v.how = "wait";
        v.to = slot.pc;
        if (other && knows_of_block(*other, t)) {
            v.remedy = crosses ? "data before its signal, or credit before reuse" : kReleaseAcquire;
            v.detail = "the reader has acquired a signal of the writer, but an earlier one than this write";
            v.how = "";
            return v;
        }
        if (judge_waiting_sibling(other, slot.time, slot.pc, &v)) return v;
        if (!other && crosses)  // its block has ended
            for (const SyncLoad* l : witness.loads_of(past.block)) {
                if (l->id != slot.id || l->time > slot.time || l->seen.block != t.block || l->seen.id != t.id) continue;
                v.remedy = kDataFirst;
                v.detail = "the reader has waited for a signal of this thread, which it had sent before it wrote";
                v.how = "swap";
                v.from = l->seen.pc;
                v.to = c.pc;
                v.wait = l->pc;
                v.unsettled = {true, t.block, t.id, t.time, past.block, slot.pc};
                return v;
            }
        v.detail = "the reader has not waited for the writer, or only another thread of its block has";
        v.remedy = kWaitFirst;
        return v;
    }
    v.what = "";
    v.certainty = 20;
    v.how = "";
    if (!reads) {
        v.remedy = crosses ? "credit before reuse, or a place of its own for each writer"
                           : "a place of its own for each block (check the index), or release/acquire between them";
        v.how = "own";
    } else if (!happens_before(slot.id, past.since, t.clock)) {
        if (!again && judge_waiting_sibling(&t, t.time, c.pc, &v)) return v;
        v.remedy = kWait;
        v.certainty = again ? 20 : 22;
        v.how = "wait";
    } else if (crosses || own_signal) {
        v.kind = again ? kReused : "race";
        v.remedy = again ? kCredit : kDataFirst;
        v.certainty = again ? 21 : 23;
        v.detail =
            again ? "the writer has signalled before, and has written since: either it did not wait until the reader "
                    "was done, or the reader has not waited for this write"
                  : "the writer has signalled, and has written since";
        v.how = again ? "credit_late" : "swap";
        v.from = again ? slot.pc : signal_of(t.rank, &t, theirs.rank, 0, &v.wait);
        v.to = again ? c.pc : slot.pc;
        v.unsettled = {!again, past.block, slot.id, slot.time, t.block, c.pc};
        v.in_one_rank = !crosses;
    } else {
        v.remedy = kReleaseAcquire;
    }
    return v;
}

// ---- bulk copies by TMA -------------------------------------------------------------------------------------------

bool Checker::is_copy(const Record* r) { return r && r->kind >= NetKind::kBulkLoad; }

// Whether a thread, at this time of its own, was past its call of a bulk store that lane 0 posts.
bool Checker::after_own_call(const ThreadCheck& t, uint32_t call, uint32_t time) {
    return call && call <= t.stores_called && t.stores_called - call < std::size(t.called_at) &&
           time >= t.called_at[call % std::size(t.called_at)];
}

// A wait that ended at once.
bool Checker::judge_phase(const ThreadCheck& t, Verdict* v) const {
    if (!t.asked_again_pc) return false;
    v->kind = "read before arrival";
    v->detail = "that wait was over at once: its phase is that of an earlier round";
    v->remedy = "the phase of each round: tma_wait with 0 for the first, then 1, 0, 1, ...";
    v->what = "count the rounds for the phase";
    v->how = "at";
    v->to = t.asked_again_pc;
    v->certainty = 30;
    return true;
}

// At least one side is a bulk copy.
Checker::Verdict Checker::judge_copy(const Conflict& c, const Record* first, const Record* second) const {
    Verdict v;
    const bool came_first = is_copy(first);
    const Record& copy = came_first ? *first : *second;
    const bool load = copy.kind == NetKind::kBulkLoad;
    const bool writes = (came_first ? c.slot.flags : c.flags) & kWrites;
    const uint32_t copy_pc = came_first ? c.slot.pc : c.pc, other_pc = came_first ? c.pc : c.slot.pc;
    const uint32_t other_id = came_first ? c.t.id : c.slot.id;
    const bool other_is_thread = came_first ? c.t.owner != nullptr : !first;
    const Past& past = past_of(copy.poster_id, copy.poster_time);
    // If both are copies, the other one's block is its poster's.
    const Record* const other_copy = came_first ? second : first;
    const uint64_t other_block = is_copy(other_copy) ? past_of(other_copy->poster_id, other_copy->poster_time).block
                                 : came_first        ? c.t.block
                                                     : block_of(c.slot.id, c.slot.time);
    const ThreadCheck* other = !other_is_thread ? nullptr : came_first ? &c.t : running(other_id, other_block);
    const bool same_block = other_block == past.block;
    const bool warp = same_block && other_id / kWarpSize == copy.poster_id / kWarpSize;
    // Another lane has waited for the data before this load: it was still using that data.
    bool read_earlier_round = false;
    for (const Record* before = &copy; other && other_id != copy.poster_id && before-- != records_.data();)
        if (before->kind == copy.kind && c.address - before->to_begin < before->to_end - before->to_begin &&
            past_of(before->poster_id, before->poster_time).block == past.block)
            read_earlier_round |= happens_before(before->id, before->time + 1, other->clock);
    const bool knows =
        other && (other_id == copy.poster_id || happens_before(copy.poster_id, copy.poster_time, other->clock));
    v.certainty = 22;
    v.how = "between";
    v.from = copy_pc;
    v.to = other_pc;
    if (!same_block && other_id != copy.poster_id) {
        judge_far_copy(c, first, second, &v);
    } else if (copy.kind == NetKind::kAsyncCopy) {
        const ThreadCheck* poster = running(copy.poster_id, past.block);
        const bool waited = poster && happens_before(copy.id, copy.time + 1, poster->clock);
        const bool own = copy.poster_id == (is_copy(other_copy) ? other_copy->poster_id : other_id);
        if (!writes && came_first && (own || !waited)) {
            v.kind = "source reused";
            v.what = kCopyWait;
            v.remedy = std::string(kCopyWait) + " before the source of an asynchronous copy is written again";
        } else if (writes && (own || knows)) {
            v.kind = "read before arrival";
            v.what = own ? kCopyWait : std::string(kCopyWait) + ", then " + (warp ? "__syncwarp()" : "__syncthreads()");
            v.remedy = std::string("a wait that covers the copy (") + kCopyWait +
                       " for all of its thread's; cg::wait) before what it brings is used";
        } else {  // overwrites data that others read, or others use data that only one has waited for
            const bool too_early = !came_first || read_earlier_round;
            v.certainty = read_earlier_round ? 33 : came_first ? 32 : 12;
            v.remedy = warp ? warp_barrier(past.dim.x * past.dim.y * past.dim.z) : kSyncthreads;
            v.what = warp ? "__syncwarp()" : "__syncthreads()";
            v.how = too_early ? "around_two" : "between";
            v.from = too_early ? other_pc : poster && poster->waited_pc ? poster->waited_pc : copy_pc;
            v.to = too_early ? copy_pc : other_pc;
        }
    } else if (!writes && came_first) {
        v.kind = "source reused";
        v.what = load ? "tma_wait()" : "tma_wait_read()";
        v.remedy = load ? "tma_wait before the source of a bulk load is written again"
                        : "tma_wait_read before the source of a bulk store is written again";
    } else if (!load && !writes && other && warp &&
               after_own_call(*other, copy.call, c.slot.time)) {  // filled again before it was sent, by a lane ahead
        v.kind = "source reused";
        v.what = "tma_wait_read()";
        v.remedy = "tma_wait_read before the source of a bulk store is written again";
        v.certainty = 21;
    } else if (load && other && judge_phase(*other, &v)) {
        return v;
    } else if (!writes || (load && !came_first && (read_earlier_round || !knows))) {
        // Posted too early: the copy sends data that others are writing, or overwrites data that they still read.
        if (read_earlier_round) v.certainty = 24;
        v.remedy = warp ? "missing __syncwarp before the bulk copy (and tma_fence, if threads wrote there)"
                        : "missing __syncthreads before the bulk copy (and tma_fence, if threads wrote there)";
        v.what = warp ? "__syncwarp()" : "__syncthreads()";
        v.from = other_pc;
        v.to = copy_pc;
    } else if (load) {
        v.kind = "read before arrival";
        v.remedy = "tma_wait before what a bulk load brings is used";
        v.what = "tma_wait()";
    } else {
        v.kind = kOvertakes;
        v.remedy = kWaitWritten;
        v.what = "tma_wait_written<0>()";
    }
    return v;
}

// A bulk copy conflicts with another block, of this rank or another one.
void Checker::judge_far_copy(const Conflict& c, const Record* first, const Record* second, Verdict* v) const {
    // The thread responsible for an access: for a copy, its poster.
    const auto poster = [&](const Record& r) {
        return running(r.poster_id, past_of(r.poster_id, r.poster_time).block);
    };
    const ThreadCheck* const now = c.t.owner ? &c.t : is_copy(second) ? poster(*second) : nullptr;
    if (!(c.slot.flags & kWrites)) {  // another block overwrites data that was read, or is still being read
        v->kind = kReused;
        v->remedy = kCredit;
        v->how = "credit_late";
        v->from = c.pc;
        v->to = c.slot.pc;
        v->certainty = 21;
        return;
    }
    const ThreadCheck* const before = is_copy(first) ? poster(*first) : nullptr;
    // A store counts as its thread's own once the thread has waited for it, or the block has ended.
    const bool waited = !is_copy(first) || !before || happens_before(c.slot.id, c.slot.time, before->clock);
    if (waited) {
        if (now && judge_synchronisation({*now, c.bytes, c.flags, c.pc, c.slot, c.cell, c.again}, v)) return;
        const bool again = c.slot.flags & kAgain;
        v->kind = again ? kReused : "race";
        v->remedy = again ? kCredit : kWait;
        v->how = again ? "credit_late" : "wait";
        v->from = c.slot.pc;
        v->to = c.pc;
        v->certainty = again ? 21 : 22;
        return;
    }
    v->kind = kOvertakes;
    v->remedy = kWaitWritten;
    v->what = "tma_wait_written<0>()";
    v->certainty = 24;
    if (const uint32_t signal = now ? signal_of(now->rank, now, first->poster.rank, 0) : 0) v->to = signal;
}

// A bulk copy reads or overwrites an earlier write of a thread, but through another proxy.
void Checker::not_fenced(const Access& a, const Slot& slot) {
    const Side first = {slot.id, slot.time, slot.pc, slot.flags}, second = {a.t.id, a.t.time, a.pc, a.flags};
    Finding& finding = note(first, second);
    Verdict& v = finding.verdict;
    if (v.certainty >= 22) return;
    finding.where = describe_address(m_, a.address);
    report_as(finding, first, second);
    v.kind = "proxy fence";
    v.remedy = "tma_fence by each thread that wrote, before the barrier in front of the bulk copy";
    v.certainty = 22;
    v.what = "tma_fence()";
    v.how = "between";
    v.from = slot.pc;
    v.to = a.pc;
}

// ---- conflicts with an operation of a NIC on at least one side ----------------------------------------------------

// At least one side is an operation of a NIC.
Checker::Verdict Checker::judge_nic(const Conflict& c) const {
    Verdict v;
    const Slot& slot = c.slot;
    const Record* first = record_of(slot.id, slot.time);
    const Record* second = c.t.owner ? nullptr : record_of(c.t.id, c.t.time);
    v.from = slot.pc;
    v.to = c.pc;
    v.how = "between";
    if (first && (slot.flags & kWrites)) return judge_nic_wrote(c, *first);
    const bool knows_of_post = first && happens_before(first->poster_id, first->poster_time, c.t.clock);
    if (first && !c.again && !knows_of_post && judge_early_post(*first, c.t.id, c.t.block, c.pc, slot.pc, &v)) return v;
    if (first) {
        if (judge_synchronisation(c, &v)) return v;
        v.kind = "source reused";
        v.what = "a quiet";
        v.certainty = 22;
        if (!c.again && !knows_of_post && c.t.owner && c.t.rank == first->poster.rank) {  // it was not ready yet
            v.kind = "race";
            v.remedy = "release/acquire (or a barrier) between the block that writes the source and the post";
            v.how = "wait_post";
            v.from = c.pc;
            v.to = slot.pc;
            return v;
        }
        if (second && second->poster.rank != first->poster.rank) {  // sent on before it came, or again while it leaves
            v.kind = c.again ? kReused : "race";
            v.remedy = c.again ? kCredit
                       : first->kind == NetKind::kGet
                           ? "wait (acquire) for a signal that the data has come, before the get"
                           : "wait (acquire) for the data before it is sent on";
            v.how = c.again ? "credit_late" : "wait";
            v.from = c.pc;
            v.to = slot.pc;
        } else if (c.t.owner && c.t.rank != first->poster.rank) {  // another rank gets it, and its owner is too early
            v.remedy = knows_of_post ? "quiet between the get and the signal that it is done" : kCredit;
            v.to = knows_of_post ? signal_of(c.t.rank, &c.t, first->poster.rank, slot.pc) : slot.pc;
            v.from = knows_of_post ? slot.pc : c.pc;
            v.how = knows_of_post ? "between" : "credit_late";
        } else {
            v.remedy = first->signal && first->data
                           ? "quiet before reuse of the source (or wait for a credit from its receiver)"
                           : "quiet before reuse of the source";
        }
        return v;
    }
    if (c.flags & kWrites) return judge_nic_writes(c, *second);
    const uint64_t writer = past_of(slot.id, slot.time).block;
    if (judge_early_post(*second, slot.id, writer, slot.pc, c.pc, &v)) {
        if (slot.flags & kAgain) {  // or changed again too early
            v.certainty -= 6;
            v.how = "around_two";
        }
        return v;
    }
    v.remedy = "release/acquire or a barrier before the post";
    v.certainty = 20;
    v.how = "wait_post";
    return v;
}

// One thread posts data that another thread of its block writes.
bool Checker::judge_early_post(const Record& post, uint32_t writer, uint64_t block, uint32_t write_pc, uint32_t post_pc,
                               Verdict* v) const {
    const Past& past = past_of(post.poster_id, post.poster_time);
    if (block != past.block || writer == post.poster_id) return false;
    const bool warp = writer / kWarpSize == post.poster_id / kWarpSize;
    v->remedy = warp ? warp_barrier(past.dim.x * past.dim.y * past.dim.z) : kSyncthreads;
    v->detail = "the post sends what another thread of the block writes, and no barrier comes between them";
    v->certainty = warp ? 31 : 32;
    v->what = warp ? "__syncwarp()" : "__syncthreads()";
    v->how = "between";
    v->from = write_pc;
    v->to = post_pc;
    return true;
}

// The poster has a quiet or a fence behind this put, but for another peer or queue pair, or useless to the signal.
void Checker::judge_other_queue(const Record& put, Verdict* v) const {
    const NetOrder* o = witness.ordered_since(put.poster_id, put.poster_time);
    if (!o) return;
    const char* name = o->quiet ? "quiet" : "fence";
    const bool peer = o->target < 0 || o->target == put.target;
    if (peer && (o->queue_pair < 0 || o->queue_pair == put.queue_pair)) {
        v->detail = std::string("the ") + name + " between the two orders one queue pair, and the signal takes another";
        v->remedy = "the signal on the queue pair of its data, or a quiet between the two";
        v->what = "a quiet";
        return;
    }
    v->detail =
        std::string("the ") + name + " between the two is for " +
        (peer ? "queue pair " + std::to_string(o->queue_pair) + ", and this put is on queue pair " +
                    std::to_string(put.queue_pair)
              : "rank " + std::to_string(o->target) + ", and this put goes to rank " + std::to_string(put.target));
    v->remedy = std::string("a ") + name + " for the peer and the queue pair of the put, before the signal";
    v->what = std::string("name the ") + (peer ? "queue pair" : "rank") + " of the put";
    v->how = "at";
    v->to = o->pc;
}

// A thread or another operation accesses memory that a NIC has written.
Checker::Verdict Checker::judge_nic_wrote(const Conflict& c, const Record& first) const {
    Verdict v;
    const ThreadCheck& t = c.t;
    const Record* second = t.owner ? nullptr : record_of(t.id, t.time);
    const int reader_rank = second ? second->poster.rank : t.rank;
    v.from = c.slot.pc;
    v.to = c.pc;
    if (judge_synchronisation(c, &v)) return v;
    v.certainty = 22;
    if (first.kind == NetKind::kGet) {
        v.kind = "read before arrival";
        v.remedy = "quiet before what a get brings is read";
        v.what = "a quiet";
        v.how = "between";
        return v;
    }
    const bool after_post = happens_before(first.poster_id, first.poster_time, t.clock);
    if (second && (c.flags & kWrites)) {
        const bool same_line = c.pc == c.slot.pc && second->source == first.source;
        v.certainty = 21;
        if (second->number < first.number && second->source == first.source) std::swap(v.from, v.to);
        if (second->source != first.source) {
            v.remedy = "a place of its own for each sender, or credit before reuse";
            v.how = "own";
        } else if (same_line || (first.signal && second->signal)) {
            v.kind = kReused;
            v.remedy = kCredit;
            v.how = "credit_put";
        } else {
            v.remedy = "quiet or fence between the operations";
            v.what = "a quiet or fence";
            v.how = "between";
        }
        return v;
    }
    if (!second && (c.flags & kWrites) && !(c.slot.flags & kAgain) && !after_post) {
        v.remedy = "one writer for each place, or a wait: the NIC brings data where its owner writes too";
        v.how = "own_wait";
        return v;
    }
    if (second && second->source != first.source) {  // data that is forwarded
        v.remedy = "wait (acquire) for the data before it is sent on";
        v.how = "wait";
        return v;
    }
    const bool acquired_any =
        happens_before(first.poster_id, past_of(first.poster_id, first.poster_time).since, t.clock);
    const ThreadCheck* reader = t.owner ? &t : nullptr;
    if (after_post && !first.signal) {
        v.kind = kOvertakes;
        v.remedy = kQuiet;
        v.certainty = 24;
        v.what = "a quiet (or a fence)";
        v.to = signal_of(reader_rank, reader, first.source, c.slot.pc);
        v.how = "between";
        judge_other_queue(first, &v);
    } else if (after_post) {
        v.kind = kOvertakes;
        v.remedy = kEachSignal;
        v.how = "wait";
        v.certainty = 23;
    } else if (c.slot.flags & kAgain) {
        v.kind = kReused;
        v.remedy = kCredit;
        v.certainty = 21;
        v.how = "credit_late";
    } else if (judge_waiting_sibling(reader, t.time, c.pc, &v)) {
        return v;
    } else if (acquired_any && first.signal) {
        v.kind = kOvertakes;
        v.remedy = kEachSignal;
        v.how = "wait";
    } else if (acquired_any) {
        v.kind = kOvertakes;
        v.remedy = kDataFirst;
        v.certainty = 23;
        v.from = signal_of(reader_rank, reader, first.source, 0, &v.wait);
        v.to = c.slot.pc;
        v.how = "swap";
        v.unsettled = {
            true, past_of(first.poster_id, first.poster_time).block, first.poster_id, first.poster_time, t.block, c.pc};
    } else {
        v.remedy = kWaitFirst;
        v.how = "wait";
    }
    return v;
}

// A NIC writes to memory that a thread has accessed.
Checker::Verdict Checker::judge_nic_writes(const Conflict& c, const Record& second) const {
    Verdict v;
    const Slot& slot = c.slot;
    v.from = slot.pc;
    v.to = c.pc;
    const Past& past = past_of(slot.id, slot.time);
    const ThreadCheck* reader = running(slot.id, past.block);
    const bool of_block = past.block == past_of(second.poster_id, second.poster_time).block;
    if (second.kind == NetKind::kGet && of_block && reader && !(slot.flags & kWrites) &&
        !happens_before(second.poster_id, second.poster_time, reader->clock) && slot.id != second.poster_id) {
        const bool warp = second.poster_id / kWarpSize == slot.id / kWarpSize;
        v.kind = "read before arrival";
        v.remedy = "a barrier between the quiet of the thread that posts a get and the reads of others";
        v.certainty = warp ? 31 : 32;
        v.what = warp ? "__syncwarp() behind the quiet," : "__syncthreads() behind the quiet,";
        v.how = "between";
        v.from = c.pc;
        v.to = slot.pc;
        return v;
    }
    if (const ThreadCheck* sibling = sibling_ahead(c.t, reader)) {
        const bool warp = sibling->id / kWarpSize == slot.id / kWarpSize;
        const ThreadCheck* poster = running(second.poster_id, past_of(second.poster_id, second.poster_time).block);
        v.remedy = warp ? kSyncwarpBeforeCredit : kSyncthreadsBeforeCredit;
        v.detail = kCreditOfSibling;
        v.certainty = warp ? 31 : 32;
        v.what = warp ? "__syncwarp()" : "__syncthreads()";
        v.how = "before_credit";
        v.to = signal_of(second.poster.rank, poster, ids_of(slot.id).rank, 0);
        return v;
    }
    v.certainty = 21;
    if (slot.flags & kWrites) {
        v.remedy = "credit before reuse, or a barrier of all ranks: the owner writes there too";
        v.how = "own_wait";
        std::swap(v.from, v.to);
        return v;
    }
    if (second.kind == NetKind::kGet) {
        v.kind = "read before arrival";
        v.remedy = "quiet before what a get brings is read";
        v.certainty = 22;
        v.what = "a quiet";
        v.how = "between";
        v.from = c.pc;
        v.to = slot.pc;
        return v;
    }
    if (c.again) {
        v.kind = kReused;
        v.remedy = kCredit;
        v.how = "credit";
        const ThreadCheck* poster = running(second.poster_id, past_of(second.poster_id, second.poster_time).block);
        if (poster) judge_old_credit(*poster, past.block, &v);
        return v;
    }
    // Read before it was ever written: too early.
    const int rank = ids_of(slot.id).rank;
    const VectorClock& known = reader ? reader->clock : ranks_[rank].stream;
    const bool acquired_any =
        happens_before(second.poster_id, past_of(second.poster_id, second.poster_time).since, known);
    v.certainty = 22;
    v.to = slot.pc;
    if (happens_before(second.poster_id, second.poster_time, known) && !second.signal) {
        v.certainty = 24;
        v.kind = kOvertakes;
        v.remedy = kQuiet;
        v.from = c.pc;
        v.to = signal_of(rank, reader, second.source, c.pc);
        v.what = "a quiet (or a fence)";
        v.how = "between";
        judge_other_queue(second, &v);
    } else if (judge_waiting_sibling(reader, slot.time, slot.pc, &v)) {
        return v;
    } else if (acquired_any && second.signal) {
        v.kind = kOvertakes;
        v.remedy = kEachSignal;
        v.how = "wait";
    } else if (acquired_any) {
        v.certainty = 23;
        v.kind = kOvertakes;
        v.remedy = kDataFirst;
        v.from = signal_of(rank, reader, second.source, 0, &v.wait);
        v.to = c.pc;
        v.how = "swap";
        v.unsettled = {true,
                       past_of(second.poster_id, second.poster_time).block,
                       second.poster_id,
                       second.poster_time,
                       past.block,
                       slot.pc};
    } else {
        v.remedy = kWaitFirst;
        v.how = "wait";
    }
    return v;
}

}  // namespace epemu
