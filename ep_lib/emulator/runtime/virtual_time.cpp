// The time of threads: the next one to run, the cost of accesses, the start of kernels.
#include "virtual_time.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "machine.hpp"

extern "C" char* epemu_shared_base;

namespace epemu {

VirtualTime* timed;

namespace {

constexpr int64_t kQuantum = 1 << 14;  // accesses of a turn: a loop that waits for a plain store lets others store
constexpr double kNever = std::numeric_limits<double>::infinity();

int index_in_grid(const Block* block) {
    const epemu_dim3 i = block->index, n = block->launch->grid;
    return static_cast<int>(i.x + n.x * (i.y + n.y * i.z));
}

int index_in_block(const Warp* warp) { return static_cast<int>(warp - warp->block->warps.data()); }

}  // namespace

double LinkModel::on_wire(double bytes) const {
    return bytes + std::max(1.0, std::ceil(bytes / mtu_bytes)) * header_bytes;
}

VirtualTime::VirtualTime(Machine& machine, const HardwareModel& hardware)
    : Schedule(machine), hardware_(hardware), gpus_(machine.num_ranks), nics_(machine.num_ranks) {
    for (Gpu& gpu : gpus_) gpu.sms.resize(hardware.num_sms);
    machine.clock_ghz = hardware.clock_ghz;
}

double VirtualTime::now_ns() const { return current ? current->time : now_; }

// ---- what is earliest --------------------------------------------------------------------------------------------

double VirtualTime::earliest() const {
    const double warp = heap_.empty() ? kNever : heap_[0]->ready;
    return events_.empty() ? warp : std::min(warp, events_.top().at);
}

bool VirtualTime::step() {
    if (heap_.empty() && events_.empty()) return false;
    if (!events_.empty() && (heap_.empty() || events_.top().at <= heap_[0]->ready)) {
        const Event event = events_.top();
        events_.pop();
        run_event(event);
    } else {
        Warp* warp = heap_[0];
        remove_top();
        run_warp(warp);
    }
    return true;
}

// Runs all lanes that have reached this time, one after another, until they next wait or synchronise: the warp's turn.
void VirtualTime::run_warp(Warp* warp) {
    now_ = warp->ready;
    m_.picks++;
    epemu_shared_base = warp->block->shared;
    uint32_t lanes = 0;
    double later = kNever;
    for (uint32_t rest = warp->runnable; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        if (warp->lanes[lane].time <= now_) {
            lanes |= 1u << lane;
        } else {
            later = std::min(later, warp->lanes[lane].time);
        }
    }
    warp->runnable &= ~lanes;
    if (warp->runnable) push(warp, later);
    while (lanes) {
        Fiber* fiber = &warp->lanes[__builtin_ctz(lanes)];
        lanes &= lanes - 1;
        horizon_ = lanes ? now_ : kNever;
        quantum = kQuantum;
        run_lane(m_, fiber);
        if (m_.fault != Fault::kNone) return;
    }
    end_turn(m_, warp);
}

void VirtualTime::synchronise() {
    if (current->time > std::min(horizon_, earliest())) step_aside();
}

void VirtualTime::preempt() { step_aside(); }

void VirtualTime::ready(Warp* warp, uint32_t lanes) {
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
        Fiber& fiber = warp->lanes[__builtin_ctz(rest)];
        fiber.state = State::kRunnable;
        const bool queued = warp->runnable != 0;
        warp->runnable |= 1u << fiber.lane;
        if (!queued) {
            push(warp, fiber.time);
        } else if (fiber.time < warp->ready) {
            warp->ready = fiber.time;
            sift_up(warp->queue_index);
        }
    }
}

void VirtualTime::woke(Fiber* fiber) {
    fiber->time = std::max(fiber->time, now_ns());
    make_runnable(fiber);
}

// A binary heap that knows where its elements are; of equal times, first come first served.
void VirtualTime::push(Warp* warp, double key) {
    warp->ready = key;
    warp->order = ++order_;
    warp->queue_index = heap_.size();
    heap_.push_back(warp);
    sift_up(warp->queue_index);
}

static bool before(const Warp* a, const Warp* b) {
    return a->ready != b->ready ? a->ready < b->ready : a->order < b->order;
}

void VirtualTime::sift_up(size_t i) {
    Warp* warp = heap_[i];
    while (i > 0 && before(warp, heap_[(i - 1) / 2])) {
        heap_[i] = heap_[(i - 1) / 2];
        heap_[i]->queue_index = i;
        i = (i - 1) / 2;
    }
    heap_[i] = warp;
    warp->queue_index = i;
}

void VirtualTime::sift_down(size_t i) {
    Warp* warp = heap_[i];
    for (size_t child; (child = 2 * i + 1) < heap_.size(); i = child) {
        if (child + 1 < heap_.size() && before(heap_[child + 1], heap_[child])) child++;
        if (!before(heap_[child], warp)) break;
        heap_[i] = heap_[child];
        heap_[i]->queue_index = i;
    }
    heap_[i] = warp;
    warp->queue_index = i;
}

void VirtualTime::remove_top() {
    Warp* last = heap_.back();
    heap_.pop_back();
    if (heap_.empty()) return;
    heap_[0] = last;
    sift_down(0);
}

void VirtualTime::at(double when, Event::Kind kind, int rank, NetOp* op, uint64_t packet) {
    events_.push({when, ++order_, kind, rank, packet, op});
}

// ---- kernels and blocks ------------------------------------------------------------------------------------------

void VirtualTime::launched(Launch* launch) { launch->queued_ns = gpus_[launch->rank].host_ns; }

void VirtualTime::host_waited(int rank, int64_t ticket) {
    Gpu& gpu = gpus_[rank];
    if (ticket > 0) gpu.host_ns = std::max(gpu.host_ns, gpu.ends[ticket - 1]);
}

void VirtualTime::hosts_met() {
    double latest = 0;
    for (const Gpu& gpu : gpus_) latest = std::max(latest, gpu.host_ns);
    for (Gpu& gpu : gpus_) gpu.host_ns = latest;
}

void VirtualTime::admitted(Block* block) {
    Launch* launch = block->launch;
    Gpu& gpu = gpus_[launch->rank];
    if (launch->next_block == 1) {
        launch->end_ns = launch->queued_ns + hardware_.launch_ns;
        if (!gpu.ends.empty()) launch->end_ns = std::max(launch->end_ns, gpu.ends.back() + hardware_.launch_gap_ns);
    }
    // A later block takes the place of an ended one.
    block->begin_ns = launch->end_ns;
    auto sm = std::min_element(gpu.sms.begin(), gpu.sms.end(),
                               [](const Sm& a, const Sm& b) { return a.resident < b.resident; });
    sm->resident++;
    block->sm = static_cast<int>(sm - gpu.sms.begin());
    for (Fiber& fiber : block->fibers) fiber.time = block->begin_ns;
}

void VirtualTime::finished(Block* block) {
    Launch* launch = block->launch;
    Gpu& gpu = gpus_[launch->rank];
    gpu.sms[block->sm].resident--;
    double end = block->begin_ns;
    for (const Fiber& fiber : block->fibers) end = std::max(end, fiber.time);
    spans.push_back({launch->rank, index_in_grid(block), -1, SpanRecord::kKernel, name_of(launch->kernel), -1, 0,
                     block->begin_ns, end});
    launch->end_ns = std::max(launch->end_ns, end);
    if (launch->finished_blocks + 1 < launch->num_blocks) return;
    gpu.ends.push_back(launch->end_ns);
}

void VirtualTime::join(Warp* warp, uint32_t mask) {
    double latest = 0;
    for (uint32_t rest = mask; rest; rest &= rest - 1) latest = std::max(latest, warp->lanes[__builtin_ctz(rest)].time);
    for (uint32_t rest = mask; rest; rest &= rest - 1) warp->lanes[__builtin_ctz(rest)].time = latest;
}

void VirtualTime::join(Block* block) {
    double latest = 0;
    for (const Fiber& fiber : block->fibers)
        if (fiber.state == State::kBarrier) latest = std::max(latest, fiber.time);
    for (Fiber& fiber : block->fibers)
        if (fiber.state == State::kBarrier) fiber.time = latest;
}

void VirtualTime::join(const std::vector<Fiber*>& fibers) {
    double latest = 0;
    for (const Fiber* fiber : fibers) latest = std::max(latest, fiber->time);
    for (Fiber* fiber : fibers) fiber->time = latest;
}

// ---- memory ------------------------------------------------------------------------------------------------------

// Servers count from the beginning of the turn: a thread that runs ahead takes no bandwidth from threads that reach the
// same time later, but together they never exceed the bandwidth.
void VirtualTime::charge(double bytes, int owner, bool write) {
    Fiber* fiber = current;
    const int rank = fiber->block->launch->rank;
    Gpu& gpu = gpus_[rank];
    const double begin = fiber->time, duration = bytes / hardware_.sm_bytes_per_ns;
    double end = std::max(begin + duration, gpu.sms[fiber->block->sm].port.serve(now_, duration));
    if (owner == rank) {
        end = std::max(end, gpu.memory.serve(now_, bytes / hardware_.memory_bytes_per_ns));
    } else {
        const LinkModel& link = hardware_.nvlink;
        const double on_link = bytes * (1 + link.header_bytes / link.mtu_bytes) / link.bytes_per_ns;
        Gpu &from = gpus_[write ? rank : owner], &to = gpus_[write ? owner : rank];
        end = std::max({end, from.nvlink_out.serve(now_, on_link), to.nvlink_in.serve(now_, on_link)});
    }
    fiber->time = end;
    Warp* warp = fiber->warp;  // the warp's accesses without a pause are one span
    if (warp->copy_span && begin <= spans[warp->copy_span - 1].end_ns) {
        double& last = spans[warp->copy_span - 1].end_ns;
        last = std::max(last, end);
    } else {
        spans.push_back({rank, index_in_grid(fiber->block), index_in_block(warp), SpanRecord::kCopy, name_of("copy"),
                         -1, 0, begin, end});
        warp->copy_span = spans.size();
    }
}

void VirtualTime::access(uintptr_t address, size_t bytes, bool write) {
    const Block* block = current->block;
    if (address - reinterpret_cast<uintptr_t>(block->shared) < block->shared_bytes) return;
    const uintptr_t in_heaps = address - reinterpret_cast<uintptr_t>(m_.heaps);
    const bool in_heap = in_heaps < m_.heaps_bytes;
    charge(static_cast<double>(bytes), in_heap ? static_cast<int>(in_heaps >> m_.heap_shift) : block->launch->rank,
           write);
}

double VirtualTime::remote(uintptr_t address) const {
    const uintptr_t in_heaps = address - reinterpret_cast<uintptr_t>(m_.heaps);
    if (in_heaps >= m_.heaps_bytes) return 0;
    const int owner = static_cast<int>(in_heaps >> m_.heap_shift), rank = current->block->launch->rank;
    if (owner == rank) return 0;
    // This rank's earlier stores to the peer take the same path, so they come first.
    const Gpu &gpu = gpus_[rank], &peer = gpus_[owner];
    const double drained = std::max(gpu.nvlink_out.free_ns, peer.nvlink_in.free_ns);
    return std::max(0.0, drained - current->time) + hardware_.nvlink.latency_ns;
}

void VirtualTime::looked(uintptr_t address) {
    spend(remote(address) > 0 ? 2 * hardware_.nvlink.latency_ns : hardware_.poll_ns);
}

// An atomic takes effect when it reaches the memory: after an L2 latency, or over NVLink.
void VirtualTime::atomic(uintptr_t address) {
    const double there = remote(address);
    spend(there > 0 ? there : hardware_.poll_ns);
    synchronise();
}

void VirtualTime::spend(double ns) { current->time += ns; }

void VirtualTime::store_later(uintptr_t address, uint64_t value, int size, double delay) {
    uint64_t place = stores_.size();
    if (free_stores_.empty()) {
        stores_.push_back({address, value, size});
    } else {
        place = free_stores_.back();
        free_stores_.pop_back();
        stores_[place] = {address, value, size};
    }
    at(current->time + delay, Event::kStore, 0, nullptr, place);
}

// ---- records -----------------------------------------------------------------------------------------------------

int VirtualTime::name_of(const std::string& text) {
    auto [it, is_new] = name_numbers_.try_emplace(text, static_cast<int>(names.size()));
    if (is_new) names.push_back(text);
    return it->second;
}

int VirtualTime::image_of(const Image* image) const {
    for (size_t i = 0; i < m_.images.size(); i++)
        if (m_.images[i].get() == image) return static_cast<int>(i);
    return -1;
}

void VirtualTime::write_span(SpanRecord::Kind kind, const char* name, double begin, uintptr_t pc) {
    const Launch* launch = current->block->launch;
    spans.push_back({launch->rank, index_in_grid(current->block), index_in_block(current->warp), kind, name_of(name),
                     image_of(launch->image), pc - launch->image->base - 1, begin, current->time});
}

// A polling loop that is woken without success keeps waiting: one span.
void VirtualTime::waited(double begin, const char* what, uintptr_t pc) {
    const uint64_t offset = pc - current->block->launch->image->base - 1;
    if (current->wait_span) {
        SpanRecord& last = spans[current->wait_span - 1];
        if (last.offset == offset && begin - last.end_ns <= kPollsBetween * hardware_.poll_ns) {
            last.end_ns = current->time;
            return;
        }
    }
    write_span(SpanRecord::kWait, what, begin, pc);
    current->wait_span = spans.size();
}

void VirtualTime::saw_completion(double begin, const char* what, uintptr_t pc) {
    spend(hardware_.poll_ns);
    write_span(SpanRecord::kWait, what, begin, pc);
}

void VirtualTime::sample(const char* name, double value) {
    samples.push_back(
        {current->block->launch->rank, index_in_grid(current->block), name_of(name), 0, current->time, value});
}

}  // namespace epemu
