// The piece of 07_sums_joined, as its test calls it.
namespace {

__device__ __attribute__((noinline)) float rounded_product(float x, float y) { return x * y; }
__device__ __attribute__((noinline)) float rounded_sum(float x, float y) { return x + y; }
__device__ __attribute__((noinline)) float rounded_difference(float x, float y) { return x - y; }

}  // namespace

// Operations with a stated rounding are never fused.
#define __fmul_rn rounded_product
#define __fadd_rn rounded_sum
#define __fsub_rn rounded_difference
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

#include "ex07_sums_joined.cuh"
#if defined(__clang__) && defined(__x86_64__)
#pragma clang attribute pop
#endif
