// Which run is next. exhaustive.cpp makes the run.
#include "exploration.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <sstream>

#include "machine.hpp"

namespace epemu {
namespace {

bool conflict(Touch a, Touch b) { return a != b || a == Touch::kWrite; }

// Whether two events of one run touch the same memory.
bool meet(const std::vector<Exploration::Touched>& a, const std::vector<Exploration::Touched>& b) {
    for (const auto& x : a)
        for (const auto& y : b)
            if (x.begin < y.end && y.begin < x.end && conflict(x.how, y.how)) return true;
    return false;
}

// The same for events of different runs.
bool conflict(const std::vector<Exploration::Touched>& a, const std::vector<Exploration::Touched>& b) {
    for (const auto& x : a)
        for (const auto& y : b)
            if (x.place < y.place + y.length && y.place < x.place + x.length && conflict(x.how, y.how)) return true;
    return false;
}

// Adds those that are new.
void add_new(std::vector<Exploration::Touched>& known, const std::vector<Exploration::Touched>& more) {
    for (const auto& one : more) {
        const bool is_known = std::any_of(known.begin(), known.end(), [&](const auto& other) {
            return other.place == one.place && other.length == one.length && other.how == one.how;
        });
        if (!is_known) known.push_back(one);
    }
}

void join(std::vector<int>& clock, const std::vector<int>& other) {
    for (size_t i = 0; i < clock.size(); i++) clock[i] = std::max(clock[i], other[i]);
}

bool contains(const std::vector<int>& all, int one) { return std::find(all.begin(), all.end(), one) != all.end(); }

}  // namespace

void Exploration::begin() {
    events_.clear();
    made_.clear();
    decisions_ = 0;
    data_ = 0;
    launched_ = 0;
    inverse_ = 1;
    status.outcome = kWhole;
}

void Exploration::host_did(uint64_t what) { launched_ = mix(launched_, what); }

// Whether this event, the last of the run so far, equals that of earlier runs here.
bool Exploration::is_as_before(size_t event) {
    if (follows_ || event >= nodes_.size() || event >= events_.size()) return true;
    Node& node = nodes_[event];
    const uint64_t now = events_[event].read | 1;
    const uint64_t known = std::exchange(node.read, now);
    if (!known || known == now) return true;
    strayed = "what step " + std::to_string(event + 1) + " read was not the same";
    status.outcome = kStrayed;
    return false;
}

int Exploration::process_of(const Key& key) {
    const auto [at, is_new] = ids_.try_emplace(key, static_cast<int>(keys_.size()));
    if (is_new) keys_.push_back(key);
    return at->second;
}

bool Exploration::sleeps(const Node& node, int process) const {
    return std::any_of(node.sleep.begin(), node.sleep.end(), [&](const Asleep& s) { return s.process == process; });
}

// The preemptions of this choice: 1 if the running thread could continue and another one runs.
int64_t Exploration::cost(const Node& node, int process) const {
    return keys_[process][0] == 0 && node.last_thread >= 0 && process != node.last_thread &&
           contains(node.enabled, node.last_thread);
}

// An operation of a NIC may come earlier without one more preemption; a thread may not.
bool Exploration::may_sleep(int process) const {
    return bounds.reduction == kSleeping || (bounds.reduction == kWithinBound && keys_[process][0] != 0);
}

bool Exploration::is_within_bound(const Node& node, int process) const {
    return bounds.preemptions < 0 || node.preemptions + cost(node, process) <= bounds.preemptions;
}

int Exploration::pick(const std::vector<int>& enabled, int last_thread) {
    const size_t depth = events_.size();
    const uint64_t launched = std::exchange(launched_, 0) | 1;
    if (depth && !is_as_before(depth - 1)) return -1;
    if (depth >= bounds.events) {
        status.outcome = kCut;
        return -1;
    }
    size_t index = 0;
    if (follows_) {
        if (draws_) {
            index = drawn(enabled.size());
        } else if (enabled.size() > 1) {
            const auto at = script_.find(decisions_);
            if (at != script_.end()) index = std::min<size_t>(at->second, enabled.size() - 1);
        }
    } else if (depth < nodes_.size()) {
        const Node& node = nodes_[depth];
        if (node.enabled != enabled) {
            strayed = "what could happen after " + std::to_string(depth) + " steps was not the same";
            status.outcome = kStrayed;
            return -1;
        }
        if (node.launched != launched) {
            strayed = "what was launched before step " + std::to_string(depth + 1) + " was not the same";
            status.outcome = kStrayed;
            return -1;
        }
        index = static_cast<size_t>(std::find(enabled.begin(), enabled.end(), node.chosen) - enabled.begin());
    } else {
        Node node;
        node.enabled = enabled;
        node.last_thread = last_thread;
        node.preemptions = 0;
        node.launched = launched;
        if (bounds.reduction == kNone) node.todo = enabled;
        if (depth && bounds.reduction != kNone) {
            const Node& before = nodes_[depth - 1];
            node.preemptions = before.preemptions + cost(before, before.chosen);
            node.sleep = still_asleep(depth - 1);
        }
        for (; index < enabled.size(); index++) {
            if (sleeps(node, enabled[index])) continue;
            if (is_within_bound(node, enabled[index])) break;
            status.skipped++;
        }
        if (index == enabled.size()) {
            status.outcome = kRedundant;
            return -1;
        }
        node.chosen = enabled[index];
        add(node, node.chosen);
        nodes_.push_back(std::move(node));
    }
    if (enabled.size() > 1) {
        if (index) made_.emplace_back(decisions_, static_cast<uint32_t>(index));
        decisions_++;
    }
    events_.emplace_back();
    events_.back().process = enabled[index];
    events_.back().launched = launched;
    data_ = 0;
    return enabled[index];
}

bool Exploration::is_calm(const std::string& kernel) {
    const std::string name = kernel.substr(0, kernel.find('<'));
    launched.insert(name);
    return !only.empty() && !only.count(name);
}

uint32_t Exploration::choose(uint32_t options) {
    if (options <= 1 || events_.empty()) return 0;
    uint32_t value = 0;
    if (draws_) {
        value = drawn(options);
    } else if (follows_) {
        const auto at = script_.find(decisions_);
        if (at != script_.end()) value = std::min(at->second, options - 1);
    } else if (events_.back().is_calm) {
        status.calm++;
    } else {
        Node& node = nodes_[events_.size() - 1];
        if (data_ == node.data.size()) node.data.push_back({options, 0});
        if (node.data[data_].options != options) {
            strayed = "a choice after " + std::to_string(events_.size()) + " steps had not as many options";
            status.outcome = kStrayed;
            return 0;
        }
        value = node.data[data_++].value;
    }
    if (value) made_.emplace_back(decisions_, value);
    decisions_++;
    return value;
}

// Removes an event: it was a poll that found nothing new.
void Exploration::forget(int number) {
    Event& event = events_[number];
    event.looks.insert(event.looks.end(), event.touches.begin(), event.touches.end());
    event.touches.clear();
    event.woken_by = -1;
}

// This event has changed nothing, so processes that sleep before it sleep behind it too.
void Exploration::sleep_again(int number) {
    if (follows_ || bounds.reduction == kNone) return;
    for (auto place = static_cast<size_t>(number); place + 1 < nodes_.size() && place < events_.size(); place++)
        if (place + 1 >= floor_) nodes_[place + 1].sleep = still_asleep(place);
}

// The processes that slept at a place, or were explored there, and that this event does not wake.
std::vector<Exploration::Asleep> Exploration::still_asleep(size_t place) const {
    std::vector<Asleep> still;
    const Node& node = nodes_[place];
    for (const auto* list : {&node.sleep, &node.done})
        for (const Asleep& s : *list)
            if (s.process != node.chosen && may_sleep(s.process) && !conflict(s.touches, events_[place].touches))
                still.push_back(s);
    return still;
}

// Computes the happens-before order of this run, and its races: pairs that no other event orders.
void Exploration::compute_clocks() {
    const size_t n = events_.size(), processes = keys_.size();
    clocks_.resize(n);
    races_.clear();
    std::vector<int> last(processes, -1), touching, met, met_clock;
    for (size_t j = 0; j < n; j++) {
        const Event& event = events_[j];
        std::vector<int>& clock = clocks_[j];
        clock.assign(processes, 0);
        if (last[event.process] >= 0) clock = clocks_[last[event.process]];
        if (!event.after.empty()) {  // often the same for all threads of a barrier, one after the other
            if (event.after != met) {
                met = event.after;
                met_clock.assign(processes, 0);
                for (const int i : met) join(met_clock, clocks_[i]);
            }
            join(clock, met_clock);
        }
        if (event.woken_by >= 0) join(clock, clocks_[event.woken_by]);
        for (int i = event.all_before - 1; i >= 0; i--)
            if (clock[events_[i].process] <= i) join(clock, clocks_[i]);
        if (!event.touches.empty()) {
            for (size_t k = touching.size(); k-- > 0;) {
                const int i = touching[k];
                if (clock[events_[i].process] > i || !meet(events_[i].touches, event.touches)) continue;
                races_.emplace_back(i, static_cast<int>(j));
                join(clock, clocks_[i]);
            }
            touching.push_back(static_cast<int>(j));
        }
        // A fruitless poll orders nothing, but could have seen another value before this store.
        for (size_t k = event.looks.empty() ? 0 : touching.size(); k-- > 0;) {
            const int i = touching[k];
            if (i < static_cast<int>(j) && clock[events_[i].process] <= i && meet(events_[i].touches, event.looks))
                races_.emplace_back(i, static_cast<int>(j));
        }
        clock[event.process] = static_cast<int>(j) + 1;
        last[event.process] = static_cast<int>(j);
    }
}

// One of `instead` does as well, if it was already requested.
void Exploration::add(Node& node, int process, const std::vector<int>& instead) {
    if (contains(node.todo, process)) return;
    node.todo.push_back(process);
    if (node.shared.number < 0) return;
    told_.push_back({node.shared.number, {process}});
    told_.back().processes.insert(told_.back().processes.end(), instead.begin(), instead.end());
}

void Exploration::add_all(Node& node) {
    for (const int process : node.enabled) add(node, process);
}

// Requests that event j come before event i, together with the events between them that do not depend on i.
void Exploration::reverse(int i, int j) {
    Node& node = nodes_[i];
    std::vector<int> between, initials;
    for (int k = i + 1; k <= j; k++)
        if (k == j || !happens_before(i, k)) between.push_back(k);
    for (size_t k = 0; k < between.size(); k++) {
        const bool is_first = std::none_of(between.begin(), between.begin() + static_cast<ptrdiff_t>(k),
                                           [&](int l) { return happens_before(l, between[k]); });
        const int process = events_[between[k]].process;
        if (is_first && contains(node.enabled, process)) initials.push_back(process);
    }
    const int wanted = events_[j].process;
    if (bounds.reduction == kWithinBound) {
        const auto add_here = [&](Node& at) {
            if (sleeps(at, wanted)) return;
            if (contains(at.enabled, wanted)) return add(at, wanted);
            for (const int process : initials)
                if (contains(at.enabled, process)) return add(at, process);
            add_all(at);
        };
        add_here(node);
        if (const int thread = node.last_thread; thread >= 0 && contains(node.enabled, thread)) {
            int begin = i;
            while (begin > 0 && nodes_[begin].last_thread == thread) begin--;
            add_here(nodes_[begin]);
        }
        return;
    }
    for (const int process : initials)
        if (contains(node.todo, process) || sleeps(node, process)) return;
    if (initials.empty()) return add_all(node);
    add(node, contains(initials, wanted) ? wanted : initials.front(), initials);
}

bool Exploration::give_up() {
    if (follows_ && !draws_) return false;
    status.outcome = kRedundant;
    return true;
}

// Other runs may have later events at each of these places: this run ends before they show.
void Exploration::came_back(int event) {
    if (follows_) return;
    for (size_t i = event; i < nodes_.size(); i++) add_all(nodes_[i]);
}

// A number that is equal for equivalent runs: a hash of the happens-before order of events that touch memory.
uint64_t Exploration::equivalence() const {
    std::vector<std::vector<int>> counted(keys_.size(), std::vector<int>(events_.size() + 1));
    for (size_t q = 0; q < keys_.size(); q++)
        for (size_t i = 0; i < events_.size(); i++)
            counted[q][i + 1] =
                counted[q][i] + (static_cast<size_t>(events_[i].process) == q && !events_[i].touches.empty());
    std::vector<uint64_t> names;  // of processes, equal in every run and part
    for (const Key& key : keys_) names.push_back(std::accumulate(key.begin(), key.end(), uint64_t{1}, mix));
    uint64_t all = 0;
    for (size_t j = 0; j < events_.size(); j++) {
        if (events_[j].touches.empty()) continue;
        const uint64_t name = names[events_[j].process];
        uint64_t hash = name;
        for (size_t q = 0; q < keys_.size(); q++)
            if (const int number = counted[q][clocks_[j][q]]) hash += mix(mix(name, names[q]), number);
        all += mix(hash, 2);
    }
    return all;
}

void Exploration::draw(uint64_t seed) {
    follow("");
    turns = bounds.turns;
    draws_ = true;
    random_ = seed;
}

uint32_t Exploration::drawn(size_t options) {
    inverse_ *= static_cast<long double>(options);
    random_ += 0x9e3779b97f4a7c15ull;
    return static_cast<uint32_t>((mix(mix(1, random_), 1) >> 32) * options >> 32);
}

// The number of orders of these events that keep each event's effect. It counts over prefixes, each given by the number
// of events of each process. -1: there are too many prefixes.
double Exploration::orders() const {
    constexpr size_t kMost = 50000;
    using Set = std::vector<uint16_t>;
    std::vector<std::vector<int>> of(keys_.size());  // by process: its events
    std::vector<int> number(events_.size());         // of an event among its process's
    for (size_t i = 0; i < events_.size(); i++) {
        number[i] = static_cast<int>(of[events_[i].process].size());
        of[events_[i].process].push_back(static_cast<int>(i));
    }
    std::map<Set, long double> ways = {{Set(keys_.size()), 1}};
    size_t sets = 0;
    for (size_t n = 0; n < events_.size(); n++) {
        std::map<Set, long double> longer;
        for (const auto& [set, orders] : ways)
            for (size_t p = 0; p < of.size(); p++) {
                if (set[p] == of[p].size()) continue;
                const int next = of[p][set[p]];
                bool can = true;
                for (size_t q = 0; q < of.size() && can; q++) {
                    if (q == p || set[q] == of[q].size()) continue;
                    can = of[q][set[q]] >= clocks_[next][q];  // all events before it are done
                }
                if (!can) continue;
                Set more = set;
                more[p]++;
                longer[std::move(more)] += orders;
            }
        ways = std::move(longer);
        if ((sets += ways.size()) > kMost) return -1;
    }
    return static_cast<double>(ways.begin()->second);
}

double Exploration::whole() {
    if (status.outcome != kWhole || events_.empty()) return 0;
    for (const Event& event : events_)
        if (event.touches.empty() && !event.looks.empty()) return 0;
    compute_clocks();
    const double all = orders();
    return all < 0 ? -1 : static_cast<double>(inverse_ / all);
}

bool Exploration::next() {
    status.decisions = decisions_;
    status.switches = made_.size();
    status.most_events = std::max<uint64_t>(status.most_events, events_.size());
    if (status.outcome == kCut) status.cut++;
    status.inputs = launched_;
    for (const Event& event : events_) status.inputs = mix(mix(status.inputs, event.launched), event.read);
    if (status.outcome == kWhole && !events_.empty()) is_as_before(events_.size() - 1);
    if (draws_) status.whole = whole();
    if (follows_ || status.outcome == kStrayed) return false;
    compute_clocks();
    if (bounds.reduction != kNone)
        for (const auto& [i, j] : races_) {
            if (events_[i].is_calm && events_[j].is_calm) {
                status.calm++;
            } else {
                reverse(i, j);
            }
        }
    status.equivalence = equivalence();
    const bool is_new = status.outcome != kRedundant && seen_.insert(status.equivalence).second;
    (is_new ? status.explored : status.redundant)++;
    if (is_new) classes_.push_back(status.equivalence);
    nodes_.resize(std::min(nodes_.size(), events_.size()));
    for (size_t i = 0; i < nodes_.size(); i++) {
        add_new(nodes_[i].touched, events_[i].touches);
        add_new(nodes_[i].looks, events_[i].looks);
    }
    if (floor_ && nodes_.size() >= floor_ && first_.empty()) {
        first_ = events_[floor_ - 1].touches;
        add_new(first_, events_[floor_ - 1].looks);
    }
    for (; !nodes_.empty(); nodes_.pop_back()) {
        Node& node = nodes_.back();
        if (node.shared.is_given) continue;
        while (!node.data.empty() && node.data.back().value + 1 == node.data.back().options) node.data.pop_back();
        if (!node.data.empty()) {
            node.data.back().value++;
            node.read = 0;
            break;
        }
        if (node.shared.number >= 0) continue;
        node.done.push_back({node.chosen, std::move(node.touched)});
        node.touched.clear();
        node.looks.clear();
        const auto is_open = [&](int process) {
            if (sleeps(node, process)) return false;
            for (const Asleep& d : node.done)
                if (d.process == process) return false;
            if (is_within_bound(node, process)) return true;
            status.skipped++;
            return false;
        };
        const auto chosen = std::find_if(node.todo.begin(), node.todo.end(), is_open);
        if (chosen != node.todo.end()) {
            node.chosen = *chosen;
            node.read = 0;
            break;
        }
    }
    settled_ = nodes_.size();
    return !nodes_.empty();
}

void Exploration::follow(const std::string& text) {
    follows_ = true;
    draws_ = false;
    script_.clear();
    std::istringstream words(text);
    uint64_t number;
    turns = kTurns;
    if (!text.empty() && text[0] == 't') {
        words.get();
        words >> turns;
    }
    uint32_t option;
    char colon;
    while (words >> number >> colon >> option) script_[number] = option;
}

std::string Exploration::schedule() const {
    std::string text = turns == kTurns ? "" : "t" + std::to_string(turns);
    for (const auto& [number, option] : made_)
        text += (text.empty() ? "" : " ") + std::to_string(number) + ":" + std::to_string(option);
    return text;
}

}  // namespace epemu

// The functions that Python calls (ep_lib/emulator/library.py mirrors these).
using namespace epemu;

extern "C" {

Exploration* epemu_explore_create(const Exploration::Bounds* bounds) {
    return with_memory([&] { return new Exploration(*bounds); });
}
void epemu_explore_destroy(Exploration* exploration) { delete exploration; }
// Ends a run; returns whether another one is left.
int epemu_explore_next(Exploration* exploration) {
    return with_memory([&]() -> int { return exploration->next(); });
}
void epemu_explore_status(const Exploration* exploration, Exploration::Status* status) {
    *status = exploration->status;
}
// Explores only the schedules of these kernels, one name a line; call before the first run.
void epemu_explore_only(Exploration* exploration, const char* kernels) {
    with_memory([&] {
        std::istringstream lines(kernels);
        for (std::string name; std::getline(lines, name);) exploration->only.insert(name);
    });
}
// The kernels launched so far, one name a line.
const char* epemu_explore_launched(Exploration* exploration) {
    return with_memory([&]() -> const char* {
        exploration->line.clear();
        for (const std::string& name : exploration->launched) exploration->line += name + '\n';
        return exploration->line.c_str();
    });
}
// Makes every later run follow this schedule.
void epemu_explore_follow(Exploration* exploration, const char* schedule) {
    with_memory([&] { exploration->follow(schedule); });
}
// Makes the next run a random one.
void epemu_explore_draw(Exploration* exploration, uint64_t seed) { exploration->draw(seed); }
const char* epemu_explore_schedule(Exploration* exploration) {
    return with_memory([&]() -> const char* {
        exploration->line = exploration->schedule();
        return exploration->line.c_str();
    });
}
void epemu_explore_load(Exploration* exploration, const char* part) {
    with_memory([&] { exploration->load(part); });
}
const char* epemu_explore_save(Exploration* exploration) {
    return with_memory([&]() -> const char* {
        exploration->line = exploration->save();
        return exploration->line.c_str();
    });
}
const char* epemu_explore_strayed(const Exploration* exploration) { return exploration->strayed.c_str(); }

}  // extern "C"
