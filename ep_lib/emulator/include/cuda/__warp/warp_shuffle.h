// cuda::device::warp_shuffle_idx, _up, _down and _xor, for values of any size, without PTX: CUB's warp algorithms use
// them. Found before libcu++'s own header of this name, which is empty for a host compiler.
#pragma once
#define _CUDA___WARP_WARP_SHUFFLE_H
#include <cuda/__ptx/instructions/get_sreg.h>
#include <cuda/std/__type_traits/enable_if.h>
#include <cuda/std/__type_traits/integral_constant.h>
#include <cuda/std/__type_traits/is_array.h>
#include <cuda/std/__type_traits/remove_cv.h>
#include <cuda/std/cstdint>

#include <cuda/std/__cccl/prologue.h>
_CCCL_BEGIN_NAMESPACE_CUDA_DEVICE

template <typename T>
struct warp_shuffle_result {
    T data;
    bool pred;  // whether the source was in this lane's part of the warp

    template <typename U = T>
    operator ::cuda::std::enable_if_t<!::cuda::std::is_array_v<U>, U>() const {
        return data;
    }
};

#define EPEMU_SHUFFLE(name, argument, has_source)                                                                 \
    template <int Width = 32, typename T, typename U = ::cuda::std::remove_cv_t<T>>                               \
    EPEMU_INLINE warp_shuffle_result<U> warp_shuffle_##name(const T& data, argument, uint32_t mask = 0xffffffffu, \
                                                            ::cuda::std::integral_constant<int, Width> = {}) {    \
        constexpr int kWords = (sizeof(U) + 3) / 4;                                                               \
        [[maybe_unused]] const int lane = static_cast<int>(::cuda::ptx::get_sreg_laneid()) % Width;               \
        unsigned words[kWords] = {};                                                                              \
        __builtin_memcpy(words, static_cast<const void*>(&data), sizeof(U));                                      \
        for (int i = 0; i < kWords; i++) words[i] = EPEMU_SHUFFLE_OF(name)(mask, words[i], by, Width);            \
        warp_shuffle_result<U> result;                                                                            \
        __builtin_memcpy(static_cast<void*>(&result.data), words, sizeof(U));                                     \
        result.pred = has_source;                                                                                 \
        return result;                                                                                            \
    }                                                                                                             \
    template <int Width, typename T, typename U = ::cuda::std::remove_cv_t<T>>                                    \
    EPEMU_INLINE warp_shuffle_result<U> warp_shuffle_##name(const T& data, argument,                              \
                                                            ::cuda::std::integral_constant<int, Width>) {         \
        return warp_shuffle_##name<Width>(data, by);                                                              \
    }
#define EPEMU_SHUFFLE_OF(name) EPEMU_SHUFFLE_##name
#define EPEMU_SHUFFLE_idx __shfl_sync
#define EPEMU_SHUFFLE_up __shfl_up_sync
#define EPEMU_SHUFFLE_down __shfl_down_sync
#define EPEMU_SHUFFLE_xor __shfl_xor_sync
EPEMU_SHUFFLE(idx, int by, true)
EPEMU_SHUFFLE(up, int by, lane >= by)
EPEMU_SHUFFLE(down, int by, lane + by < Width)
EPEMU_SHUFFLE(xor, int by, true)
#undef EPEMU_SHUFFLE
#undef EPEMU_SHUFFLE_OF
#undef EPEMU_SHUFFLE_idx
#undef EPEMU_SHUFFLE_up
#undef EPEMU_SHUFFLE_down
#undef EPEMU_SHUFFLE_xor

_CCCL_END_NAMESPACE_CUDA_DEVICE
#include <cuda/std/__cccl/epilogue.h>
