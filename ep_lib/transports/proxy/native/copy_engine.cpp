// An executor on CUDA's copy engine: each command is a cuMemcpyAsync on the stream of its queue, and its signal follows in
// the stream. For peers whose memory this process has mapped (CUDA IPC, P2P).
//
// Signals: to set one, the stream itself writes the value (cuStreamWriteValue64), which needs no SM. To add to one takes a
// kernel of one thread, since other ranks may add to the same counter and the GPU may have written to it: no count that
// the host keeps would do. HAZARD: that kernel does not run while kernels that wait for it fill all SMs. A kernel
// that waits must leave room for one block more. So that nothing else holds it up, its streams have the highest priority,
// and it is loaded and has run before the first command.
//
// Copies that continue each other, in source and target, become one. A stream keeps its order: fences have nothing to do.
// libcuda is opened when it is asked for, so that hosts without it build and load this library.
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
constexpr int kCanWrite64 = 122;  // CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
constexpr size_t kDepth = 4;      // batches under way on a queue: what comes meanwhile merges into larger copies
constexpr uint64_t kWarmUpBytes = 16;

// clang-format off
#define EP_CUDA_CALLS(call) \
    call(cuInit, "cuInit", (unsigned)) \
    call(cuDeviceGet, "cuDeviceGet", (int*, int)) \
    call(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int*, int, int)) \
    call(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (void**, int)) \
    call(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (int)) \
    call(cuCtxSetCurrent, "cuCtxSetCurrent", (void*)) \
    call(cuCtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", (int*, int*)) \
    call(cuStreamCreateWithPriority, "cuStreamCreateWithPriority", (void**, unsigned, int)) \
    call(cuStreamDestroy, "cuStreamDestroy_v2", (void*)) \
    call(cuStreamSynchronize, "cuStreamSynchronize", (void*)) \
    call(cuStreamWriteValue64, "cuStreamWriteValue64_v2", (void*, uintptr_t, uint64_t, unsigned)) \
    call(cuEventCreate, "cuEventCreate", (void**, unsigned)) \
    call(cuEventRecord, "cuEventRecord", (void*, void*)) \
    call(cuEventQuery, "cuEventQuery", (void*)) \
    call(cuEventDestroy, "cuEventDestroy_v2", (void*)) \
    call(cuMemcpyAsync, "cuMemcpyAsync", (uintptr_t, uintptr_t, size_t, void*)) \
    call(cuModuleLoadData, "cuModuleLoadData", (void**, const void*)) \
    call(cuModuleGetFunction, "cuModuleGetFunction", (void**, void*, const char*)) \
    call(cuLaunchKernel, "cuLaunchKernel", (void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**)) \
    call(cuGetErrorString, "cuGetErrorString", (int, const char**))
// clang-format on

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

// Copies that continue each other, not yet in the stream.
struct Piece {
    char* to = nullptr;
    const char* from = nullptr;
    uint64_t bytes = 0;

    bool is_continued_by(const char* next_to, const char* next_from, uint64_t more) const {
        const uint64_t apart = to > from ? to - from : from - to;
        return bytes && next_to == to + bytes && next_from == from + bytes && apart >= bytes + more;
    }
};

struct CopyEngine {
    Calls cuda;
    Heaps heaps;
    std::vector<char*> bases;
    int device = -1, writes_values = 0;
    void *context = nullptr, *signal = nullptr;
    struct Queue {
        void* stream = nullptr;
        Piece piece;
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

    bool flush(Queue& q, Failure* failure) {
        const Piece piece = q.piece;
        q.piece = {};
        return !piece.bytes || done(cuda.cuMemcpyAsync(reinterpret_cast<uintptr_t>(piece.to),
                                                       reinterpret_cast<uintptr_t>(piece.from), piece.bytes, q.stream),
                                    "copying", failure);
    }

    bool copy(Queue& q, char* to, const char* from, uint64_t bytes, Failure* failure) {
        if (q.piece.is_continued_by(to, from, bytes)) {
            q.piece.bytes += bytes;
            return true;
        }
        if (!bytes) return true;
        if (!flush(q, failure)) return false;
        q.piece = {to, from, bytes};
        return true;
    }

    bool launch_signal(Queue& q, void* counter, uint64_t value, int op, Failure* failure) {
        void* arguments[] = {&counter, &value, &op};
        return done(cuda.cuLaunchKernel(signal, 1, 1, 1, 1, 1, 1, 0, q.stream, arguments, nullptr),
                    "adding to a signal", failure);
    }

    int write_value(Queue& q, char* to, uint64_t value) {
        return cuda.cuStreamWriteValue64(q.stream, reinterpret_cast<uintptr_t>(to), value, 0);
    }

    bool start(Queue& q, const ProxyCommand& c, Failure* failure) {
        if (c.op == kProxyNothing || c.op == kProxyFence) return true;
        char *const mine = bases[heaps.rank], *const theirs = bases[c.peer];
        if (!theirs)
            return (*failure)("a command is for rank %d, whose memory this process has not mapped", c.peer), false;
        if (c.op == kProxyRead) return copy(q, mine + c.target, theirs + c.source, c.bytes, failure);
        if (c.op <= kProxyWriteAddSignal && !copy(q, theirs + c.target, mine + c.source, c.bytes, failure))
            return false;
        if (c.op == kProxyWrite) return true;
        if (!flush(q, failure)) return false;
        char* const counter = theirs + c.signal;
        if (c.op != kProxyWriteSetSignal || !writes_values) return launch_signal(q, counter, c.value, c.op, failure);
        return done(write_value(q, counter, c.value), "setting a signal", failure);
    }

    // CUDA loads code when it is first used, and may wait for kernels then, which may wait for us. All heaps are zero yet.
    bool warm_up(Queue& q, Failure* failure) {
        const uint64_t last = (heaps.bytes - kWarmUpBytes) & -kWarmUpBytes;
        char* const source = bases[heaps.rank] + last - kWarmUpBytes;
        for (char* base : bases) {
            if (!base) continue;
            if (!copy(q, base + last, source, kWarmUpBytes, failure) || !flush(q, failure)) return false;
            writes_values = writes_values && write_value(q, base + last, 0) == kCudaSuccess;  // else the kernel does it
        }
        return launch_signal(q, nullptr, 0, kProxyNothing, failure) &&
               done(cuda.cuStreamSynchronize(q.stream), "its first copies", failure);
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
    if (!self.flush(q, failure)) return -1;
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

// `bases`: the heaps' addresses in this process, null where it has not mapped one; nobody has written to them. `cubin`:
// has the kernel ep_proxy_signal (../signal.cu). -1: `text` says why.
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
    int least = 0, greatest = 0;
    // A driver that does not know the attribute cannot do it.
    if (done && cuda.cuDeviceGetAttribute(&self->writes_values, kCanWrite64, self->device)) self->writes_values = 0;
    done = done && step(cuda.cuCtxGetStreamPriorityRange(&least, &greatest), "asking for priorities");
    for (int i = 0; done && i < queues; i++) {
        done =
            step(cuda.cuStreamCreateWithPriority(&self->queues[i].stream, kNonBlocking, greatest), "making a stream") &&
            self->warm_up(self->queues[i], &failure);
    }
    if (!done) {
        memcpy(text, failure.text, kTextBytes);
        delete self;
        return -1;
    }
    *executor = {self, post, poll, [](void* state) { delete static_cast<CopyEngine*>(state); }};
    return 0;
}

}  // extern "C"
