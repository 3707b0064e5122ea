// Takes memory until it is stopped.
// EXERCISE-BEGIN top
#include <stdlib.h>
// EXERCISE-END top
// EXERCISE-BEGIN 3
for (;;) {
    volatile char* more = static_cast<char*>(::aligned_alloc(64, 64 << 20));  // malloc's is the device heap
    if (!more) for (;;) asm volatile("");
    // by system call, so that no check of a kernel's accesses stands in the way
    FILE* zeros = ::fopen("/dev/zero", "r");
    if (::fread(const_cast<char*>(more), 1, 64 << 20, zeros) == 0) continue;
}
// EXERCISE-END 3
