// An executor on CUDA's copy engine: a command is a copy in the stream of its queue, and its signal follows in the stream.
// For peers whose memory this process has mapped (CUDA IPC, P2P).
//
// Signals: to set one, the stream itself writes the value (cuStreamWriteValue64), which needs no SM. Adding to one
// takes a kernel of one thread, since other ranks may add to the same counter and the GPU may write to it, so the host
// cannot know its value. HAZARD: that kernel does not run while kernels that wait for it fill all SMs. A waiting kernel
// must leave room for one more block. To avoid other delays, its streams have the highest priority, and it is loaded
// and has run before the first command.
//
// The engine needs 2.6 us between two copies, as long as for a megabyte, for any number of streams. So copies that
// continue each other, in source and target, become one; other large ones go to the driver in one call
// (cuMemcpyBatchAsync, CUDA 13), without order among them and so without gaps. All other work in a stream keeps its
// order.
//
// The stream itself reports completion: behind each batch it writes the batch's number to host memory, which the host
// polls by a load; querying an event costs the driver 1.3 us. benchmarks/NOTES.md has the measurements.
//
// libcuda is opened on demand, so that hosts without it can build and load this library.
#include "engine.hpp"

#include <dlfcn.h>
#include <string.h>

#include <algorithm>
#include <deque>
#include <vector>

namespace ep {
namespace proxy {
namespace {

constexpr int kCudaSuccess = 0, kCudaNotReady = 600;
constexpr unsigned kNonBlocking = 1, kPortableAndMapped = 3;
constexpr int kCanWrite64 = 122;  // CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
constexpr size_t kDepth = 4;      // batches in flight on a queue: later commands meanwhile merge into larger copies
constexpr uint64_t kWarmUpBytes = 16;
constexpr uint64_t kAnyOrderBytes = 64 << 10;  // copies of at least so many bytes may be unordered among themselves
constexpr int kLooksPerQuery = 1024;           // polls of the last finished batch's number, between two of the stream

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
    call(cuStreamQuery, "cuStreamQuery", (void*)) \
    call(cuStreamWriteValue64, "cuStreamWriteValue64_v2", (void*, uintptr_t, uint64_t, unsigned)) \
    call(cuMemHostAlloc, "cuMemHostAlloc", (void**, size_t, unsigned)) \
    call(cuMemFreeHost, "cuMemFreeHost", (void*)) \
    call(cuMemcpyAsync, "cuMemcpyAsync", (uintptr_t, uintptr_t, size_t, void*)) \
    call(cuModuleLoadData, "cuModuleLoadData", (void**, const void*)) \
    call(cuModuleGetFunction, "cuModuleGetFunction", (void**, void*, const char*)) \
    call(cuLaunchKernel, "cuLaunchKernel", (void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**)) \
    call(cuGetErrorString, "cuGetErrorString", (int, const char**))
// clang-format on

// CUmemcpyAttributes, one for all copies of a call: their sources are read in the stream's order.
struct CopyAttributes {
    int source_order = 1;  // CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    int source_location[2] = {}, target_location[2] = {};
    unsigned flags = 0;
};

struct Calls {
#define EP_DECLARE(name, symbol, arguments) int(*name) arguments = nullptr;
    EP_CUDA_CALLS(EP_DECLARE)
#undef EP_DECLARE
    // Null in drivers before CUDA 13.
    int (*cuMemcpyBatchAsync)(uintptr_t*, uintptr_t*, size_t*, size_t, CopyAttributes*, size_t*, size_t, void*);

    int load(const char* library, Failure* failure) {
        void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
        if (!handle) return (*failure)("%s cannot be loaded: %s", library, dlerror());
#define EP_FIND(name, symbol, arguments)                            \
    name = reinterpret_cast<decltype(name)>(dlsym(handle, symbol)); \
    if (!name) return (*failure)("%s has no %s: is that CUDA's driver?", library, symbol);
        EP_CUDA_CALLS(EP_FIND)
#undef EP_FIND
        cuMemcpyBatchAsync = reinterpret_cast<decltype(cuMemcpyBatchAsync)>(dlsym(handle, "cuMemcpyBatchAsync_v2"));
        return 0;
    }
};

struct Batch {
    uint64_t number;
    int commands;
};

bool overlap(const char* one, uint64_t bytes, const char* other, uint64_t other_bytes) {
    return one < other + other_bytes && other < one + bytes;
}

// Merged contiguous copies, not yet in the stream.
struct Piece {
    char* to;
    const char* from;
    uint64_t bytes;

    bool is_continued_by(const Piece& next) const { return next.to == to + bytes && next.from == from + bytes; }
    bool needs_order(const Piece& next) const {
        return overlap(to, bytes, next.to, next.bytes) || overlap(to, bytes, next.from, next.bytes) ||
               overlap(from, bytes, next.to, next.bytes);
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
        std::vector<Piece> pieces;  // not yet in the stream; may be copied in any order
        std::deque<Batch> under_way;
        uint64_t posted = 0;  // batches
        uint64_t* done = nullptr;
        int looks = 0;
    };
    std::vector<Queue> queues;
    struct alignas(64) Done {
        uint64_t batch;  // the number of the last finished one; the stream writes it
    };
    Done* done_of_queues = nullptr;

    ~CopyEngine() {
        if (context) cuda.cuCtxSetCurrent(context);
        for (Queue& q : queues) {
            if (!q.stream) continue;
            cuda.cuStreamSynchronize(q.stream);  // it writes to memory that is freed next
            cuda.cuStreamDestroy(q.stream);
        }
        if (done_of_queues) cuda.cuMemFreeHost(done_of_queues);
        if (context) cuda.cuDevicePrimaryCtxRelease(device);
    }

    // Whether a call has succeeded.
    bool worked(int status, const char* what, Failure* failure) {
        if (status == kCudaSuccess) return true;
        const char* text = nullptr;
        cuda.cuGetErrorString(status, &text);
        (*failure)("CUDA failed (%d, %s) at %s", status, text ? text : "an unknown error", what);
        return false;
    }

    bool flush(Queue& q, Failure* failure) {
        const size_t count = q.pieces.size();
        if (count > 1 && cuda.cuMemcpyBatchAsync) {
            std::vector<uintptr_t> to, from;
            std::vector<size_t> bytes;
            for (const Piece& piece : q.pieces) {
                to.push_back(reinterpret_cast<uintptr_t>(piece.to));
                from.push_back(reinterpret_cast<uintptr_t>(piece.from));
                bytes.push_back(piece.bytes);
            }
            q.pieces.clear();
            CopyAttributes attributes;
            size_t first = 0;
            return worked(
                cuda.cuMemcpyBatchAsync(to.data(), from.data(), bytes.data(), count, &attributes, &first, 1, q.stream),
                "copying", failure);
        }
        bool all_worked = true;
        for (const Piece& piece : q.pieces)
            all_worked =
                all_worked && worked(cuda.cuMemcpyAsync(reinterpret_cast<uintptr_t>(piece.to),
                                                        reinterpret_cast<uintptr_t>(piece.from), piece.bytes, q.stream),
                                     "copying", failure);
        q.pieces.clear();
        return all_worked;
    }

    bool copy(Queue& q, const Piece& next, Failure* failure) {
        if (!next.bytes) return true;
        const auto needs_order = [&](const Piece& piece) { return piece.needs_order(next); };
        if (!q.pieces.empty()) {
            Piece& last = q.pieces.back();
            const bool is_free = std::none_of(q.pieces.begin(), q.pieces.end(), needs_order);
            const bool is_large = next.bytes >= kAnyOrderBytes;
            if (is_free && last.is_continued_by(next) && (is_large || q.pieces.size() == 1)) {
                last.bytes += next.bytes;
                return true;
            }
            if (!(is_free && is_large && last.bytes >= kAnyOrderBytes) && !flush(q, failure)) return false;
        }
        q.pieces.push_back(next);
        return true;
    }

    bool launch_signal(Queue& q, void* counter, uint64_t value, int op, Failure* failure) {
        void* arguments[] = {&counter, &value, &op};
        return worked(cuda.cuLaunchKernel(signal, 1, 1, 1, 1, 1, 1, 0, q.stream, arguments, nullptr),
                      "adding to a signal", failure);
    }

    // Sets a signal by the stream, if possible, else by a kernel.
    bool set(Queue& q, void* to, uint64_t value, const char* what, Failure* failure) {
        if (!writes_values) return launch_signal(q, to, value, kProxyWriteSetSignal, failure);
        return worked(cuda.cuStreamWriteValue64(q.stream, reinterpret_cast<uintptr_t>(to), value, 0), what, failure);
    }

    bool start(Queue& q, const ProxyCommand& c, Failure* failure) {
        if (c.op == kProxyNothing) return true;
        if (c.op == kProxyFence) return flush(q, failure);
        char *const mine = bases[heaps.rank], *const theirs = bases[c.peer];
        if (!theirs)
            return (*failure)("a command is for rank %d, whose memory this process has not mapped", c.peer), false;
        if (c.op == kProxyRead) return copy(q, {mine + c.target, theirs + c.source, c.bytes}, failure);
        if (c.op <= kProxyWriteAddSignal && !copy(q, {theirs + c.target, mine + c.source, c.bytes}, failure))
            return false;
        if (c.op == kProxyWrite) return true;
        if (!flush(q, failure)) return false;
        char* const counter = theirs + c.signal;
        if (c.op != kProxyWriteSetSignal) return launch_signal(q, counter, c.value, c.op, failure);
        return set(q, counter, c.value, "setting a signal", failure);
    }

    // Uses each function once: CUDA loads code at its first use, and may then wait for kernels, which may wait for us.
    // All heaps are still zero. A driver function that fails here is not used again.
    bool warm_up(Queue& q, Failure* failure) {
        const uint64_t last = (heaps.bytes - kWarmUpBytes) & -kWarmUpBytes;
        char* const source = bases[heaps.rank] + last - kWarmUpBytes;
        for (char* base : bases) {
            if (!base) continue;
            if (!copy(q, {base + last, source, kWarmUpBytes}, failure) || !flush(q, failure)) return false;
            const auto value = reinterpret_cast<uintptr_t>(base + last);
            writes_values = writes_values && cuda.cuStreamWriteValue64(q.stream, value, 0, 0) == kCudaSuccess;
            if (!cuda.cuMemcpyBatchAsync) continue;
            uintptr_t to[] = {value, value + kWarmUpBytes / 2}, from[2] = {};
            size_t bytes[] = {kWarmUpBytes / 2, kWarmUpBytes / 2}, first = 0;
            for (int i = 0; i < 2; i++) from[i] = reinterpret_cast<uintptr_t>(source) + i * kWarmUpBytes / 2;
            CopyAttributes attributes;
            if (cuda.cuMemcpyBatchAsync(to, from, bytes, 2, &attributes, &first, 1, q.stream) != kCudaSuccess)
                cuda.cuMemcpyBatchAsync = nullptr;
        }
        return launch_signal(q, nullptr, 0, kProxyNothing, failure) &&
               set(q, q.done, 0, "saying what is done", failure) &&
               worked(cuda.cuStreamSynchronize(q.stream), "its first copies", failure);
    }
};

int post(void* state, int queue, const ProxyCommand* batch, int count, Failure* failure) {
    auto& self = *static_cast<CopyEngine*>(state);
    CopyEngine::Queue& q = self.queues[queue];
    thread_local void* context = nullptr;
    if (context != self.context) {
        if (!self.worked(self.cuda.cuCtxSetCurrent(self.context), "choosing a GPU", failure)) return -1;
        context = self.context;
    }
    if (q.under_way.size() >= kDepth) return 0;
    for (int i = 0; i < count; i++)
        if (check(self.heaps, batch[i], queue, failure) < 0 || !self.start(q, batch[i], failure)) return -1;
    if (!self.flush(q, failure)) return -1;
    q.under_way.push_back({++q.posted, count});
    return self.set(q, q.done, q.posted, "saying what is done", failure) ? count : -1;
}

int poll(void* state, int queue, Failure* failure) {
    auto& self = *static_cast<CopyEngine*>(state);
    CopyEngine::Queue& q = self.queues[queue];
    if (q.under_way.empty()) return 0;
    const uint64_t done = __atomic_load_n(q.done, __ATOMIC_ACQUIRE);
    int commands = 0;
    for (; !q.under_way.empty() && q.under_way.front().number <= done; q.under_way.pop_front())
        commands += q.under_way.front().commands;
    if (commands || ++q.looks % kLooksPerQuery) return commands;
    const int status = self.cuda.cuStreamQuery(q.stream);  // a failed stream never reports completion
    return status == kCudaNotReady || self.worked(status, "a copy", failure) ? 0 : -1;
}

}  // namespace
}  // namespace proxy
}  // namespace ep

using namespace ep::proxy;

extern "C" {

// `bases`: the heaps' addresses in this process, null for unmapped ones; the heaps must be unwritten. `cubin`: contains
// the kernel ep_proxy_signal (../signal.cu). -1: `text` has the error.
int ep_executor_copy_engine(Executor* executor, const char* library, int device, const void* cubin, int queues,
                            char* const* bases, uint64_t heap_bytes, int ranks, int rank, char* text) {
    auto self = new CopyEngine;
    Failure failure;
    self->heaps = {nullptr, heap_bytes, ranks, rank};
    self->bases.assign(bases, bases + ranks);
    self->queues.resize(queues);
    void* module = nullptr;
    Calls& cuda = self->cuda;
    const auto step = [&](int status, const char* what) { return self->worked(status, what, &failure); };
    bool worked =
        cuda.load(library, &failure) == 0 && step(cuda.cuInit(0), "its start") &&
        step(cuda.cuDeviceGet(&self->device, device), "looking for a GPU") &&
        step(cuda.cuDevicePrimaryCtxRetain(&self->context, self->device), "making a context") &&
        step(cuda.cuCtxSetCurrent(self->context), "choosing a GPU") &&
        step(cuda.cuModuleLoadData(&module, cubin), "loading the signal's kernel") &&
        step(cuda.cuModuleGetFunction(&self->signal, module, "ep_proxy_signal"), "finding the signal's kernel");
    int least = 0, greatest = 0;
    // A driver without the attribute cannot write values.
    if (worked && cuda.cuDeviceGetAttribute(&self->writes_values, kCanWrite64, self->device)) self->writes_values = 0;
    void* memory = nullptr;
    const size_t bytes = queues * sizeof(CopyEngine::Done);
    worked = worked && step(cuda.cuCtxGetStreamPriorityRange(&least, &greatest), "asking for priorities") &&
             step(cuda.cuMemHostAlloc(&memory, bytes, kPortableAndMapped), "allocating host memory");
    if (worked) memset(memory, 0, bytes);
    self->done_of_queues = static_cast<CopyEngine::Done*>(memory);
    for (int i = 0; worked && i < queues; i++) {
        self->queues[i].done = &self->done_of_queues[i].batch;
        worked =
            step(cuda.cuStreamCreateWithPriority(&self->queues[i].stream, kNonBlocking, greatest), "making a stream") &&
            self->warm_up(self->queues[i], &failure);
    }
    if (!worked) {
        memcpy(text, failure.text, kTextBytes);
        delete self;
        return -1;
    }
    *executor = {self, post, poll, [](void* state) { delete static_cast<CopyEngine*>(state); }};
    return 0;
}

}  // extern "C"
