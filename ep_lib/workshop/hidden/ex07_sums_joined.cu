// A product and a sum as compilers for GPUs take them: joined to one fused multiply-add wherever nothing keeps them apart,
// as the emulator's kernels have it too (ep_lib/jit/gxx.py); here whatever its options say. For processors that have the
// instruction.
#include <ep/platform.cuh>

#include <cuda_bf16.h>

// bound.py gives the test's own names an ending, so a piece may have a `product`.
namespace {

[[gnu::noinline]] float product(float x, float y) { return x * y; }
[[gnu::noinline]] float sum_of(float x, float y) { return x + y; }
[[gnu::noinline]] float difference(float x, float y) { return x - y; }

}  // namespace

// What says how it rounds is joined to nothing.
#define __fmul_rn product
#define __fadd_rn sum_of
#define __fsub_rn difference
#ifdef __clang__
#pragma clang fp contract(fast)
#ifdef __x86_64__
#pragma clang attribute push(__attribute__((target("fma"))), apply_to = function)
#endif
#else
#pragma GCC optimize("fp-contract=fast", "expensive-optimizations")
#ifdef __x86_64__
#pragma GCC target("fma")
#endif
#endif
#include <ep/sums.cuh>
#include <grader.cuh>

//   given [count, 3], bits of sum, weight and value; told [count]
extern "C" __global__ void join(int task, const int* given, int count, int* told, char* seen) {
    if (task == 0) return canary(seen);
    const int me = caller();
    if (me >= 0 && me < count) {
        const float* const three = reinterpret_cast<const float*>(given + 3 * me);
        told[me] = __float_as_int(ep::add_weighted(three[0], three[1], three[2]));
    }
    meet_at_the_end();
}
#if defined(__clang__) && defined(__x86_64__)
#pragma clang attribute pop
#endif
