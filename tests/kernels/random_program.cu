// Runs a list of memory operations: what a program does is data, so that many programs share one compiled kernel.
// tests/support/happens_before.py writes the lists and says which of their runs have a race.
#include <ep/peer.cuh>
#include <ep/platform.cuh>
#include <ep_emulator/abi.h>

enum Kind { kPlain, kVolatile, kAtomic, kExchange, kCompareSwap, kFence, kBlockBarrier, kWarpBarrier };

struct Operation {
    int kind, writes, order, scope, width, offset, shared, guard;
    unsigned long long value, compare;
};

template <class T>
EP_DEVICE unsigned long long access(void* address, const Operation& op) {
    T* p = static_cast<T*>(address);
    const T value = static_cast<T>(op.value);
    switch (op.kind) {
        case kPlain:
            if (!op.writes) return *p;
            *p = value;
            return 0;
        case kVolatile:
            if (!op.writes) return *static_cast<volatile T*>(p);
            *static_cast<volatile T*>(p) = value;
            return 0;
        case kAtomic:
            if (!op.writes) return epemu_load(p, sizeof(T), op.order, op.scope);
            epemu_store(p, value, sizeof(T), op.order, op.scope);
            return 0;
        case kExchange: return epemu_atomic(EPEMU_ATOMIC_EXCH, p, value, 0, sizeof(T), op.order, op.scope);
        default: return epemu_atomic(EPEMU_ATOMIC_CAS, p, value, op.compare, sizeof(T), op.order, op.scope);
    }
}

// memory: 64 bytes of rank 0. program: `length` operations of each thread of the grid, and what its reads saw. `guard`:
// the operation is left out if that one, an earlier read, saw zero.
extern "C" __global__ void random_program(char* memory, const Operation* program, unsigned long long* seen,
                                          int length) {
    __shared__ __align__(16) char shared[32];
    if (ep::thread_in_block() == 0)
        for (int i = 0; i < 32; i++) shared[i] = 0;
    __syncthreads();
    const int thread = blockIdx.x * blockDim.x + threadIdx.x;
    char* far = ep::peer_ptr(memory, 0);
    for (int i = 0; i < length; i++) {
        const Operation op = program[thread * length + i];
        if (op.guard >= 0 && seen[thread * length + op.guard] == 0) continue;
        char* p = (op.shared ? shared : far) + op.offset;
        unsigned long long got = 0;
        if (op.kind == kFence) {
            epemu_fence(op.order, op.scope);
        } else if (op.kind == kBlockBarrier) {
            __syncthreads();
        } else if (op.kind == kWarpBarrier) {
            __syncwarp((1u << blockDim.x) - 1);
        } else if (op.width == 1) {
            got = access<uint8_t>(p, op);
        } else if (op.width == 2) {
            got = access<uint16_t>(p, op);
        } else if (op.width == 4) {
            got = access<uint32_t>(p, op);
        } else {
            got = access<uint64_t>(p, op);
        }
        seen[thread * length + i] = got;
    }
}
