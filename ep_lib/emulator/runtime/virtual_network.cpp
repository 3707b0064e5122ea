// NICs in virtual time, packet by packet:
//
//   poster   o; then the doorbell crosses PCIe, and the NIC fetches the work request from the GPU's memory: 3 latencies
//   NIC      g a work request (a put with a signal is two), in the order of posting
//   queues   queue pairs take turns, a packet of at most an MTU each; of one queue pair, the order of posting
//   source   a packet is read over PCIe (request and answer: 2 latencies) just in time for the wire: this shows a
//            source that was changed too soon
//   wire     payload and header at the NIC's rate; latency; then the receiving NIC's rate, so senders to one NIC share
//   target   written over PCIe as it comes in, one latency; polls see it then. A signal is a packet of 8 bytes behind.
//   back     the acknowledgement: the wire's latency, and PCIe's for the completion. They take no bandwidth.
//
// A get is a request (a header) to the other NIC, which then sends as if its owner had put. rc: packets of a queue pair
// stay in order. srd: each packet takes the next of several paths, and some paths delay it by a few packets of other
// traffic; a put's own signal waits at the target for all of its data; an addition is read and written back over PCIe,
// one after another at a NIC. A fence delays later operations until those that it covers are complete. Switches have
// unlimited room: a busy receiver does not delay its senders' other traffic.
#include <string.h>

#include <algorithm>
#include <cmath>

#include "machine.hpp"
#include "fault_injection.hpp"
#include "virtual_time.hpp"

namespace epemu {
namespace {

constexpr double kSignalBytes = 8;
// srd sprays packets over paths of equal parts of the bandwidth, in turns ("A Cloud-Optimized Transport Protocol for
// Elastic and Scalable HPC", Shalev et al., IEEE Micro 2020). The traffic ahead of a packet on each path, in packets of
// an MTU, is our choice: enough to make neighbours overtake each other, and equal in every run.
constexpr int kPaths = 4, kAhead[kPaths] = {2, 0, 3, 1};
constexpr uint64_t kAnswers = 1ull << 63;  // queues of a NIC for answers to other NICs' gets
constexpr uint64_t kAlone = 1ull << 62;    // a queue for a single delayed operation, on unordered fabrics

uint64_t key_of(int peer, int queue_pair) {
    return static_cast<uint64_t>(peer) << 32 | static_cast<uint32_t>(queue_pair);
}

Network::Link& link_of(const Machine& m, const NetOp& op) {
    return m.network->links[op.source_rank * m.num_ranks + op.target_rank];
}

}  // namespace

void VirtualTime::run_event(const Event& event) {
    now_ = event.at;
    switch (event.kind) {
        case Event::kStore: {
            const Store& store = stores_[event.packet];
            memcpy(reinterpret_cast<void*>(store.address), &store.value, store.size);
            free_stores_.push_back(event.packet);
            m_.progress++;
            wake(store.address, store.size);
            break;
        }
        case Event::kReady: {
            NetOp* op = event.op;
            const bool get = op->kind == NetKind::kGet, data = op->kind == NetKind::kPut && (op->bytes || !op->signal);
            const bool alone = m_.network->settings.kind == Fabric::kSrd && op->held_until_ns > now_;
            const uint64_t key = alone ? kAlone | op->number : key_of(op->target_rank, op->queue_pair);
            enqueue(event.rank, key, {op, 0, get, data, op->signal != 0});
            break;
        }
        case Event::kRelease: take_turns_again(event.rank); break;
        case Event::kTransmit: transmit(event.rank); break;
        case Event::kArrive: arrive(event.rank, event.packet); break;
        case Event::kWritten: written(event.rank, event.packet); break;
        case Event::kSignalled: apply_staged(event.op); break;
        case Event::kComplete: complete(event.op); break;
    }
}

void VirtualTime::drain() {
    while (!events_.empty()) {
        const Event event = events_.top();
        events_.pop();
        run_event(event);
    }
}

// ---- the sending NIC ---------------------------------------------------------------------------------------------

void VirtualTime::posted(NetOp* op) {
    Fiber* fiber = current;
    const LinkModel &nic = hardware_.nic, &pcie = hardware_.pcie;
    const double begin = fiber->time;
    spend(nic.overhead_ns);
    const bool put_signal = op->kind == NetKind::kPut && op->signal;
    const auto kind = put_signal                  ? MessageRecord::kPutSignal
                      : op->kind == NetKind::kPut ? MessageRecord::kPut
                      : op->kind == NetKind::kGet ? MessageRecord::kGet
                                                  : MessageRecord::kAdd;
    constexpr const char* kNames[] = {"put", "get", "put_signal", "add"};
    write_span(SpanRecord::kPost, kNames[kind], begin, op->poster.pc);
    const SpanRecord& span = spans.back();
    op->flight = {m_.network->in_flight.size() - 1, messages.size(), op->bytes, false};
    fiber->wait_span = 0;
    messages.push_back({op->source_rank, op->target_rank, op->queue_pair, kind, span.block, span.warp, span.image, 0,
                        span.offset, op->bytes, 0, begin, -1, -1, -1});
    const int work_requests = put_signal && op->bytes ? 2 : 1;
    const double fetched = fiber->time + 3 * pcie.latency_ns;
    at(nics_[op->source_rank].engine.serve(fetched, work_requests * nic.gap_ns), Event::kReady, op->source_rank, op);
}

void VirtualTime::enqueue(int rank, uint64_t key, const SendQueue::Job& job) {
    Nic& nic = nics_[rank];
    SendQueue& queue = nic.queues[key];
    queue.jobs.push_back(job);
    if (!queue.in_turn) {
        queue.in_turn = true;
        nic.turn.push_back(key);
    }
    start(rank);
}

// Chooses the next packet as late as its read over PCIe allows, so that the wire is never idle and late urgent packets
// need not queue behind others.
void VirtualTime::start(int rank) {
    Nic& nic = nics_[rank];
    if (nic.transmitting || nic.turn.empty()) return;
    nic.transmitting = true;
    const LinkModel& pcie = hardware_.pcie;
    const double ahead = 2 * pcie.latency_ns + pcie.on_wire(hardware_.nic.mtu_bytes) / pcie.bytes_per_ns;
    at(std::max({now_, nic.reads.free_ns, nic.egress.free_ns - ahead}), Event::kTransmit, rank, nullptr);
}

// Whether no fence, broken link or injected fault holds the operation back.
bool VirtualTime::may_start(const NetOp& op) const {
    const Network& net = *m_.network;
    const Network::Link& link = link_of(m_, op);
    if (link.broken || is_held(m_, op)) return false;
    if (link.fences.empty()) return true;
    for (const NetOp* earlier : link.ops) {
        if (earlier->number >= op.number) break;
        if (net.settings.kind == Fabric::kRc && earlier->queue_pair == op.queue_pair) continue;  // in order anyway
        for (const auto& fence : link.fences) {
            const bool covers =
                fence.queue_pair < 0 || (fence.queue_pair == op.queue_pair && fence.queue_pair == earlier->queue_pair);
            if (covers && earlier->number < fence.number && fence.number <= op.number) return false;
        }
    }
    return true;
}

void VirtualTime::transmit(int rank) {
    Nic& nic = nics_[rank];
    nic.transmitting = false;
    while (!nic.turn.empty()) {
        const uint64_t key = nic.turn.front();
        SendQueue& queue = nic.queues[key];
        nic.turn.pop_front();
        SendQueue::Job& job = queue.jobs.front();
        if (!(key & kAnswers) && !may_start(*job.op)) {
            nic.held.push_back(key);
            const uint64_t until = held_until(m_, *job.op);
            if (until && until != FaultInjection::kNever)
                at(static_cast<double>(until), Event::kRelease, rank, nullptr);
            continue;
        }
        send_packet(rank, job);
        if (!job.request && !job.data && !job.signal) queue.jobs.pop_front();
        queue.in_turn = !queue.jobs.empty();
        if (queue.in_turn) nic.turn.push_back(key);
        break;
    }
    start(rank);
}

// The end of the packet that begins at `offset`. (A scaled model's MTU need not be a whole number.)
size_t VirtualTime::packet_end(size_t offset, size_t bytes) const {
    const double mtu = hardware_.nic.mtu_bytes;
    const auto end = static_cast<size_t>(std::lround((std::floor((offset + 0.5) / mtu) + 1) * mtu));
    return std::min(bytes, std::max(end, offset + 1));
}

void VirtualTime::send_packet(int rank, SendQueue::Job& job) {
    Nic& nic = nics_[rank];
    NetOp* op = job.op;
    const LinkModel &wire = hardware_.nic, &pcie = hardware_.pcie;
    Packet packet{op, job.offset, 0, 0, {}, false, false};
    double at_nic = now_;
    if (job.request) {
        packet.request = true;
        job.request = false;
    } else if (job.data) {
        packet.bytes = packet_end(job.offset, op->bytes) - job.offset;
        packet.payload = static_cast<double>(packet.bytes);
        if (packet.bytes) {
            const char* source = reinterpret_cast<const char*>(op->from + job.offset);
            packet.data.assign(source, source + packet.bytes);
            at_nic = nic.reads.serve(now_, pcie.on_wire(packet.payload) / pcie.bytes_per_ns) + 2 * pcie.latency_ns;
        }
        job.offset += packet.bytes;
        job.data = job.offset < op->bytes;
    } else {
        packet.signal = true;
        packet.payload = kSignalBytes;  // came with the work request
        job.signal = false;
    }
    const double on_wire = packet.payload + wire.header_bytes, begin = std::max(at_nic, nic.egress.free_ns);
    nic.egress.free_ns = begin + on_wire / wire.bytes_per_ns;
    MessageRecord& record = messages[op->flight.record];
    if (record.departed_ns < 0) record.departed_ns = begin;
    record.wire_bytes += on_wire;
    double latency = wire.latency_ns;
    if (m_.network->settings.kind == Fabric::kSrd) {
        const double ahead = kAhead[nic.sprayed++ % kPaths] * (wire.mtu_bytes + wire.header_bytes);
        latency += ahead / (wire.bytes_per_ns / kPaths);
    }
    uint64_t place = packets_.size();
    if (free_packets_.empty()) {
        packets_.push_back(std::move(packet));
    } else {
        place = free_packets_.back();
        free_packets_.pop_back();
        packets_[place] = std::move(packet);
    }
    at(begin + latency, Event::kArrive, rank == op->source_rank ? op->target_rank : op->source_rank, op, place);
}

// ---- the receiving NIC -------------------------------------------------------------------------------------------

void VirtualTime::arrive(int rank, uint64_t place) {
    Nic& nic = nics_[rank];
    const Packet& packet = packets_[place];
    const LinkModel &wire = hardware_.nic, &pcie = hardware_.pcie;
    const double begin = std::max(nic.ingress.free_ns, now_);
    double done = nic.ingress.serve(now_, (packet.payload + wire.header_bytes) / wire.bytes_per_ns);
    if (packet.payload > 0) {
        done = std::max(done, nic.writes.serve(begin, pcie.on_wire(packet.payload) / pcie.bytes_per_ns));
        done += pcie.latency_ns;
    }
    at(done, Event::kWritten, rank, packet.op, place);
}

void VirtualTime::written(int rank, uint64_t place) {
    Packet packet = std::move(packets_[place]);
    free_packets_.push_back(place);
    NetOp* op = packet.op;
    m_.progress++;
    if (packet.request) {
        enqueue(rank, kAnswers | key_of(op->source_rank, op->queue_pair), {op, 0, false, true, false});
        return;
    }
    if (packet.signal) {
        op->flight.signal_came = true;
    } else {
        const uintptr_t to = op->to + packet.offset;
        memcpy(reinterpret_cast<void*>(to), packet.data.data(), packet.bytes);
        op->flight.bytes_left -= packet.bytes;
        wake(to, packet.bytes);
    }
    if (op->flight.bytes_left) return;
    if (!op->signal) {
        delivered(op);
    } else if (op->flight.signal_came) {
        signal(op);
    }
}

void VirtualTime::signal(NetOp* op) {
    uint64_t value = op->value;
    if (op->signal_op == EPEMU_SIGNAL_ADD) {
        if (m_.network->settings.kind == Fabric::kSrd) {
            nics_[op->target_rank].to_stage.push_back(op);
            next_staged(op->target_rank);
            return;
        }
        value += read_raw(op->signal, op->value_bytes);
    }
    write_signal(op, value);
}

void VirtualTime::write_signal(NetOp* op, uint64_t value) {
    memcpy(reinterpret_cast<void*>(op->signal), &value, op->value_bytes);
    m_.progress++;
    wake(op->signal, op->value_bytes);
    delivered(op);
}

void VirtualTime::next_staged(int rank) {
    Nic& nic = nics_[rank];
    if (nic.staging || nic.to_stage.empty()) return;
    nic.staging = true;
    NetOp* op = nic.to_stage.front();
    nic.to_stage.pop_front();
    op->staged_value = read_raw(op->signal, op->value_bytes);
    at(now_ + 2 * hardware_.pcie.latency_ns, Event::kSignalled, rank, op);
}

void VirtualTime::apply_staged(NetOp* op) {
    const int rank = op->target_rank;
    nics_[rank].staging = false;
    write_signal(op, op->staged_value + op->value);
    next_staged(rank);
}

void VirtualTime::delivered(NetOp* op) {
    messages[op->flight.record].delivered_ns = now_;
    const bool back = op->kind != NetKind::kGet;  // a get has come back already
    at(now_ + (back ? hardware_.nic.latency_ns + hardware_.pcie.latency_ns : 0), Event::kComplete, op->source_rank, op);
}

void VirtualTime::complete(NetOp* op) {
    messages[op->flight.record].completed_ns = now_;
    const int source = op->source_rank, target = op->target_rank, queue_pair = op->queue_pair;
    Network& net = *m_.network;
    Network::Link& link = link_of(m_, *op);
    link.ops.erase(std::find(link.ops.begin(), link.ops.end(), op));
    const uint64_t oldest = link.ops.empty() ? ~0ull : link.ops.front()->number;
    link.fences.erase(std::remove_if(link.fences.begin(), link.fences.end(),
                                     [&](const Network::Fence& f) { return f.number <= oldest; }),
                      link.fences.end());
    const size_t place = op->flight.place;
    std::swap(net.in_flight[place], net.in_flight.back());
    net.in_flight[place]->flight.place = place;
    net.in_flight.pop_back();
    m_.progress++;
    for (size_t i = 0; i < net.waiters.size();) {
        const Network::Waiter& w = net.waiters[i];
        const bool concerned = w.fiber->block->launch->rank == source && (w.target < 0 || w.target == target) &&
                               (w.queue_pair < 0 || w.queue_pair == queue_pair);
        if (!concerned || is_pending(net, w)) {
            i++;
            continue;
        }
        woke(w.fiber);
        net.waiters.erase(net.waiters.begin() + static_cast<ptrdiff_t>(i));
    }
    take_turns_again(source);
}

// Called when an obstacle to queues may be gone.
void VirtualTime::take_turns_again(int rank) {
    Nic& nic = nics_[rank];
    nic.turn.insert(nic.turn.end(), nic.held.begin(), nic.held.end());
    nic.held.clear();
    start(rank);
}

}  // namespace epemu
