// The scope of libcu++'s atomics (cuda::atomic, cuda::atomic_ref). On a host libcu++ ignores it; here the scope's tag
// passes it to the emulator just before the operation.
//
// Found before libcu++'s own header of this name, which is included and does the rest.
#pragma once
#define __scope_enum_to_tag __plain_scope_enum_to_tag
#define __scope_to_tag __plain_scope_to_tag
#include_next <cuda/std/__atomic/scopes.h>
#undef __scope_enum_to_tag
#undef __scope_to_tag

#include <ep_emulator/abi.h>

#include <cuda/std/__cccl/prologue.h>
_CCCL_BEGIN_NAMESPACE_CUDA_STD

template <class Tag, int kScope>
struct __emulated_scope_tag : Tag {
    __emulated_scope_tag() { epemu_next_scope(kScope); }
};

template <int kScope>
struct __scope_enum_to_tag;
template <>
struct __scope_enum_to_tag<(int)thread_scope_thread> {
    using __tag = __emulated_scope_tag<__thread_scope_block_tag, EPEMU_SCOPE_BLOCK>;
};
template <>
struct __scope_enum_to_tag<(int)thread_scope_block> {
    using __tag = __emulated_scope_tag<__thread_scope_block_tag, EPEMU_SCOPE_BLOCK>;
};
template <>
struct __scope_enum_to_tag<(int)thread_scope_device> {
    using __tag = __emulated_scope_tag<__thread_scope_device_tag, EPEMU_SCOPE_DEVICE>;
};
template <>
struct __scope_enum_to_tag<(int)thread_scope_system> {
    using __tag = __emulated_scope_tag<__thread_scope_system_tag, EPEMU_SCOPE_SYSTEM>;
};

template <int kScope>
using __scope_to_tag = typename __scope_enum_to_tag<kScope>::__tag;

_CCCL_END_NAMESPACE_CUDA_STD
#include <cuda/std/__cccl/epilogue.h>
