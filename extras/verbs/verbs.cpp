// An executor on libibverbs: RDMA WRITEs, with an immediate where a small signal follows. A separate library, built
// only with rdma-core's headers.
//
// Each queue has a completion queue, and a reliable connection to each peer, so that a proxy thread shares nothing. The
// peer's proxy applies signals, which it gets from writes with immediate and from messages: this needs no NIC atomics,
// which EFA lacks, and all additions to a counter have one writer. Connections keep their order, so a fence has to
// delay only operations behind a READ.
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <string.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "engine.hpp"

namespace ep {
namespace proxy {
namespace {

constexpr int kDepth = 128, kReceives = 64;  // of a connection: requests in flight, incoming messages
constexpr uint64_t kMostBytes = 1 << 30;     // of one request
constexpr uint32_t kMagic = 0x58505056;      // "VPPX"
constexpr int kMaxQueues = 8;

struct Message {  // the content of a SEND: a signal too large for an immediate
    uint64_t signal, value;
    uint32_t op, unused[3];
};

// The data for a peer's connection, one for each pair of ranks.
struct Address {
    uint32_t magic, lid, mtu, num_queues;
    uint8_t gid[16];
    uint64_t base;
    uint32_t rkey, qp_num[kMaxQueues];
};

// Whether an immediate can encode the signal: a counter among the first 2^24 words and an addition of 1 to 255.
bool fits_immediate(const ProxyCommand& c) {
    return c.op == kProxyWriteAddSignal && c.signal / 8 < 1 << 24 && c.value - 1 < 255;
}
uint32_t to_immediate(const ProxyCommand& c) { return static_cast<uint32_t>(c.signal / 8 << 8 | c.value); }

struct Link {
    ibv_qp* qp = nullptr;
    ibv_qp_ex* requests = nullptr;
    bool fences_next = false, has_read = false;
};

struct Queue {
    ibv_cq *sent = nullptr, *received = nullptr;
    std::vector<Link> links;  // by rank
    std::deque<bool> done;    // by command, from number `first` on
    uint64_t first = 0;
};

struct Verbs {
    ibv_context* context = nullptr;
    ibv_pd* domain = nullptr;
    ibv_mr *heap = nullptr, *mail = nullptr;
    Heaps heaps;
    char* base;
    int port, gid_index;
    ibv_gid gid;
    ibv_port_attr port_attributes;
    std::vector<Queue> queues;
    std::vector<Address> peers;
    // Messages of all queues: kDepth that leave, then kReceives from each rank.
    std::vector<Message> messages;

    ~Verbs() {
        for (Queue& q : queues) {
            for (Link& link : q.links)
                if (link.qp) ibv_destroy_qp(link.qp);
            if (q.sent) ibv_destroy_cq(q.sent);
            if (q.received) ibv_destroy_cq(q.received);
        }
        if (mail) ibv_dereg_mr(mail);
        if (heap) ibv_dereg_mr(heap);
        if (domain) ibv_dealloc_pd(domain);
        if (context) ibv_close_device(context);
    }

    size_t mail_of(int queue) const { return queue * (kDepth + static_cast<size_t>(heaps.ranks) * kReceives); }
    Message& leaving(int queue, uint64_t number) { return messages[mail_of(queue) + number % kDepth]; }
    Message& coming(int queue, int rank, int slot) {
        return messages[mail_of(queue) + kDepth + rank * kReceives + slot];
    }

    bool receive(int queue, int rank, int slot, Failure* failure) {
        ibv_sge place = {reinterpret_cast<uintptr_t>(&coming(queue, rank, slot)), sizeof(Message), mail->lkey};
        ibv_recv_wr request = {}, *bad = nullptr;
        request.wr_id = static_cast<uint64_t>(rank) << 32 | slot;
        request.sg_list = &place;
        request.num_sge = 1;
        if (const int error = ibv_post_recv(queues[queue].links[rank].qp, &request, &bad))
            return (*failure)("a receive for rank %d cannot be posted: %s", rank, strerror(error)), false;
        return true;
    }

    // One request of the list that ibv_wr_start has begun; the last one of a command signals its completion.
    static void begin(Link& link, uint64_t number, bool last) {
        link.requests->wr_id = number;
        link.requests->wr_flags = (last ? IBV_SEND_SIGNALED : 0) | (link.fences_next ? IBV_SEND_FENCE : 0);
        link.fences_next = false;
    }

    bool start(int queue, const ProxyCommand& c, uint64_t number, Failure* failure) {
        Link& link = queues[queue].links[c.peer];
        const Address& peer = peers[c.peer];
        const bool reads = c.op == kProxyRead;
        const bool copies = reads || (c.op >= kProxyWrite && c.op <= kProxyWriteAddSignal);
        const bool by_immediate = fits_immediate(c);
        const bool by_message = c.op >= kProxyWriteSetSignal && c.op <= kProxyAdd64 && !by_immediate;
        const uint64_t here = reads ? c.target : c.source, there = reads ? c.source : c.target;
        ibv_wr_start(link.requests);
        for (uint64_t at = 0; copies && (at < c.bytes || (at == 0 && !by_message)); at += kMostBytes) {
            const uint64_t part = std::min(kMostBytes, c.bytes - at);
            const bool last = at + part == c.bytes;
            begin(link, number, last && !by_message);
            if (reads) {
                ibv_wr_rdma_read(link.requests, peer.rkey, peer.base + there + at);
            } else if (last && by_immediate) {
                ibv_wr_rdma_write_imm(link.requests, peer.rkey, peer.base + there + at, htonl(to_immediate(c)));
            } else {
                ibv_wr_rdma_write(link.requests, peer.rkey, peer.base + there + at);
            }
            ibv_wr_set_sge(link.requests, heap->lkey, reinterpret_cast<uintptr_t>(base) + here + at,
                           static_cast<uint32_t>(part));
        }
        if (by_message) {
            Message& message = leaving(queue, number);
            message = {c.signal, c.value, c.op, {}};
            begin(link, number, true);
            ibv_wr_send(link.requests);
            ibv_wr_set_sge(link.requests, mail->lkey, reinterpret_cast<uintptr_t>(&message), sizeof message);
        }
        if (const int error = ibv_wr_complete(link.requests))
            return (*failure)("a request for rank %d cannot be posted: %s", c.peer, strerror(error)), false;
        link.has_read |= reads;
        return true;
    }

    bool apply(int op, uint64_t signal, uint64_t value, Failure* failure) {
        ProxyCommand c = {};
        c.op = static_cast<uint16_t>(op);
        c.signal = signal;
        c.value = value;
        c.peer = static_cast<uint16_t>(heaps.rank);
        if (check(heaps, c, -1, failure) < 0) return false;
        apply_signal(c, base);
        return true;
    }

    bool hear(int queue, Failure* failure) {
        ibv_wc completions[16];
        const int count = ibv_poll_cq(queues[queue].received, 16, completions);
        for (int i = 0; i < count; i++) {
            const ibv_wc& wc = completions[i];
            const int rank = static_cast<int>(wc.wr_id >> 32), slot = static_cast<int>(wc.wr_id & 0xffffffff);
            if (wc.status != IBV_WC_SUCCESS)
                return (*failure)("a message of rank %d failed: %s", rank, ibv_wc_status_str(wc.status)), false;
            if (wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
                const uint32_t immediate = ntohl(wc.imm_data);
                if (!apply(kProxyWriteAddSignal, (immediate >> 8) * 8ull, immediate & 255, failure)) return false;
            } else {
                const Message& message = coming(queue, rank, slot);
                if (!apply(message.op, message.signal, message.value, failure)) return false;
            }
            if (!receive(queue, rank, slot, failure)) return false;
        }
        return true;
    }
};

int post(void* state, int queue, const ProxyCommand* batch, int count, Failure* failure) {
    auto& self = *static_cast<Verbs*>(state);
    Queue& q = self.queues[queue];
    int i = 0;
    for (; i < count && q.done.size() < kDepth; i++) {
        const ProxyCommand& c = batch[i];
        if (check(self.heaps, c, queue, failure) < 0) return -1;
        const uint64_t number = q.first + q.done.size();
        if (c.op == kProxyNothing || c.op == kProxyFence) {
            Link& link = q.links[c.peer];
            link.fences_next |= c.op == kProxyFence && link.has_read;
            q.done.push_back(true);
            continue;
        }
        if (!q.links[c.peer].qp) return (*failure)("a command is for rank %d, with which nothing is connected", c.peer);
        if (!self.start(queue, c, number, failure)) return -1;
        q.done.push_back(false);
    }
    return i;
}

int poll(void* state, int queue, Failure* failure) {
    auto& self = *static_cast<Verbs*>(state);
    Queue& q = self.queues[queue];
    ibv_wc completions[16];
    const int count = ibv_poll_cq(q.sent, 16, completions);
    if (count < 0) return (*failure)("a completion queue cannot be read");
    for (int i = 0; i < count; i++) {
        if (completions[i].status != IBV_WC_SUCCESS)
            return (*failure)("a request failed: %s; is the peer still there?",
                              ibv_wc_status_str(completions[i].status));
        q.done[completions[i].wr_id - q.first] = true;
    }
    int commands = 0;
    for (; !q.done.empty() && q.done.front(); commands++) {
        q.done.pop_front();
        q.first++;
    }
    return self.hear(queue, failure) ? commands : -1;
}

bool open_device(Verbs& self, const char* device, Failure* failure) {
    int count = 0;
    ibv_device** devices = ibv_get_device_list(&count);
    if (!devices || !count) return (*failure)("this host has no RDMA device (`ls /sys/class/infiniband`)"), false;
    for (int i = 0; i < count && !self.context; i++)
        if (!*device || !strcmp(device, ibv_get_device_name(devices[i]))) self.context = ibv_open_device(devices[i]);
    ibv_free_device_list(devices);
    if (!self.context)
        return (*failure)("the RDMA device '%s' cannot be opened; `ls /sys/class/infiniband` lists them", device),
               false;
    if (ibv_query_port(self.context, self.port, &self.port_attributes) || self.port_attributes.state != IBV_PORT_ACTIVE)
        return (*failure)("port %d of the RDMA device is not active: `ibv_devinfo` says why", self.port), false;
    if (ibv_query_gid(self.context, self.port, self.gid_index, &self.gid))
        return (*failure)("port %d has no GID %d", self.port, self.gid_index), false;
    return true;
}

bool set_up(Verbs& self, uint64_t bytes, Failure* failure) {
    constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    self.domain = ibv_alloc_pd(self.context);
    if (!self.domain) return (*failure)("a protection domain cannot be had: %s", strerror(errno)), false;
    self.messages.resize(self.mail_of(static_cast<int>(self.queues.size())));
    self.heap = ibv_reg_mr(self.domain, self.base, bytes, kAccess);
    self.mail =
        ibv_reg_mr(self.domain, self.messages.data(), self.messages.size() * sizeof(Message), IBV_ACCESS_LOCAL_WRITE);
    if (!self.heap || !self.mail)
        return (*failure)(
                   "%llu bytes cannot be registered with the NIC: %s (`ulimit -l`; for a GPU's memory "
                   "nvidia_peermem)",
                   (unsigned long long)bytes, strerror(errno)),
               false;
    for (Queue& q : self.queues) {
        const int ranks = self.heaps.ranks;
        q.sent = ibv_create_cq(self.context, kDepth * ranks, nullptr, nullptr, 0);
        q.received = ibv_create_cq(self.context, kReceives * ranks, nullptr, nullptr, 0);
        if (!q.sent || !q.received) return (*failure)("a completion queue cannot be had: %s", strerror(errno)), false;
        q.links.resize(ranks);
        for (int rank = 0; rank < ranks; rank++) {
            if (rank == self.heaps.rank) continue;
            ibv_qp_init_attr_ex wanted = {};
            wanted.send_cq = q.sent;
            wanted.recv_cq = q.received;
            wanted.qp_type = IBV_QPT_RC;
            wanted.cap = {2 * kDepth, kReceives, 1, 1, 0};  // a command takes two requests, or more if it is very large
            wanted.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            wanted.pd = self.domain;
            wanted.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                                    IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_SEND;
            Link& link = q.links[rank];
            link.qp = ibv_create_qp_ex(self.context, &wanted);
            if (!link.qp) return (*failure)("a queue pair cannot be had: %s", strerror(errno)), false;
            link.requests = ibv_qp_to_qp_ex(link.qp);
            ibv_qp_attr to = {};
            to.qp_state = IBV_QPS_INIT;
            to.port_num = static_cast<uint8_t>(self.port);
            to.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
            if (const int error =
                    ibv_modify_qp(link.qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
                return (*failure)("a queue pair cannot be initialized: %s", strerror(error)), false;
        }
    }
    return true;
}

bool connect(Verbs& self, int rank, const Address& peer, Failure* failure) {
    if (peer.magic != kMagic || peer.num_queues != self.queues.size())
        return (*failure)("rank %d's address is none, or of a proxy with another number of rings than %zu", rank,
                          self.queues.size()),
               false;
    self.peers[rank] = peer;
    for (size_t queue = 0; queue < self.queues.size(); queue++) {
        ibv_qp* qp = self.queues[queue].links[rank].qp;
        ibv_qp_attr to = {};
        to.qp_state = IBV_QPS_RTR;
        to.path_mtu = static_cast<ibv_mtu>(std::min<uint32_t>(peer.mtu, self.port_attributes.active_mtu));
        to.dest_qp_num = peer.qp_num[queue];
        to.max_dest_rd_atomic = 16;
        to.min_rnr_timer = 12;  // 0.64 ms, as usual
        to.ah_attr.port_num = static_cast<uint8_t>(self.port);
        to.ah_attr.dlid = static_cast<uint16_t>(peer.lid);
        if (self.port_attributes.link_layer == IBV_LINK_LAYER_ETHERNET) {  // RoCE
            to.ah_attr.is_global = 1;
            memcpy(to.ah_attr.grh.dgid.raw, peer.gid, sizeof peer.gid);
            to.ah_attr.grh.sgid_index = static_cast<uint8_t>(self.gid_index);
            to.ah_attr.grh.hop_limit = 64;
        }
        int error = ibv_modify_qp(qp, &to,
                                  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
        for (int slot = 0; !error && slot < kReceives; slot++)
            if (!self.receive(static_cast<int>(queue), rank, slot, failure)) return false;
        to.qp_state = IBV_QPS_RTS;
        to.timeout = 14;  // 67 ms until a packet is sent again
        to.retry_cnt = 7;
        to.rnr_retry = 7;  // endless: the peer's proxy posts receives again
        to.max_rd_atomic = 16;
        if (!error)
            error = ibv_modify_qp(qp, &to,
                                  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                      IBV_QP_MAX_QP_RD_ATOMIC);
        if (error) return (*failure)("rank %d cannot be connected: %s", rank, strerror(error)), false;
    }
    return true;
}

}  // namespace
}  // namespace proxy
}  // namespace ep

using namespace ep::proxy;

extern "C" {

// The heap, registered with a device ("": the first), with queue pairs for all peers. Null: `text` has the error.
void* ep_verbs_open(const char* device, int port, int gid_index, char* base, uint64_t bytes, int ranks, int rank,
                    int queues, char* text) {
    auto self = new Verbs;
    Failure failure;
    self->heaps = {nullptr, bytes, ranks, rank};
    self->base = base;
    self->port = port;
    self->gid_index = gid_index;
    self->queues.resize(queues);
    self->peers.resize(ranks);
    if (queues > kMaxQueues) failure("there are %d rings; this executor serves at most %d", queues, kMaxQueues);
    if (queues <= kMaxQueues && open_device(*self, device, &failure) && set_up(*self, bytes, &failure)) return self;
    memcpy(text, failure.text, kTextBytes);
    delete self;
    return nullptr;
}

// The data for `peer` to connect with this rank; returns its size.
int64_t ep_verbs_address(void* state, int peer, char* to, uint64_t room) {
    auto& self = *static_cast<Verbs*>(state);
    Address address = {kMagic, self.port_attributes.lid, static_cast<uint32_t>(self.port_attributes.active_mtu),
                       static_cast<uint32_t>(self.queues.size())};
    memcpy(address.gid, self.gid.raw, sizeof address.gid);
    address.base = reinterpret_cast<uintptr_t>(self.base);
    address.rkey = self.heap->rkey;
    for (size_t i = 0; i < self.queues.size(); i++) address.qp_num[i] = self.queues[i].links[peer].qp->qp_num;
    memcpy(to, &address, std::min<uint64_t>(room, sizeof address));
    return sizeof address;
}

// Connects to a peer. -1: `text` has the error.
int ep_verbs_connect(void* state, int rank, const char* address, uint64_t bytes, char* text) {
    Failure failure;
    Address peer = {};
    memcpy(&peer, address, std::min<uint64_t>(bytes, sizeof peer));
    if (bytes == sizeof peer && connect(*static_cast<Verbs*>(state), rank, peer, &failure)) return 0;
    if (!failure.text[0])
        failure("rank %d's address has %llu bytes, not %zu", rank, (unsigned long long)bytes, sizeof peer);
    memcpy(text, failure.text, kTextBytes);
    return -1;
}

void ep_executor_verbs(Executor* executor, void* state) {
    *executor = {state, post, poll, [](void* state) { delete static_cast<Verbs*>(state); }};
}

}  // extern "C"
