// A fake of the verbs that extras/verbs/verbs.cpp calls, under their own names and with the fields that it uses: two
// ranks of one process, and a NIC that works when a sender's completion queue is read. Requests of a queue pair stay in
// order; a request that needs a receive waits for one. FAKE_VERBS names the failure: "device", "port", "memory", or
// "request" (the next one completes with an error).
#pragma once
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <deque>
#include <map>
#include <mutex>
#include <vector>

enum { IBV_ACCESS_LOCAL_WRITE = 1, IBV_ACCESS_REMOTE_WRITE = 2, IBV_ACCESS_REMOTE_READ = 4 };
enum { IBV_SEND_FENCE = 1, IBV_SEND_SIGNALED = 2 };
enum ibv_port_state { IBV_PORT_DOWN = 1, IBV_PORT_ACTIVE = 4 };
enum ibv_mtu { IBV_MTU_1024 = 3, IBV_MTU_4096 = 5 };
enum { IBV_LINK_LAYER_INFINIBAND = 1, IBV_LINK_LAYER_ETHERNET = 2 };
enum ibv_qp_type { IBV_QPT_RC = 2 };
enum ibv_qp_state { IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS };
enum { IBV_QP_INIT_ATTR_PD = 1, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 64 };
enum {
    IBV_QP_EX_WITH_RDMA_WRITE = 1,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = 2,
    IBV_QP_EX_WITH_SEND = 4,
    IBV_QP_EX_WITH_RDMA_READ = 16
};
enum {
    IBV_QP_STATE = 1,
    IBV_QP_ACCESS_FLAGS = 8,
    IBV_QP_PKEY_INDEX = 16,
    IBV_QP_PORT = 32,
    IBV_QP_AV = 128,
    IBV_QP_PATH_MTU = 256,
    IBV_QP_TIMEOUT = 512,
    IBV_QP_RETRY_CNT = 1024,
    IBV_QP_RNR_RETRY = 2048,
    IBV_QP_RQ_PSN = 4096,
    IBV_QP_MAX_QP_RD_ATOMIC = 8192,
    IBV_QP_MIN_RNR_TIMER = 1 << 15,
    IBV_QP_SQ_PSN = 1 << 16,
    IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
    IBV_QP_DEST_QPN = 1 << 20
};
enum ibv_wc_status { IBV_WC_SUCCESS, IBV_WC_RETRY_EXC_ERR = 12 };
enum ibv_wc_opcode { IBV_WC_RDMA_WRITE = 1, IBV_WC_RECV = 128, IBV_WC_RECV_RDMA_WITH_IMM };

struct ibv_device {};
struct ibv_context {};
struct ibv_pd {};
struct ibv_mr {
    void* addr;
    size_t length;
    uint32_t lkey, rkey;
};
union ibv_gid {
    uint8_t raw[16];
};
struct ibv_port_attr {
    ibv_port_state state;
    ibv_mtu active_mtu;
    uint16_t lid;
    uint8_t link_layer;
};
struct ibv_wc {
    uint64_t wr_id;
    ibv_wc_status status;
    ibv_wc_opcode opcode;
    uint32_t imm_data;
};
struct ibv_cq {
    std::deque<ibv_wc> done;
    std::vector<struct ibv_qp*> senders;
};
struct ibv_sge {
    uint64_t addr;
    uint32_t length, lkey;
};
struct ibv_recv_wr {
    uint64_t wr_id;
    ibv_recv_wr* next;
    ibv_sge* sg_list;
    int num_sge;
};
struct ibv_qp_cap {
    uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
};
struct ibv_qp_init_attr_ex {
    ibv_cq *send_cq, *recv_cq;
    ibv_qp_cap cap;
    ibv_qp_type qp_type;
    uint32_t comp_mask;
    ibv_pd* pd;
    uint64_t send_ops_flags;
};
struct ibv_qp_attr {
    ibv_qp_state qp_state;
    ibv_mtu path_mtu;
    uint32_t rq_psn, sq_psn, dest_qp_num;
    int qp_access_flags;
    struct {
        struct {
            ibv_gid dgid;
            uint8_t sgid_index, hop_limit;
        } grh;
        uint16_t dlid;
        uint8_t is_global, port_num;
    } ah_attr;
    uint16_t pkey_index;
    uint8_t max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry;
};

namespace fake {
enum Kind { kWrite, kWriteImm, kRead, kSend };
struct Request {
    uint64_t wr_id;
    unsigned flags;
    Kind kind;
    uint32_t rkey, immediate;
    uint64_t remote;
    ibv_sge place;
};
inline std::recursive_mutex nic;  // both ranks' proxies are threads of one process
inline std::map<uint32_t, ibv_mr*> regions;
inline std::map<uint32_t, struct ibv_qp*> queue_pairs;
inline uint32_t next_key = 100;
inline bool fails(const char* what) {
    const char* wanted = getenv("FAKE_VERBS");
    return wanted && !strcmp(wanted, what);
}
inline bool has(uint32_t key, uint64_t begin, uint64_t bytes) {
    const auto it = regions.find(key);
    if (it == regions.end()) return false;
    const auto first = reinterpret_cast<uint64_t>(it->second->addr);
    return begin >= first && begin + bytes <= first + it->second->length;
}
}  // namespace fake

struct ibv_qp {
    uint32_t qp_num;
    ibv_qp_state state;
};
struct ibv_qp_ex {
    ibv_qp qp_base;
    uint64_t wr_id;
    unsigned wr_flags;
    ibv_cq *sent, *received;
    uint32_t room, peer = 0;
    std::vector<fake::Request> begun;
    std::deque<fake::Request> queue;
    std::deque<ibv_recv_wr> receives;
    std::deque<ibv_sge> places;
};

namespace fake {
inline ibv_qp_ex* of(ibv_qp* qp) { return reinterpret_cast<ibv_qp_ex*>(qp); }

// One request. False if it has to wait for a receive.
inline bool carry_out(ibv_qp_ex& from, const Request& r) {
    const auto it = queue_pairs.find(from.peer);
    if (it == queue_pairs.end()) return false;
    ibv_qp_ex& to = *of(it->second);
    const bool takes = r.kind == kWriteImm || r.kind == kSend;
    if (takes && to.receives.empty()) return false;
    auto* const here = reinterpret_cast<void*>(r.place.addr);
    auto* const there = reinterpret_cast<void*>(r.remote);
    bool right = has(r.place.lkey, r.place.addr, r.place.length) && !fails("request");
    if (r.kind != kSend) right = right && has(r.rkey, r.remote, r.place.length);
    if (right && (r.kind == kWrite || r.kind == kWriteImm)) memcpy(there, here, r.place.length);
    if (right && r.kind == kRead) memcpy(here, there, r.place.length);
    if (right && takes) {
        if (r.kind == kSend) memcpy(reinterpret_cast<void*>(to.places.front().addr), here, r.place.length);
        to.received->done.push_back({to.receives.front().wr_id, IBV_WC_SUCCESS,
                                     r.kind == kSend ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM, r.immediate});
        to.receives.pop_front();
        to.places.pop_front();
    }
    if (!right || (r.flags & IBV_SEND_SIGNALED))
        from.sent->done.push_back({r.wr_id, right ? IBV_WC_SUCCESS : IBV_WC_RETRY_EXC_ERR, IBV_WC_RDMA_WRITE, 0});
    return true;
}
inline void add(ibv_qp_ex* qp, Kind kind, uint32_t rkey, uint64_t remote, uint32_t immediate) {
    qp->begun.push_back({qp->wr_id, qp->wr_flags, kind, rkey, immediate, remote, {}});
}
}  // namespace fake

inline ibv_device** ibv_get_device_list(int* count) {
    static ibv_device device;
    static ibv_device* list[] = {&device, nullptr};
    *count = fake::fails("device") ? 0 : 1;
    return list;
}
inline void ibv_free_device_list(ibv_device**) {}
inline const char* ibv_get_device_name(ibv_device*) { return "fake_0"; }
inline ibv_context* ibv_open_device(ibv_device*) { return new ibv_context; }
inline int ibv_close_device(ibv_context* context) { return delete context, 0; }
inline int ibv_query_port(ibv_context*, int, ibv_port_attr* found) {
    *found = {fake::fails("port") ? IBV_PORT_DOWN : IBV_PORT_ACTIVE, IBV_MTU_4096, 7, IBV_LINK_LAYER_ETHERNET};
    return 0;
}
inline int ibv_query_gid(ibv_context*, int, int, ibv_gid* gid) { return memset(gid, 3, sizeof *gid), 0; }
inline ibv_pd* ibv_alloc_pd(ibv_context*) { return new ibv_pd; }
inline int ibv_dealloc_pd(ibv_pd* pd) { return delete pd, 0; }
inline ibv_mr* ibv_reg_mr(ibv_pd*, void* address, size_t bytes, int) {
    std::lock_guard<std::recursive_mutex> guard(fake::nic);
    if (fake::fails("memory")) return errno = ENOMEM, nullptr;
    auto mr = new ibv_mr{address, bytes, fake::next_key, fake::next_key};
    return fake::regions[fake::next_key++] = mr;
}
inline int ibv_dereg_mr(ibv_mr* mr) {
    std::lock_guard<std::recursive_mutex> guard(fake::nic);
    fake::regions.erase(mr->rkey);
    return delete mr, 0;
}
inline ibv_cq* ibv_create_cq(ibv_context*, int, void*, void*, int) { return new ibv_cq; }
inline int ibv_destroy_cq(ibv_cq* cq) { return delete cq, 0; }
inline ibv_qp* ibv_create_qp_ex(ibv_context*, ibv_qp_init_attr_ex* wanted) {
    std::lock_guard<std::recursive_mutex> guard(fake::nic);
    auto qp = new ibv_qp_ex;
    qp->qp_base = {fake::next_key++, IBV_QPS_RESET};
    qp->sent = wanted->send_cq;
    qp->received = wanted->recv_cq;
    qp->room = wanted->cap.max_send_wr;
    qp->sent->senders.push_back(&qp->qp_base);
    return fake::queue_pairs[qp->qp_base.qp_num] = &qp->qp_base;
}
inline int ibv_destroy_qp(ibv_qp* qp) {
    std::lock_guard<std::recursive_mutex> guard(fake::nic);
    fake::queue_pairs.erase(qp->qp_num);
    return delete fake::of(qp), 0;
}
inline ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) { return fake::of(qp); }
inline int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* to, int mask) {
    std::lock_guard<std::recursive_mutex> guard(fake::nic);
    if (to->qp_state != qp->state + 1) return EINVAL;  // INIT, RTR, RTS, one after the other
    if (to->qp_state == IBV_QPS_RTR && !(mask & IBV_QP_DEST_QPN && mask & IBV_QP_AV && to->ah_attr.is_global))
        return EINVAL;
    if (to->qp_state == IBV_QPS_RTR) fake::of(qp)->peer = to->dest_qp_num;
    qp->state = to->qp_state;
    return 0;
}
inline int ibv_post_recv(ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr**) {
    std::lock_guard<std::recursive_mutex> guard(fake::nic);
    fake::of(qp)->receives.push_back(*request);
    fake::of(qp)->places.push_back(*request->sg_list);
    return 0;
}
inline void ibv_wr_start(ibv_qp_ex* qp) { qp->begun.clear(); }
inline void ibv_wr_rdma_write(ibv_qp_ex* qp, uint32_t rkey, uint64_t remote) {
    fake::add(qp, fake::kWrite, rkey, remote, 0);
}
inline void ibv_wr_rdma_write_imm(ibv_qp_ex* qp, uint32_t rkey, uint64_t remote, uint32_t immediate) {
    fake::add(qp, fake::kWriteImm, rkey, remote, immediate);
}
inline void ibv_wr_rdma_read(ibv_qp_ex* qp, uint32_t rkey, uint64_t remote) {
    fake::add(qp, fake::kRead, rkey, remote, 0);
}
inline void ibv_wr_send(ibv_qp_ex* qp) { fake::add(qp, fake::kSend, 0, 0, 0); }
inline void ibv_wr_set_sge(ibv_qp_ex* qp, uint32_t lkey, uint64_t address, uint32_t bytes) {
    qp->begun.back().place = {address, bytes, lkey};
}
inline int ibv_wr_complete(ibv_qp_ex* qp) {
    std::lock_guard<std::recursive_mutex> guard(fake::nic);
    if (qp->qp_base.state != IBV_QPS_RTS) return EINVAL;
    if (qp->queue.size() + qp->begun.size() > qp->room) return ENOMEM;
    qp->queue.insert(qp->queue.end(), qp->begun.begin(), qp->begun.end());
    return 0;
}
inline int ibv_poll_cq(ibv_cq* cq, int most, ibv_wc* found) {
    std::lock_guard<std::recursive_mutex> guard(fake::nic);
    for (ibv_qp* sender : cq->senders) {
        ibv_qp_ex& qp = *fake::of(sender);
        for (int i = 0; i < 3 && !qp.queue.empty() && fake::carry_out(qp, qp.queue.front()); i++) qp.queue.pop_front();
    }
    int count = 0;
    for (; count < most && !cq->done.empty(); count++) {
        found[count] = cq->done.front();
        cq->done.pop_front();
    }
    return count;
}
inline const char* ibv_wc_status_str(ibv_wc_status) { return "transport retry counter exceeded"; }
