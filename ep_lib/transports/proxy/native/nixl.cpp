// An executor on NIXL's own C interface (libnixl_capi, in its wheels): UCX transfers the bytes, without Python.
//
// A WRITE with a signal is a transfer with a notification, which arrives after the bytes and contains the signal, like
// the immediate of an RDMA write; the peer's proxy applies it to its heap. Transfers are unordered among each other, so
// a fence waits until those of its queue are done. An addition on its own is a notification: its completion means that
// it was sent, not that the peer has applied it.
//
// The declarations follow nixl/src/bindings/rust/wrapper.h of NIXL 1.5.
#include "engine.hpp"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <deque>
#include <mutex>
#include <string>
#include <vector>

namespace ep {
namespace proxy {
namespace {

constexpr int kSuccess = 0, kInProgress = 1, kDram = 0, kRead = 0, kWrite = 1, kSyncStrict = 1;
constexpr size_t kDepth = 64;                // transfers in flight on a queue
constexpr uint32_t kMagic = 0x58505045;      // "EPPX"
constexpr size_t kLooksPerNotification = 4;  // polls of queue 0 between two checks for notifications, while busy

struct AgentConfig {
    bool progress_thread, listen_thread;
    uint16_t listen_port;
    int thread_sync;
    unsigned num_workers;
    uint64_t progress_delay_us, listen_delay_us;
    bool telemetry;
};

// The content of a notification: a command's signal.
struct Notification {
    uint32_t magic;
    uint16_t op;
    uint16_t unused;
    uint64_t signal, value;
};

#define EP_NIXL_CALLS(call)                                                                                            \
    call(create_configured_agent, (const char*, const AgentConfig*, void**)) call(destroy_agent, (void*)) call(        \
        get_plugin_params, (void*, const char*, void**, void**)) call(params_add, (void*, const char*, const char*))   \
        call(create_backend, (void*, const char*, void*, void**)) call(create_reg_dlist, (int, void**))                \
            call(reg_dlist_add_desc, (void*, uintptr_t, size_t, uint64_t, const void*, size_t)) call(                  \
                register_mem, (void*, void*, void*)) call(get_local_md, (void*, void**, size_t*))                      \
                call(load_remote_md, (void*, const void*, size_t, char**)) call(                                       \
                    agent_make_connection, (void*, const char*, void*)) call(create_xfer_dlist, (int, void**))         \
                    call(xfer_dlist_add_desc, (void*, uintptr_t, size_t, uint64_t)) call(destroy_xfer_dlist, (void*))  \
                        call(create_opt_args, (void**)) call(opt_args_set_has_notif, (void*, bool))                    \
                            call(opt_args_set_notif_msg, (void*, const void*, size_t)) call(destroy_opt_args, (void*)) \
                                call(create_xfer_req, (void*, int, void*, void*, const char*, void**, void*))          \
                                    call(post_xfer_req, (void*, void*, void*)) call(get_xfer_status, (void*, void*))   \
                                        call(release_xfer_req, (void*, void*)) call(destroy_xfer_req, (void*))         \
                                            call(gen_notif, (void*, const char*, const void*, size_t, void*)) call(    \
                                                create_notif_map, (void**)) call(get_notifs, (void*, void*, void*))    \
                                                call(notif_map_size, (void*, size_t*))                                 \
                                                    call(notif_map_get_agent_at, (void*, size_t, const char**))        \
                                                        call(notif_map_get_notifs_size, (void*, const char*, size_t*)) \
                                                            call(notif_map_get_notif,                                  \
                                                                 (void*, const char*, size_t, const void**, size_t*))  \
                                                                call(notif_map_clear, (void*))

struct Calls {
#define EP_DECLARE(name, arguments) int(*name) arguments = nullptr;
    EP_NIXL_CALLS(EP_DECLARE)
#undef EP_DECLARE

    int load(const char* library, Failure* failure) {
        void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
        if (!handle) return (*failure)("%s cannot be loaded: %s", library, dlerror());
#define EP_FIND(name, arguments)                                                \
    name = reinterpret_cast<decltype(name)>(dlsym(handle, "nixl_capi_" #name)); \
    if (!name) return (*failure)("%s has no nixl_capi_" #name ": it needs NIXL 1.5 or later", library);
        EP_NIXL_CALLS(EP_FIND)
#undef EP_FIND
        return 0;
    }
};

struct Peer {
    std::string name;
    uintptr_t base = 0;
};

struct Transfer {
    void* request;  // null: no request, already complete
    int commands;
};

struct Nixl {
    Calls nixl;
    void *agent = nullptr, *notifications = nullptr;
    Heaps heaps;
    char* base;
    std::vector<Peer> peers;
    std::vector<std::deque<Transfer>> queues;
    std::mutex one_at_a_time;  // an agent has one worker of UCX
    size_t looks = 0;

    ~Nixl() {
        if (agent) nixl.destroy_agent(agent);
    }

    int failed(Failure* failure, const char* what, int status) {
        return (*failure)("NIXL failed (%d) at %s: NIXL_LOG_LEVEL=DEBUG makes it say why", status, what);
    }

    // Starts one transfer for commands to one peer in one direction; the last of them may have a signal.
    int start(int queue, const ProxyCommand* batch, int count, Failure* failure) {
        const bool reads = batch[0].op == kProxyRead;
        const Peer& peer = peers[batch[0].peer];
        void *mine = nullptr, *theirs = nullptr, *options = nullptr, *request = nullptr;
        nixl.create_xfer_dlist(kDram, &mine);
        nixl.create_xfer_dlist(kDram, &theirs);
        for (int i = 0; i < count; i++) {
            const ProxyCommand& c = batch[i];
            nixl.xfer_dlist_add_desc(mine, reinterpret_cast<uintptr_t>(base) + (reads ? c.target : c.source), c.bytes,
                                     0);
            nixl.xfer_dlist_add_desc(theirs, peer.base + (reads ? c.source : c.target), c.bytes, 0);
        }
        const ProxyCommand& last = batch[count - 1];
        if (last.op == kProxyWriteSetSignal || last.op == kProxyWriteAddSignal) {
            const Notification said = {kMagic, last.op, 0, last.signal, last.value};
            nixl.create_opt_args(&options);
            nixl.opt_args_set_notif_msg(options, &said, sizeof said);
            nixl.opt_args_set_has_notif(options, true);
        }
        int status =
            nixl.create_xfer_req(agent, reads ? kRead : kWrite, mine, theirs, peer.name.c_str(), &request, options);
        if (status == kSuccess) status = nixl.post_xfer_req(agent, request, options);
        nixl.destroy_xfer_dlist(mine);
        nixl.destroy_xfer_dlist(theirs);
        if (options) nixl.destroy_opt_args(options);
        if (status != kSuccess && status != kInProgress) return failed(failure, "posting a transfer", status);
        queues[queue].push_back({request, count});
        return 0;
    }

    int notify(int queue, const ProxyCommand& c, Failure* failure) {
        const Notification said = {kMagic, c.op, 0, c.signal, c.value};
        const int status = nixl.gen_notif(agent, peers[c.peer].name.c_str(), &said, sizeof said, nullptr);
        if (status != kSuccess) return failed(failure, "sending a notification", status);
        queues[queue].push_back({nullptr, 1});
        return 0;
    }

    int hear(Failure* failure) {
        int status = nixl.get_notifs(agent, notifications, nullptr);
        if (status != kSuccess) return failed(failure, "reading notifications", status);
        size_t agents = 0;
        nixl.notif_map_size(notifications, &agents);
        for (size_t a = 0; a < agents; a++) {
            const char* name = nullptr;
            size_t count = 0;
            nixl.notif_map_get_agent_at(notifications, a, &name);
            nixl.notif_map_get_notifs_size(notifications, name, &count);
            for (size_t i = 0; i < count; i++) {
                const void* data = nullptr;
                size_t bytes = 0;
                nixl.notif_map_get_notif(notifications, name, i, &data, &bytes);
                Notification said;
                if (bytes != sizeof said || (memcpy(&said, data, bytes), said.magic != kMagic))
                    return (*failure)("%s sent a notification of %zu bytes that is no signal of a proxy", name, bytes);
                ProxyCommand c = {};
                c.op = said.op;
                c.signal = said.signal;
                c.value = said.value;
                c.peer = static_cast<uint16_t>(heaps.rank);
                if (check(heaps, c, -1, failure) < 0) return -1;
                apply_signal(c, base);
            }
        }
        if (agents) nixl.notif_map_clear(notifications);
        return 0;
    }
};

bool moves_bytes(const ProxyCommand& c) {
    return (c.op >= kProxyWrite && c.op <= kProxyWriteAddSignal) || c.op == kProxyRead;
}

int post(void* state, int queue, const ProxyCommand* batch, int count, Failure* failure) {
    auto& self = *static_cast<Nixl*>(state);
    std::lock_guard<std::mutex> guard(self.one_at_a_time);
    auto& under_way = self.queues[queue];
    int i = 0;
    while (i < count && under_way.size() < kDepth) {
        const ProxyCommand& c = batch[i];
        if (check(self.heaps, c, queue, failure) < 0) return -1;
        if (moves_bytes(c) && c.bytes) {
            int n = 1;  // commands in one transfer: one peer, one direction, and only the last with a signal
            while (i + n < count && batch[i + n - 1].op == c.op && (c.op == kProxyWrite || c.op == kProxyRead) &&
                   batch[i + n].peer == c.peer && batch[i + n].bytes &&
                   (batch[i + n].op == c.op ||
                    (c.op == kProxyWrite && moves_bytes(batch[i + n]) && batch[i + n].op != kProxyRead))) {
                if (check(self.heaps, batch[i + n], queue, failure) < 0) return -1;
                n++;
            }
            if (self.start(queue, batch + i, n, failure) < 0) return -1;
            i += n;
        } else if (c.op == kProxyFence || c.op == kProxyNothing) {
            if (c.op == kProxyFence && !under_way.empty()) break;
            under_way.push_back({nullptr, 1});
            i++;
        } else if (c.op >= kProxyWriteSetSignal && c.op <= kProxyAdd64) {
            if (self.notify(queue, c, failure) < 0) return -1;
            i++;
        } else {  // no bytes to move
            under_way.push_back({nullptr, 1});
            i++;
        }
    }
    return i;
}

int poll(void* state, int queue, Failure* failure) {
    auto& self = *static_cast<Nixl*>(state);
    std::lock_guard<std::mutex> guard(self.one_at_a_time);
    auto& under_way = self.queues[queue];
    int done = 0;
    while (!under_way.empty()) {
        const Transfer& first = under_way.front();
        if (first.request) {
            const int status = self.nixl.get_xfer_status(self.agent, first.request);
            if (status == kInProgress) break;
            if (status != kSuccess) return self.failed(failure, "a transfer: is the peer still there", status);
            self.nixl.release_xfer_req(self.agent, first.request);
            self.nixl.destroy_xfer_req(first.request);
        }
        done += first.commands;
        under_way.pop_front();
    }
    const bool looks = queue == 0 && (under_way.empty() || ++self.looks % kLooksPerNotification == 0);
    if (looks && self.hear(failure) < 0) return -1;
    return done;
}

}  // namespace
}  // namespace proxy
}  // namespace ep

using namespace ep::proxy;

extern "C" {

// An agent whose registered memory is this heap. Null: `text` has the error.
void* ep_nixl_open(const char* library, const char* name, char* base, uint64_t bytes, int ranks, int rank, int queues,
                   int is_loopback, char* text) {
    auto self = new Nixl;
    Failure failure;
    void *memories = nullptr, *parameters = nullptr, *backend = nullptr, *regions = nullptr;
    self->heaps = {nullptr, bytes, ranks, rank};
    self->base = base;
    self->peers.resize(ranks);
    self->queues.resize(queues);
    AgentConfig config = {};
    config.thread_sync = kSyncStrict;
    const auto step = [&](const char* what, int status) {
        return status == kSuccess ? true : (self->failed(&failure, what, status), false);
    };
    Calls& nixl = self->nixl;
    const bool done =
        nixl.load(library, &failure) == 0 &&
        step("making an agent", nixl.create_configured_agent(name, &config, &self->agent)) &&
        step("looking for UCX", nixl.get_plugin_params(self->agent, "UCX", &memories, &parameters)) &&
        step("choosing UCX's mode",
             nixl.params_add(parameters, "ucx_error_handling_mode", is_loopback ? "none" : "peer")) &&
        step("loading UCX", nixl.create_backend(self->agent, "UCX", parameters, &backend)) &&
        step("making a list", nixl.create_reg_dlist(kDram, &regions)) &&
        step("making a list", nixl.reg_dlist_add_desc(regions, reinterpret_cast<uintptr_t>(base), bytes, 0, "", 0)) &&
        step("registering memory", nixl.register_mem(self->agent, regions, nullptr)) &&
        step("making a map", nixl.create_notif_map(&self->notifications));
    if (done) return self;
    memcpy(text, failure.text, kTextBytes);
    delete self;
    return nullptr;
}

// The metadata of this agent for a peer; returns their size, and writes at most `room` bytes. -1: see `text`.
int64_t ep_nixl_metadata(void* state, char* to, uint64_t room, char* text) {
    auto& self = *static_cast<Nixl*>(state);
    void* data = nullptr;
    size_t bytes = 0;
    Failure failure;
    if (const int status = self.nixl.get_local_md(self.agent, &data, &bytes)) {
        self.failed(&failure, "giving metadata", status);
        memcpy(text, failure.text, kTextBytes);
        return -1;
    }
    memcpy(to, data, bytes < room ? bytes : room);
    free(data);
    return static_cast<int64_t>(bytes);
}

// Adds a peer by its metadata; `base`: its heap's address in its own process. -1: see `text`.
int ep_nixl_connect(void* state, int rank, const char* metadata, uint64_t bytes, uint64_t base, char* text) {
    auto& self = *static_cast<Nixl*>(state);
    char* name = nullptr;
    Failure failure;
    int status = self.nixl.load_remote_md(self.agent, metadata, bytes, &name);
    const char* what = "reading a peer's metadata";
    if (status == kSuccess) {
        self.peers[rank].name = name;
        self.peers[rank].base = base;
        free(name);
        what = "connecting with a peer";
        status = self.nixl.agent_make_connection(self.agent, self.peers[rank].name.c_str(), nullptr);
    }
    if (status == kSuccess || status == kInProgress) return 0;
    self.failed(&failure, what, status);
    memcpy(text, failure.text, kTextBytes);
    return -1;
}

void ep_executor_nixl(Executor* executor, void* state) {
    *executor = {state, post, poll, [](void* state) { delete static_cast<Nixl*>(state); }};
}

}  // extern "C"
