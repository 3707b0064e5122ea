// A learner's piece in C++ is compiled to an object of its own (ep_lib/jit/closed.py). A test knows only the functions
// that calls/exNN_topic.cuh declares by PIECE, with C linkage and without the piece's types. calls/exNN_topic.cu, the
// source of the object, includes the piece and then the same file: the last argument of PIECE is the function's body.
#pragma once
#include <ep/platform.cuh>

#ifdef GRADER_PIECE
#define PIECE(result, name, parameters, ...) \
    extern "C" __device__ result piece_##name parameters { return __VA_ARGS__; }

// The same memory as the piece's type for it.
template <typename T, typename Given>
EP_DEVICE T* as(Given* given) {
    static_assert(sizeof(T) == sizeof(Given) && alignof(T) == alignof(Given),
                  "a struct of the exercise that the tests use as well has changed: leave it as it is");
    return reinterpret_cast<T*>(given);
}
#else
#define PIECE(result, name, parameters, ...) extern "C" __device__ result piece_##name parameters;
#endif
