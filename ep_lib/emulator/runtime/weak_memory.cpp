// Chooses the write that a strong load returns and the place of a store (see weak_memory.hpp), and reports findings.
#include "weak_memory.hpp"

#include <string.h>

#include <algorithm>

#include "checker.hpp"
#include "checker_findings.hpp"

namespace epemu {
namespace {

constexpr size_t kDepth = 8;        // writes of a location that are kept
constexpr size_t kObservers = 32;   // of a write that are kept; with more, all threads count as knowing it
constexpr uint8_t kStaleLooks = 4;  // loads in a row that may miss the newest store
constexpr size_t kFlags = 8;        // flags that a thread has seen without synchronising, for findings
constexpr uint32_t kAnyOfThem = 0;  // all readable writes are equally likely

}  // namespace

// Each seed draws the frequency of older values, as it draws the roughness of its schedule.
WeakMemory::WeakMemory(uint64_t seed) : random_(seed ^ 0x7765616b6d656d00ull) {
    constexpr uint32_t kOneIn[] = {kAnyOfThem, kAnyOfThem, 3, 12};
    older_one_in_ = kOneIn[random_.below(std::size(kOneIn))];
}

uint32_t WeakMemory::choose(uint32_t n) {
    if (n < 2) return 0;
    if (!machine->schedule->is_random()) return machine->schedule->choose(Choice::kStore, n);
    if (older_one_in_ == kAnyOfThem) return random_.below(n);
    if (random_.below(older_one_in_)) return 0;
    return 1 + random_.below(n - 1);
}

// Null: this location has no history, or memory was changed without the history.
Checker::History* Checker::history_of(Location& l) {
    if (l.history && l.history->messages.back().value != read_raw(l.address, l.size)) l.history.reset();
    return l.history.get();
}

// Keeps the newest write as one of several readable ones. Returns the next write's place in coherence order.
size_t Checker::make_newest(Location& l) {
    if (l.size > 8) return 0;
    if (!history_of(l)) {
        if (is_unwritten(l.address, static_cast<size_t>(l.size))) return 0;
        l.history = std::make_unique<History>();
        l.history->messages.emplace_back();
        l.history->messages[0].value = read_raw(l.address, l.size);
        l.history->messages[0].was_there = true;
    }
    l.history->messages.back().write = l;
    return l.history->messages.size();
}

// Whether this write comes before the thread's next operation in causality order.
bool Checker::knows(const ThreadCheck& t, const Message& m) const {
    const auto before = [&](uint32_t id, uint32_t time) { return id == t.id || happens_before(id, time, t.clock); };
    if (m.was_there || before(m.id, m.time)) return true;
    return std::any_of(m.seen.begin(), m.seen.end(), [&](const auto& s) { return before(s.first, s.second); });
}

size_t Checker::newest_known(const ThreadCheck& t, const History& h) const {
    size_t i = h.messages.size() - 1;
    while (i > 0 && !knows(t, h.messages[i])) i--;
    return i;
}

// Chooses the write that a load returns.
size_t Checker::choose_message(Location& l, const ThreadCheck& t) {
    History& h = *l.history;
    const size_t newest = h.messages.size() - 1, oldest = newest_known(t, h);
    if (oldest == newest) return newest;
    uint8_t& looks = h.stale[t.id];
    const uint32_t back = looks < kStaleLooks ? weak->choose(static_cast<uint32_t>(newest - oldest + 1)) : 0;
    looks = back ? static_cast<uint8_t>(looks + 1) : uint8_t{0};
    return newest - back;
}

// Chooses a store's place in coherence order.
size_t Checker::choose_place(Location& l, const ThreadCheck& t) {
    const size_t end = make_newest(l);
    if (!end || l.address - weak->of(t.id, t.block).pair <= sizeof(uint64_t)) return end;
    const std::vector<Message>& all = l.history->messages;
    std::vector<size_t> places = {end};
    for (size_t i = end - 1, known = newest_known(t, *l.history); i > known; i--)
        if (!all[i].follows) places.push_back(i);
    return places[weak->choose(static_cast<uint32_t>(places.size()))];
}

// `updated`: the new value for an old one. If it leaves the value unchanged, the newest is read.
bool Checker::may_update_behind(Fiber* fiber, uintptr_t address, int size,
                                const std::function<uint64_t(uint64_t)>& updated, Behind* behind) {
    const ThreadCheck& t = *fiber->check;
    Location* l = is_on_stack(fiber, address) ? nullptr : known_location(t, address, size);
    if (!l || !history_of(*l)) return false;
    const size_t end = make_newest(*l);
    const std::vector<Message>& all = l->history->messages;
    std::vector<size_t> reads = {end - 1};
    for (size_t i = end - 1, known = newest_known(t, *l->history); i-- > known;)
        if (!all[i + 1].follows && updated(all[i].value) != all[i].value) reads.push_back(i);
    const uint32_t chosen = weak->choose(static_cast<uint32_t>(reads.size()));
    if (!chosen) return false;
    *behind = {all[reads[chosen]].value, reads[chosen]};
    return true;
}

// `w`: the write; the location itself if it is the newest. `value` is null if it is not known yet.
void Checker::written(Location& l, Write& w, size_t place, const uint64_t* value, const ThreadCheck& t, uint32_t time,
                      bool follows) {
    if (!value) l.history.reset();
    if (!l.history) return;
    std::vector<Message>& all = l.history->messages;
    Message m;
    m.value = l.size == 8 ? *value : *value & ((1ull << 8 * l.size) - 1);
    m.stamp = ++weak->writes;
    m.id = t.id;
    m.time = time;
    m.follows = follows;
    WeakMemory::Thread& of = weak->of(t.id, t.block);
    if (of.pair == l.address) of.pair_stamp = m.stamp;
    if (of.pair + sizeof(uint64_t) == l.address) m.pair_stamp = of.pair_stamp;
    if (place < all.size()) {
        m.write = w;
        stored_behind(l, place, t, w.store_pc);
    }
    all.insert(all.begin() + static_cast<ptrdiff_t>(place), std::move(m));
    if (all.size() > kDepth) all.erase(all.begin());
    of.store_pc = w.store_pc;
    of.stored = l.address;
}

const uint64_t Checker::kLater = 0;

uint64_t Checker::stored_now(Fiber* fiber, uintptr_t address, uint64_t value, int size) {
    Location* l = known_location(*fiber->check, address, size);
    if (!l || !l->history) return value;
    for (Message& m : l->history->messages)
        if (m.stamp == weak->writes) m.value = value;
    return l->history->messages.back().value;
}

void Checker::saw(Location& l, size_t message, const ThreadCheck& t) {
    Message& m = l.history->messages[message];
    if (knows(t, m)) return;
    m.seen.emplace_back(t.id, t.time);
    if (m.seen.size() > kObservers) {
        m.was_there = true;
        m.seen.clear();
    }
    if (!m.pair_stamp) return;
    Location* first = known_location(t, l.address - sizeof(uint64_t), l.size);
    if (!first || !first->history) return;
    const std::vector<Message>& all = first->history->messages;
    for (size_t i = 0; i < all.size(); i++)
        if (all[i].stamp == m.pair_stamp) return saw(*first, i, t);
}

void Checker::forget_histories() {
    if (!weak) return;
    for (auto& granule : locations_)
        for (Location& l : granule.second) l.history.reset();
}

// A fence.sc comes after earlier ones whose scopes include each other's threads.
void Checker::sc_fence(ThreadCheck& t, int scope) {
    constexpr uintptr_t kFences = 8;  // below all memory: a place that is equal in compared runs
    machine->schedule->touched(kFences, 1, Touch::kWrite);
    Known* const between[] = {&weak->sc_blocks[t.block], &weak->sc_ranks[t.rank], &weak->sc_everyone};
    for (int s = 0; s <= scope; s++) join(t, *between[s]);
    const Known covered = publish(t);
    for (int s = 0; s <= scope; s++) between[s]->join(covered);
}

// ---- possible consequences, in words --------------------------------------------------------------------------------
namespace {

constexpr int kSomeOrder = -3, kOwnStore = -2, kFlag = -1;  // certainty: any race at these lines is more informative

std::string remedy_of(const WeakMemory::Flag& f) {
    if (f.released && f.acquired)
        return "the flag's scope does not reach the other thread: release and acquire with gpu scope between blocks, "
               "sys "
               "between ranks";
    if (f.released)
        return "the load of the flag is relaxed: what follows it may be read before it; load it with acquire";
    if (f.acquired) return "the store of the flag is relaxed: the data may arrive after it; store it with release";
    return "the flag is relaxed: the data may arrive after it; store it with release, load it with acquire";
}

}  // namespace

void Checker::suspect(const Side& first, const Side& second, uintptr_t address, int certainty, std::string remedy,
                      uint32_t signal, uint32_t wait) {
    Finding& finding = note(first, second);
    Verdict& v = finding.verdict;
    if (finding.count > 1 && (strcmp(v.kind, kWeak) != 0 || v.certainty >= certainty)) return;
    v.kind = kWeak;
    v.certainty = certainty;
    v.remedy = std::move(remedy);
    v.signal = signal;
    v.wait = wait;
    finding.where = describe_address(m_, address);
    report_as(finding, first, second);
}

// Notes that a thread has read this message, whose write is `w`; if it is not the newest, reports the order that may be
// missing.
void Checker::noticed(const Location& l, const Write& w, size_t message, const ThreadCheck& t, int order, uint32_t pc) {
    const std::vector<Message>& all = l.history->messages;
    const Message& m = all[message];
    WeakMemory::Thread& of = weak->of(t.id, t.block);
    const auto write_of = [&](size_t i) -> const Write& { return i + 1 == all.size() ? l : all[i].write; };
    const Side load = {t.id, t.time, pc, kAtomic};
    for (size_t i = all.size() - 1; i > message; i--) {
        const Message& missed = all[i];
        if (missed.was_there || missed.id == t.id) continue;
        const Side store = {missed.id, missed.time, write_of(i).store_pc, kWrites | kAtomic};
        const auto flag = std::find_if(of.flags.begin(), of.flags.end(), [&](const WeakMemory::Flag& f) {
            return f.writer == missed.id && f.stamp > missed.stamp;
        });
        if (flag != of.flags.end()) {
            const bool in_one_load = flag->load_pc == pc && witness.loads_pair(pc);
            suspect(store, load, l.address, kFlag, in_one_load ? kOneStore : remedy_of(*flag), flag->store_pc,
                    flag->load_pc);
        } else if (of.store_pc && of.stored != l.address) {
            suspect(store, load, l.address, kOwnStore,
                    "a thread's own store may arrive after its next load: a fence.sc (__threadfence_system() between "
                    "ranks, "
                    "__threadfence() on one GPU) between the two, on both sides",
                    of.store_pc, pc);
        } else {
            suspect(store, load, l.address, kSomeOrder,
                    "the load may return an older value, as nothing orders the store before it: release and acquire", 0,
                    0);
        }
        break;
    }
    if (m.was_there || m.id == t.id || happens_before(m.id, m.time, t.clock)) return;
    if (of.flags.size() == kFlags) of.flags.erase(of.flags.begin());
    of.flags.push_back({m.id, w.store_pc, pc, m.stamp, w.any_release, acquires(order)});
}

void Checker::stored_behind(const Location& l, size_t place, const ThreadCheck& t, uint32_t pc) {
    const std::vector<Message>& all = l.history->messages;
    const Write& later = place + 1 == all.size() ? l : all[place].write;
    suspect({all[place].id, all[place].time, later.store_pc, kWrites | kAtomic}, {t.id, t.time, pc, kWrites | kAtomic},
            l.address, kSomeOrder,
            "nothing orders the two stores, so either may be the last: release and acquire between them, or one thread "
            "that "
            "stores",
            0, 0);
}

}  // namespace epemu
