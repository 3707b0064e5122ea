// An executor on CUDA's copy engine: each command is a cuMemcpyAsync on the stream of its queue, its signal a kernel of one
// thread behind it. For peers whose memory this process has mapped (CUDA IPC, P2P).
//
// libcuda is opened when it is asked for, so that hosts without it build and load this library. A stream keeps its order:
// fences have nothing to do.
#include "engine.hpp"

#include <dlfcn.h>
#include <string.h>

#include <deque>
#include <vector>

namespace ep {
namespace proxy {
namespace {

constexpr int kCudaSuccess = 0, kCudaNotReady = 600;
constexpr unsigned kNonBlocking = 1, kDisableTiming = 2;
constexpr size_t kDepth = 256;  // batches under way on a queue

#define EP_CUDA_CALLS(call)                                                                                          \
    call(cuInit, "cuInit", (unsigned)) call(cuDeviceGet, "cuDeviceGet", (int*, int)) call(                           \
        cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (void**, int))                                         \
        call(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (int)) call(                                 \
            cuCtxSetCurrent, "cuCtxSetCurrent", (void*)) call(cuStreamCreate, "cuStreamCreate", (void**, unsigned))  \
            call(cuStreamDestroy, "cuStreamDestroy_v2", (void*))                                                     \
                call(cuEventCreate, "cuEventCreate", (void**, unsigned))                                             \
                    call(cuEventRecord, "cuEventRecord", (void*, void*)) call(cuEventQuery, "cuEventQuery", (void*)) \
                        call(cuEventDestroy, "cuEventDestroy_v2", (void*))                                           \
                            call(cuMemcpyAsync, "cuMemcpyAsync", (uintptr_t, uintptr_t, size_t, void*))              \
                                call(cuModuleLoadData, "cuModuleLoadData", (void**, const void*))                    \
                                    call(cuModuleGetFunction, "cuModuleGetFunction", (void**, void*, const char*))   \
                                        call(cuLaunchKernel, "cuLaunchKernel",                                       \
                                             (void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,     \
                                              unsigned, void*, void**, void**))                                      \
                                            call(cuGetErrorString, "cuGetErrorString", (int, const char**))

struct Calls {
#define EP_DECLARE(name, symbol, arguments) int(*name) arguments = nullptr;
    EP_CUDA_CALLS(EP_DECLARE)
#undef EP_DECLARE

    int load(const char* library, Failure* failure) {
        void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
        if (!handle) return (*failure)("%s cannot be loaded: %s", library, dlerror());
#define EP_FIND(name, symbol, arguments)                            \
    name = reinterpret_cast<decltype(name)>(dlsym(handle, symbol)); \
    if (!name) return (*failure)("%s has no %s: is that CUDA's driver?", library, symbol);
        EP_CUDA_CALLS(EP_FIND)
#undef EP_FIND
        return 0;
    }
};

struct Batch {
    void* event;
    int commands;
};

struct CopyEngine {
    Calls cuda;
    Heaps heaps;
    std::vector<char*> bases;
    int device = -1;
    void *context = nullptr, *signal = nullptr;
    struct Queue {
        void* stream = nullptr;
        std::deque<Batch> under_way;
        std::vector<void*> spare_events;
    };
    std::vector<Queue> queues;

    ~CopyEngine() {
        if (context) cuda.cuCtxSetCurrent(context);
        for (Queue& q : queues) {
            for (const Batch& batch : q.under_way) cuda.cuEventDestroy(batch.event);
            for (void* event : q.spare_events) cuda.cuEventDestroy(event);
            if (q.stream) cuda.cuStreamDestroy(q.stream);
        }
        if (context) cuda.cuDevicePrimaryCtxRelease(device);
    }

    // Whether a call has worked.
    bool done(int status, const char* what, Failure* failure) {
        if (status == kCudaSuccess) return true;
        const char* text = nullptr;
        cuda.cuGetErrorString(status, &text);
        (*failure)("CUDA failed (%d, %s) at %s", status, text ? text : "an unknown error", what);
        return false;
    }

    bool copy(Queue& q, char* to, const char* from, uint64_t bytes, Failure* failure) {
        return !bytes || done(cuda.cuMemcpyAsync(reinterpret_cast<uintptr_t>(to), reinterpret_cast<uintptr_t>(from),
                                                 bytes, q.stream),
                              "copying", failure);
    }

    bool start(Queue& q, const ProxyCommand& c, Failure* failure) {
        char *const mine = bases[heaps.rank], *const theirs = bases[c.peer];
        if (!theirs)
            return (*failure)("a command is for rank %d, whose memory this process has not mapped", c.peer), false;
        if (c.op >= kProxyWrite && c.op <= kProxyWriteAddSignal &&
            !copy(q, theirs + c.target, mine + c.source, c.bytes, failure))
            return false;
        if (c.op == kProxyRead && !copy(q, mine + c.target, theirs + c.source, c.bytes, failure)) return false;
        if (c.op < kProxyWriteSetSignal || c.op > kProxyAdd64) return true;
        void* counter = theirs + c.signal;
        uint64_t value = c.value;
        int op = c.op;
        void* arguments[] = {&counter, &value, &op};
        return done(cuda.cuLaunchKernel(signal, 1, 1, 1, 1, 1, 1, 0, q.stream, arguments, nullptr), "signalling",
                    failure);
    }
};

int post(void* state, int queue, const ProxyCommand* batch, int count, Failure* failure) {
    auto& self = *static_cast<CopyEngine*>(state);
    CopyEngine::Queue& q = self.queues[queue];
    thread_local void* context = nullptr;
    if (context != self.context) {
        if (!self.done(self.cuda.cuCtxSetCurrent(self.context), "choosing a GPU", failure)) return -1;
        context = self.context;
    }
    if (q.under_way.size() >= kDepth) return 0;
    for (int i = 0; i < count; i++)
        if (check(self.heaps, batch[i], failure) < 0 || !self.start(q, batch[i], failure)) return -1;
    void* event = nullptr;
    if (q.spare_events.empty()) {
        if (!self.done(self.cuda.cuEventCreate(&event, kDisableTiming), "making an event", failure)) return -1;
    } else {
        event = q.spare_events.back();
        q.spare_events.pop_back();
    }
    q.under_way.push_back({event, count});
    return self.done(self.cuda.cuEventRecord(event, q.stream), "recording an event", failure) ? count : -1;
}

int poll(void* state, int queue, Failure* failure) {
    auto& self = *static_cast<CopyEngine*>(state);
    CopyEngine::Queue& q = self.queues[queue];
    int commands = 0;
    while (!q.under_way.empty()) {
        const int status = self.cuda.cuEventQuery(q.under_way.front().event);
        if (status == kCudaNotReady) break;
        if (!self.done(status, "a copy", failure)) return -1;
        commands += q.under_way.front().commands;
        q.spare_events.push_back(q.under_way.front().event);
        q.under_way.pop_front();
    }
    return commands;
}

}  // namespace
}  // namespace proxy
}  // namespace ep

using namespace ep::proxy;

extern "C" {

// `bases`: the heaps' addresses in this process, null where it has not mapped one. `cubin`: has the kernel ep_proxy_signal
// (../signal.cu). -1: `text` says why.
int ep_executor_copy_engine(Executor* executor, const char* library, int device, const void* cubin, int queues,
                            char* const* bases, uint64_t heap_bytes, int ranks, int rank, char* text) {
    auto self = new CopyEngine;
    Failure failure;
    self->heaps = {nullptr, heap_bytes, ranks, rank};
    self->bases.assign(bases, bases + ranks);
    self->queues.resize(queues);
    void* module = nullptr;
    Calls& cuda = self->cuda;
    const auto step = [&](int status, const char* what) { return self->done(status, what, &failure); };
    bool done = cuda.load(library, &failure) == 0 && step(cuda.cuInit(0), "its start") &&
                step(cuda.cuDeviceGet(&self->device, device), "looking for a GPU") &&
                step(cuda.cuDevicePrimaryCtxRetain(&self->context, self->device), "making a context") &&
                step(cuda.cuCtxSetCurrent(self->context), "choosing a GPU") &&
                step(cuda.cuModuleLoadData(&module, cubin), "loading the signal's kernel") &&
                step(cuda.cuModuleGetFunction(&self->signal, module, "ep_proxy_signal"), "finding the signal's kernel");
    for (int i = 0; done && i < queues; i++)
        done = step(cuda.cuStreamCreate(&self->queues[i].stream, kNonBlocking), "making a stream");
    if (!done) {
        memcpy(text, failure.text, kTextBytes);
        delete self;
        return -1;
    }
    *executor = {self, post, poll, [](void* state) { delete static_cast<CopyEngine*>(state); }};
    return 0;
}

}  // extern "C"
