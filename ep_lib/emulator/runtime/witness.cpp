#include "witness.hpp"

#include <algorithm>

#include "checker.hpp"
#include "machine.hpp"

namespace epemu {
namespace {

constexpr size_t kOldValues = 4;
constexpr size_t kFinished = 256;  // ended blocks whose stores are kept
constexpr size_t kNetOrders = 64;
constexpr size_t kSections = 16;
constexpr size_t kKept = 24;  // loads and stores of a block: one per line, so few are enough

int64_t launch_of(const Fiber& f) { return f.block->launch->ticket; }

}  // namespace

Witness::BlockLog& Witness::log_of(uint64_t block) {
    if (!last_log_ || last_block_ != block) {
        last_log_ = &blocks_[block];
        last_block_ = block;
    }
    return *last_log_;
}

void Witness::load(const Fiber& f, uintptr_t address, int size, int order, int scope, uint32_t pc, bool newest) {
    auto& loads = log_of(f.block->id).loads;
    ThreadCheck& t = *f.check;
    t.just_added = 0;
    if (t.details & kOfPair) pairs_.insert(pc);
    const auto location = locations_.find(address);
    SyncStore* last = !newest || location == locations_.end() ? nullptr : &location->second.last;
    if (last) last->looked |= last->id != t.id || last->block != t.block;
    const auto is_same = [&](const SyncLoad& l) { return l.id == t.id && l.pc == pc && l.address == address; };
    const auto before = std::find_if(loads.rbegin(), loads.rend(), is_same);  // a polling loop finds itself at once
    if (before != loads.rend()) {
        if (std::none_of(loads.rbegin(), before, [&](const SyncLoad& l) { return l.id == t.id; })) again_.insert(pc);
        const bool unchanged = last ? before->seen.pc == last->pc && before->seen.time == last->time : !before->seen.pc;
        if (unchanged && before->time == t.time) {
            polls_.insert(pc);
            before->fence = FenceSeen();
            if (before == loads.rbegin()) return;
        }
        loads.erase(std::next(before).base());
    } else if (loads.size() == kKept) {
        loads.pop_front();
    }
    SyncLoad look;
    look.address = address;
    look.size = size;
    look.id = t.id;
    look.time = t.time;
    look.pc = pc;
    look.launch = launch_of(f);
    look.order = order;
    look.scope = scope;
    if (last) look.seen = *last;
    if (last && last->pc) looked(look, loads);
    loads.push_back(std::move(look));
}

void Witness::looked(const SyncLoad& look, const std::deque<SyncLoad>& earlier) {
    const auto first = std::find_if(earlier.rbegin(), earlier.rend(),
                                    [&](const SyncLoad& l) { return l.id == look.id && l.address == look.address; });
    if (first == earlier.rend() || first->pc == look.pc || first->seen.pc != look.seen.pc ||
        first->seen.time != look.seen.time)
        return;
    Section s = {look.address, first->pc, look.pc, {}};
    for (auto l = earlier.rbegin(); l != first; ++l)
        if (l->id == look.id && !l->updates) s.words.push_back(*l);
    if (s.words.size() < 2) return;
    if (sections_.size() == kSections) sections_.pop_front();
    sections_.push_back(std::move(s));
}

const SyncStore* Witness::last_of(uintptr_t address, const ThreadCheck& t) const {
    const SyncStore* last = last_store(address);
    return last && last->id == t.id && last->block == t.block ? last : nullptr;
}

// Whether the store comes behind the other one of its thread, as a release or with a fence between the two.
static bool published(const SyncStore& store, const SyncStore& other) {
    const auto between = [&](const FenceSeen& f) { return f.pc && f.time >= other.time; };
    return store.time > other.time &&
           (releases(store.order) || std::any_of(std::begin(store.fences), std::end(store.fences), between));
}

const SyncLoad* Witness::half_marked(const ThreadCheck& t, uintptr_t address, Section* section) {
    const SyncStore* before = sections_.empty() ? nullptr : last_of(address, t);
    if (!before) return nullptr;
    for (auto s = sections_.begin(); s != sections_.end(); ++s) {
        const SyncStore* mark = last_of(s->mark, t);
        if (!mark || mark->time < before->time || locations_.at(s->mark).before > before->time) continue;
        size_t others = 0;
        const SyncLoad* read = nullptr;
        for (const SyncLoad& word : s->words) {
            if (word.address == address) read = &word;
            const SyncStore* other = word.address == address ? nullptr : last_of(word.address, t);
            if (other) others = published(*mark, *other) ? others + 1 : s->words.size();
        }
        if (!read || !others || others >= s->words.size() || happens_before(read->id, read->time, t.clock)) continue;
        *section = std::move(*s);
        sections_.erase(s);
        return &*std::find_if(section->words.begin(), section->words.end(),
                              [&](const SyncLoad& word) { return word.address == address; });
    }
    return nullptr;
}

SyncStore Witness::by(const Fiber& f, uintptr_t address, int order, int scope, uint32_t pc) {
    const ThreadCheck& t = *f.check;
    SyncStore s;
    s.address = address;
    s.id = t.id;
    s.time = t.time;
    s.pc = pc;
    s.rank = t.rank;
    s.block = t.block;
    s.launch = launch_of(f);
    s.order = order;
    s.scope = scope;
    s.known = t.clock;
    return s;
}

void Witness::log(const SyncStore& s) {
    auto& stores = log_of(s.block).stores;
    const auto is_same = [&](const SyncStore& o) { return o.id == s.id && o.pc == s.pc && o.address == s.address; };
    const auto same = std::find_if(stores.begin(), stores.end(), is_same);
    if (same != stores.end()) {
        stores.erase(same);
    } else if (stores.size() == kKept) {
        stores.pop_front();
    }
    stores.push_back(s);
}

void Witness::stored(const Fiber& f, uintptr_t address, int size, int order, int scope, uint32_t pc, SyncKind kind) {
    SyncStore s = by(f, address, order, scope, pc);
    s.kind = kind;
    f.check->just_added = 0;
    if (const auto it = fences_.find(s.id); it != fences_.end()) std::copy_n(it->second, 3, s.fences);
    Location& l = locations_[address];
    if (kind == SyncKind::kAdd) {
        for (const SyncLoad& look : log_of(s.block).loads)
            s.gives_turn |= look.used && look.id == s.id && look.address == address && look.pc != pc;
        l.counts |= !s.gives_turn;
        s.gives_turn = s.gives_turn && !l.counts;
        if (s.gives_turn) l.takers.insert(s.id);
    } else {
        const auto& looks = log_of(s.block).loads;
        const auto look = std::find_if(looks.rbegin(), looks.rend(), [&](const SyncLoad& a) { return a.id == s.id; });
        if (look != looks.rend() && look->address == address) s.turn = look->pc;
    }
    gave_back_ = l.taken.pc && l.taken.id == s.id && l.taken.block == s.block;
    if (gave_back_) {
        if (l.holds.size() == kKept) l.holds.pop_front();
        l.holds.emplace_back(l.taken, s.time);
        l.taken = SyncStore();
    }
    if (l.last.pc) l.overwritten(s, read_raw(address, std::min(size, 8)), kind == SyncKind::kAdd);
    log(s);
    l.before = l.last.id == s.id && l.last.block == s.block ? l.last.time : 0;
    l.last = std::move(s);
}

// `value` of `last` is now overwritten.
void Witness::Location::overwritten(const SyncStore& by, uint64_t value, bool adds) {
    if (!old.empty() && old.back().value == value) old.pop_back();  // an addition of 0: a poll
    if (old.size() == kOldValues) old.pop_front();
    old.push_back({value, by.pc});
    if (lost.over.is(last)) lost.made = value;
    if (last.looked || adds || !value) return;
    lost = {value, 0, {last.id, last.time, last.pc}, {by.id, by.time, by.pc}};
}

void Witness::posted(const Fiber& f, uintptr_t signal, uint32_t pc) {
    log(by(f, signal, EPEMU_RELEASE, EPEMU_SCOPE_SYSTEM, pc));
}

void Witness::store(const Fiber& f, uintptr_t address, int size, int order, int scope, uint32_t pc) {
    stored(f, address, size, order, scope, pc, SyncKind::kStore);
}

void Witness::update(const Fiber& f, uintptr_t address, int size, int order, int scope, uint32_t pc, bool changes) {
    const bool completes = f.check->just_added == address;  // the last arrival at a barrier begins its next round
    load(f, address, size, order, scope, pc);
    if (auto& loads = log_of(f.block->id).loads; !loads.empty()) loads.back().updates = true;
    stored(f, address, size, order, scope, pc, SyncKind::kAdd);
    if (!changes || completes) return;
    f.check->just_added = address;
    Location& l = locations_[address];
    Added& added = l.added[l.last.id];
    added = {added.times + 1, {l.last.id, l.last.time, pc}};
}

void Witness::uses(const Fiber& f, uintptr_t address, bool used) {
    auto& loads = log_of(f.block->id).loads;
    const auto is_it = [&](const SyncLoad& l) { return l.id == f.check->id && l.address == address && l.updates; };
    if (const auto l = std::find_if(loads.rbegin(), loads.rend(), is_it); l != loads.rend()) l->used = used;
    if (const auto l = locations_.find(address); l != locations_.end() && l->second.taken.id == f.check->id)
        l->second.taken.ignored = !used;
}

void Witness::swapped(const Fiber& f, uintptr_t address) {
    Location& l = locations_[address];
    auto& loads = log_of(f.block->id).loads;
    l.last.kind = log_of(f.block->id).stores.back().kind = SyncKind::kSwap;
    l.added.erase(l.last.id);
    if (gave_back_) return;
    if (l.taken.pc) l.exclusive = false;
    if (l.exclusive) l.last.caller = static_cast<uint32_t>(caller_in_kernel());
    l.taken = l.last;
    l.takers.insert(l.last.id);
    if (!loads.empty()) loads.back().swap = true;
}

void Witness::fence(const Fiber& f, int order, int scope, uint32_t pc, uint32_t time) {
    ThreadCheck& t = *f.check;
    t.just_added = 0;
    const FenceSeen fence = {pc, time, scope, t.clock};
    if (order != EPEMU_ACQUIRE) fences_[t.id][scope] = fence;
    if (order == EPEMU_RELEASE) return;
    for (SyncLoad& l : log_of(f.block->id).loads)
        if (l.id == t.id && l.fence.scope < scope) l.fence = fence;
}

void Witness::net_ordered(const Fiber& f, uint32_t pc, int target, int queue_pair, bool quiet) {
    if (net_orders_.size() == kNetOrders) net_orders_.pop_front();
    net_orders_.push_back({f.check->id, f.check->time, pc, target, queue_pair, quiet, f.block->id});
}

const NetOrder* Witness::ordered_since(uint32_t id, uint32_t time) const {
    const auto it = std::find_if(net_orders_.begin(), net_orders_.end(),
                                 [&](const NetOrder& o) { return o.id == id && o.time > time; });
    return it == net_orders_.end() ? nullptr : &*it;
}

const NetOrder* Witness::ordered_beside(const ThreadCheck& t, int target, int queue_pair) const {
    const auto it = std::find_if(net_orders_.rbegin(), net_orders_.rend(), [&](const NetOrder& o) {
        return o.block == t.block && o.id != t.id && o.covers(target, queue_pair) &&
               !happens_before(o.id, o.time, t.clock);
    });
    return it == net_orders_.rend() ? nullptr : &*it;
}

void Witness::nic_stored(const ThreadCheck& op, int rank, uintptr_t address, int size, uint32_t pc, bool adds) {
    SyncStore s;
    s.id = op.id;
    s.time = op.time;
    s.pc = pc;
    s.rank = rank;
    s.block = op.block;
    s.kind = SyncKind::kNic;
    s.order = EPEMU_RELEASE;
    s.scope = EPEMU_SCOPE_SYSTEM;
    s.known = op.clock;
    Location& l = locations_[address];
    if (l.last.pc) l.overwritten(s, read_raw(address, size), adds);
    l.last = std::move(s);
}

void Witness::finished(uint64_t block) {
    last_log_ = nullptr;
    const auto it = blocks_.find(block);
    if (it == blocks_.end()) return;
    if (it->second.stores.empty() && it->second.loads.empty()) {
        blocks_.erase(it);
        return;
    }
    finished_.push_back(block);  // later findings may need its loads and stores
    if (finished_.size() <= kFinished) return;
    blocks_.erase(finished_.front());
    finished_.pop_front();
}

std::vector<const SyncLoad*> Witness::loads_of(uint64_t block) const {
    std::vector<const SyncLoad*> all;
    if (const auto it = blocks_.find(block); it != blocks_.end())
        for (auto l = it->second.loads.rbegin(); l != it->second.loads.rend(); ++l) all.push_back(&*l);
    return all;
}

std::vector<SyncLoad> Witness::waits_of(uint64_t block) const {
    std::vector<SyncLoad> waits;
    for (const SyncLoad* l : loads_of(block)) {
        const auto follows = [&](const SyncLoad& w) { return w.id == l->id && w.address == l->address && !w.updates; };
        const auto wait = std::find_if(waits.begin(), waits.end(), follows);
        if (!l->updates || (wait == waits.end() && l->used)) {
            waits.push_back(*l);
        } else if (wait != waits.end()) {
            SyncLoad by_wait = *wait;
            by_wait.seen = l->seen;
            waits.push_back(std::move(by_wait));
        }
    }
    return waits;
}

uint32_t Witness::looks_at(uint64_t block, uint32_t id, uint64_t other_block, uint32_t other) const {
    const auto it = blocks_.find(other_block);
    if (it == blocks_.end()) return 0;
    for (const SyncLoad& l : waits_of(block))
        for (const SyncStore& s : it->second.stores)
            if (l.id == id && s.id == other && l.is_of(s.address)) return l.pc;
    return 0;
}

std::pair<const SyncLoad*, const SyncLoad*> Witness::looked_alike(uint64_t block, uint32_t id, uint64_t other_block,
                                                                  uint32_t other, uintptr_t data) const {
    const auto theirs = loads_of(other_block);
    for (const SyncLoad* l : loads_of(block)) {
        const auto location = locations_.find(l->address);
        const bool counts = location != locations_.end() && location->second.counts;  // those who come to a barrier
        if (l->id != id || l->updates || counts || l->is_of(data)) continue;
        for (const SyncLoad* o : theirs)
            if (o->id == other && o->pc == l->pc && o->address == l->address && o->seen.id == l->seen.id &&
                o->seen.time == l->seen.time && o->seen.pc == l->seen.pc)
                return {l, o};
    }
    return {};
}

const SyncStore* Witness::store_at(uint64_t block, uintptr_t address, uint32_t id, uint32_t since) const {
    const auto it = blocks_.find(block);
    if (it == blocks_.end()) return nullptr;
    for (const SyncStore& s : it->second.stores)
        if (s.address == address && (id == UINT32_MAX || (s.id == id && s.time >= since && s.kind != SyncKind::kSwap)))
            return &s;
    return nullptr;
}

bool Witness::stores_to(uint64_t block, uint32_t id, uintptr_t address) const {
    const auto it = blocks_.find(block);
    return it != blocks_.end() && std::any_of(it->second.stores.begin(), it->second.stores.end(),
                                              [&](const SyncStore& s) { return s.id == id && s.address == address; });
}

bool Witness::have_met(uint64_t block, uint64_t other) const {
    const auto came_through = [&](uint64_t b, auto&& met) {
        const auto it = blocks_.find(b);
        if (it == blocks_.end()) return false;
        for (const SyncStore& s : it->second.stores)
            for (const SyncLoad& l : it->second.loads)
                if (s.kind == SyncKind::kAdd && !s.gives_turn && !l.updates && l.id == s.id && l.time >= s.time &&
                    l.address == s.address && met(s.address))
                    return true;
        return false;
    };
    return came_through(
        block, [&](uintptr_t place) { return came_through(other, [&](uintptr_t theirs) { return theirs == place; }); });
}

const SyncStore* Witness::last_store(uintptr_t address) const {
    const auto it = locations_.find(address);
    return it == locations_.end() || !it->second.last.pc ? nullptr : &it->second.last;
}

const SyncStore* Witness::holder(uintptr_t address) const {
    const auto it = locations_.find(address);
    return it == locations_.end() || !it->second.taken.pc || it->second.taken.ignored || !it->second.exclusive
               ? nullptr
               : &it->second.taken;
}

std::vector<OldValue> Witness::old_values(uintptr_t address) const {
    const auto it = locations_.find(address);
    return it == locations_.end() ? std::vector<OldValue>()
                                  : std::vector<OldValue>(it->second.old.begin(), it->second.old.end());
}

const std::unordered_map<uint32_t, Added>* Witness::added(uintptr_t address) const {
    const auto it = locations_.find(address);
    return it == locations_.end() ? nullptr : &it->second.added;
}

Lost Witness::lost(uintptr_t address, int size) const {
    const auto it = locations_.find(address);
    if (it == locations_.end()) return {};
    Lost lost = it->second.lost;
    if (lost.over.is(it->second.last)) lost.made = read_raw(address, size);
    return lost;
}

bool Witness::is_lock(uintptr_t address, uint32_t id) const {
    const auto it = locations_.find(address);
    return it != locations_.end() && it->second.exclusive && it->second.takers.count(id) != 0;
}

bool Witness::is_exclusive(uintptr_t address) const {
    const auto it = locations_.find(address);
    return it == locations_.end() || it->second.exclusive;
}

const SyncStore* Witness::held(uint32_t id, uint32_t time, uintptr_t* lock) const {
    for (const auto& [address, l] : locations_) {
        if (!l.exclusive || l.holds.empty()) continue;  // a lock that was never released may be a signal
        const SyncStore* found = l.taken.pc && l.taken.id == id && l.taken.time <= time ? &l.taken : nullptr;
        for (const auto& [taken, until] : l.holds)
            if (taken.id == id && taken.time <= time && time <= until) found = &taken;
        if (!found || found->ignored) continue;
        *lock = address;
        return found;
    }
    return nullptr;
}

template <class Each>
void Witness::each_since(uint64_t block, uint32_t id, uint32_t time, const Each& each) const {
    const auto it = blocks_.find(block);
    if (it == blocks_.end()) return;
    for (const SyncStore& s : it->second.stores)
        if ((s.id == id ? s.time >= time : happens_before(id, time, s.known)) && !each(s)) return;
}

uint32_t Witness::signalled_since(uint64_t block, uint32_t id, uint32_t time, uint32_t but) const {
    uint32_t pc = 0;
    each_since(block, id, time, [&](const SyncStore& s) {
        if (s.pc != but) pc = s.pc;
        return !pc;
    });
    return pc;
}

void Witness::signalled_to(uint64_t reader_block, uint64_t block, uint32_t id, uint32_t time, uint32_t* signal,
                           uint32_t* wait) const {
    const std::vector<SyncLoad> waits = waits_of(reader_block);
    each_since(block, id, time, [&](const SyncStore& s) {
        const auto l = std::find_if(waits.begin(), waits.end(), [&](const SyncLoad& w) { return w.is_of(s.address); });
        if (l == waits.end()) return true;
        *signal = s.pc;
        *wait = l->pc;
        return false;
    });
}

}  // namespace epemu
