// printf, assert, traps. The comments "... here" are what the tests look for.
#include <cassert>
#include <cstdio>

extern "C" __global__ void speak(int rank) {
    if (threadIdx.x != 7) return;
    const char* text = "text";
    printf("rank %d: %.2f 0x%x %s %c %lld %d%%\n", rank, 3.5f, 42, text, 'c', -1234567890123ll, 100);
}

extern "C" __global__ void asserts(int value) {
    if (threadIdx.x == 33) assert(value < 40);  // asserts here
}

#include <assert.h>
extern "C" __global__ void asserts_after_including_it_again(int value) {
    if (threadIdx.x == 33) assert(value != 40 && "not forty");  // asserts_after_including_it_again here
}

extern "C" __global__ void traps(int value) {
    if (threadIdx.x == 33 && value >= 40) __trap();  // traps here
}

extern "C" __global__ void assumes(int value) {
    if (threadIdx.x == 33) __builtin_assume(value < 40);  // assumes here
}
