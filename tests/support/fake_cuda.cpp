// What the copy engine's executor calls of libcuda, without a GPU: work in a stream is done when somebody has asked about the
// stream twice, so that a completion is never there at once. FAKE_CUDA_FAILS names a call that fails,
// FAKE_CUDA_WRITES_NO_VALUES makes a device whose streams write no 64-bit values. A batch is copied from its last one on.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <deque>
#include <functional>

namespace {
struct Stream {
    std::deque<std::function<void()>> work;
    int asked = 0;
};
void run(Stream& stream) {
    while (!stream.work.empty()) {
        stream.work.front()();
        stream.work.pop_front();
    }
}
int context_of_gpu, module_of_gpu, signal_of_gpu;
std::atomic<int> copied, batched, written, launched;  // calls so far, of all threads
bool fails(const char* call) {
    const char* name = getenv("FAKE_CUDA_FAILS");
    return name && !strcmp(name, call);
}
}  // namespace

#define CALL(name, ...) extern "C" int name(__VA_ARGS__)
#define MAY_FAIL(name) \
    if (fails(name)) return 2

CALL(cuInit, unsigned) {
    MAY_FAIL("cuInit");
    return 0;
}
CALL(cuDeviceGet, int* device, int number) {
    *device = number;
    return number > 1 ? 101 : 0;
}
CALL(cuDevicePrimaryCtxRetain, void** context, int) {
    *context = &context_of_gpu;
    return 0;
}
CALL(cuDevicePrimaryCtxRelease_v2, int) { return 0; }
CALL(cuCtxSetCurrent, void* context) { return context == &context_of_gpu ? 0 : 201; }
CALL(cuDeviceGetAttribute, int* value, int which, int) {
    *value = which == 122 && !getenv("FAKE_CUDA_WRITES_NO_VALUES");
    return 0;
}
CALL(cuCtxGetStreamPriorityRange, int* least, int* greatest) {
    *least = 0, *greatest = -5;
    return 0;
}
CALL(cuStreamCreateWithPriority, void** stream, unsigned, int priority) {
    if (priority != -5) return 1;
    *stream = new Stream;
    return 0;
}
CALL(cuStreamDestroy_v2, void* stream) {
    delete static_cast<Stream*>(stream);
    return 0;
}
CALL(cuStreamSynchronize, void* stream) {
    run(*static_cast<Stream*>(stream));
    return 0;
}
CALL(cuStreamWriteValue64_v2, void* stream, uintptr_t to, uint64_t value, unsigned flags) {
    MAY_FAIL("cuStreamWriteValue64");
    written++;
    static_cast<Stream*>(stream)->work.push_back([=] { *reinterpret_cast<uint64_t*>(to) = value; });
    return flags;
}
CALL(cuStreamQuery, void* p) {
    MAY_FAIL("cuStreamQuery");
    Stream& stream = *static_cast<Stream*>(p);
    if (++stream.asked % 2) return 600;
    run(stream);
    return 0;
}
CALL(cuMemHostAlloc, void** memory, size_t bytes, unsigned) {
    MAY_FAIL("cuMemHostAlloc");
    *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return 0;
}
CALL(cuMemFreeHost, void* memory) {
    free(memory);
    return 0;
}
CALL(cuMemcpyBatchAsync_v2, uintptr_t* to, uintptr_t* from, size_t* bytes, size_t count, int* attributes, size_t*,
     size_t num_attributes, void* stream) {
    MAY_FAIL("cuMemcpyBatchAsync");
    if (attributes[0] != 1 || num_attributes != 1) return 1;
    batched++;
    for (size_t i = count; i-- > 0;) {
        static_cast<Stream*>(stream)->work.push_back([to = to[i], from = from[i], bytes = bytes[i]] {
            memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
        });
    }
    return 0;
}
CALL(cuMemcpyAsync, uintptr_t to, uintptr_t from, size_t bytes, void* stream) {
    MAY_FAIL("cuMemcpyAsync");
    copied++;
    static_cast<Stream*>(stream)->work.push_back(
        [=] { memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes); });
    return 0;
}
CALL(cuModuleLoadData, void** module, const void* image) {
    *module = &module_of_gpu;
    return image ? 0 : 200;
}
CALL(cuModuleGetFunction, void** function, void* module, const char* name) {
    *function = &signal_of_gpu;
    return module == &module_of_gpu && !strcmp(name, "ep_proxy_signal") ? 0 : 500;
}
CALL(cuLaunchKernel, void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void* stream,
     void** arguments, void**) {
    if (function != &signal_of_gpu) return 1;
    launched++;
    void* const counter = *static_cast<void**>(arguments[0]);
    const uint64_t value = *static_cast<uint64_t*>(arguments[1]);
    const int op = *static_cast<int*>(arguments[2]);
    static_cast<Stream*>(stream)->work.push_back([=] {
        if (op == 2) *static_cast<uint64_t*>(counter) = value;
        if (op == 3 || op == 5) *static_cast<uint64_t*>(counter) += value;
        if (op == 4) *static_cast<uint32_t*>(counter) += static_cast<uint32_t>(value);
    });
    return 0;
}
CALL(cuGetErrorString, int, const char** text) {
    *text = "as the test wants it";
    return 0;
}
// How often the driver was asked to copy, to copy a batch, to write a value, and to launch a kernel.
CALL(fake_cuda_calls, int* four) {
    four[0] = copied, four[1] = batched, four[2] = written, four[3] = launched;
    return 0;
}
