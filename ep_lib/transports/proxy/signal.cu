// The signal of a command of CUDA's copy engine, if the stream cannot write it itself: one thread, behind the copy.
// kProxyNothing is a no-op, for loading and trying the kernel.
#include <ep/memory.cuh>
#include <ep/proxy_command.cuh>

extern "C" __global__ void ep_proxy_signal(void* counter, uint64_t value, int op) {
    if (op == ep::kProxyAdd32) {
        ep::red_add_release_sys_u32(static_cast<uint32_t*>(counter), static_cast<uint32_t>(value));
    } else if (op == ep::kProxyWriteSetSignal) {
        ep::st_release_sys_u64(static_cast<uint64_t*>(counter), value);
    } else if (op == ep::kProxyWriteAddSignal || op == ep::kProxyAdd64) {
        ep::red_add_release_sys_u64(static_cast<uint64_t*>(counter), value);
    }
}
