// A learner's piece in C++ is compiled to an object of its own (ep_lib/jit/closed.py), of which a test knows the functions
// that calls/exNN_topic.cuh names by PIECE: C linkage, and types that are no piece's. calls/exNN_topic.cu, the source of
// the object, includes the piece and then the same file: each function is what stands last in its line.
#pragma once
#include <ep/platform.cuh>

#ifdef GRADER_PIECE
#define PIECE(result, name, parameters, ...) \
    extern "C" __device__ result piece_##name parameters { return __VA_ARGS__; }

// The same memory as the piece's own type.
template <typename T, typename Given>
EP_DEVICE T* as(Given* given) {
    return reinterpret_cast<T*>(given);
}
template <typename T, typename Given>
EP_DEVICE const T* as(const Given* given) {
    return reinterpret_cast<const T*>(given);
}
#else
#define PIECE(result, name, parameters, ...) extern "C" __device__ result piece_##name parameters;
#endif
