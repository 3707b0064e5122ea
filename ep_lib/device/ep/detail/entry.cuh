// Describes a kernel's parameters to the host, and on the emulator also makes the function that calls it.
//
// ep_lib.jit adds this file and an EP_KERNEL_ENTRY line per kernel to the end of every kernel source; it is not included
// by hand.
// Only a C++ compiler knows what `decltype(&kernel)` is, through templates and aliases, so it writes the answer into a
// constant table, which the host reads from the compiled file (ep_lib/jit/signature.py). It is data only: functions
// would need __device__ under NVRTC.
// This file comes behind the source's own macros, so its names must be unlike any macro's (`#define N 1024`).
#pragma once

namespace ep::detail {

// The values are shared with ep_lib/jit/signature.py.
enum ParamKind : unsigned { kInt = 1, kUint, kFloat, kBool, kPointer, kStruct };
constexpr unsigned kTableMagic = 0x45504b54;  // "EPKT"
constexpr unsigned kPointsToConst = 1;
constexpr unsigned kElementShift = 8;  // of a pointer's flags: the kind of what it points to, then its size
constexpr unsigned kElementSizeShift = 16;

// The type that a pointer points to, if the host can check an array against it. Bytes and void may be anything, and the
// members of a class are not known here.
enum ElementKind : unsigned {
    kAnything,
    kIntElement,
    kUintElement,
    kFloatElement,
    kBoolElement,
    kPointerElement,
    kBfloat16Element,
    kHalfElement,
    kE4m3Element,
    kE5m2Element
};

struct ParamRow {
    unsigned param_kind, param_size, param_align, param_flags;
};

template <int kNumParams>
struct ParamTable {
    unsigned table_magic, param_count;
    ParamRow param_rows[kNumParams > 0 ? kNumParams : 1];
};

// Classes, unions and everything else that is copied byte by byte; enumerations are their underlying type.
template <typename Described, bool kIsEnum = __is_enum(Described)>
struct Describe {
    static constexpr ParamKind kKind = kStruct;
    static constexpr unsigned kFlags = 0;
};
template <typename Described>
struct Describe<Described, true> : Describe<__underlying_type(Described)> {};

#define EP_DETAIL_DESCRIBE(Described, KIND_OF)      \
    template <>                                     \
    struct Describe<Described, false> {             \
        static constexpr ParamKind kKind = KIND_OF; \
        static constexpr unsigned kFlags = 0;       \
    };
EP_DETAIL_DESCRIBE(bool, kBool)
EP_DETAIL_DESCRIBE(char, char(-1) < char(0) ? kInt : kUint)
EP_DETAIL_DESCRIBE(wchar_t, wchar_t(-1) < wchar_t(0) ? kInt : kUint)
EP_DETAIL_DESCRIBE(char16_t, kUint)
EP_DETAIL_DESCRIBE(char32_t, kUint)
EP_DETAIL_DESCRIBE(signed char, kInt)
EP_DETAIL_DESCRIBE(unsigned char, kUint)
EP_DETAIL_DESCRIBE(short, kInt)
EP_DETAIL_DESCRIBE(unsigned short, kUint)
EP_DETAIL_DESCRIBE(int, kInt)
EP_DETAIL_DESCRIBE(unsigned, kUint)
EP_DETAIL_DESCRIBE(long, kInt)
EP_DETAIL_DESCRIBE(unsigned long, kUint)
EP_DETAIL_DESCRIBE(long long, kInt)
EP_DETAIL_DESCRIBE(unsigned long long, kUint)
EP_DETAIL_DESCRIBE(float, kFloat)
EP_DETAIL_DESCRIBE(double, kFloat)
#undef EP_DETAIL_DESCRIBE

template <typename Described>
struct Plain {
    using PlainType = Described;
};
template <typename Described>
struct Plain<volatile Described> {
    using PlainType = Described;
};

template <typename Described, bool kIsEnum = __is_enum(Described)>
struct Element {
    static constexpr unsigned kFlags = kAnything;
};
template <typename Described>
struct Element<Described, true> : Element<__underlying_type(Described)> {};

#define EP_DETAIL_ELEMENT(Described, KIND_OF)                                                                 \
    template <>                                                                                               \
    struct Element<Described, false> {                                                                        \
        static constexpr unsigned kFlags = KIND_OF << kElementShift | sizeof(Described) << kElementSizeShift; \
    };
EP_DETAIL_ELEMENT(bool, kBoolElement)
EP_DETAIL_ELEMENT(wchar_t, kIntElement)
EP_DETAIL_ELEMENT(char16_t, kUintElement)
EP_DETAIL_ELEMENT(char32_t, kUintElement)
EP_DETAIL_ELEMENT(short, kIntElement)
EP_DETAIL_ELEMENT(unsigned short, kUintElement)
EP_DETAIL_ELEMENT(int, kIntElement)
EP_DETAIL_ELEMENT(unsigned, kUintElement)
EP_DETAIL_ELEMENT(long, kIntElement)
EP_DETAIL_ELEMENT(unsigned long, kUintElement)
EP_DETAIL_ELEMENT(long long, kIntElement)
EP_DETAIL_ELEMENT(unsigned long long, kUintElement)
EP_DETAIL_ELEMENT(float, kFloatElement)
EP_DETAIL_ELEMENT(double, kFloatElement)
#ifdef __CUDA_BF16_TYPES_EXIST__
EP_DETAIL_ELEMENT(__nv_bfloat16, kBfloat16Element)
#endif
#ifdef __CUDA_FP16_TYPES_EXIST__
EP_DETAIL_ELEMENT(__half, kHalfElement)
#endif
#ifdef __CUDA_FP8_TYPES_EXIST__
EP_DETAIL_ELEMENT(__nv_fp8_e4m3, kE4m3Element)
EP_DETAIL_ELEMENT(__nv_fp8_e5m2, kE5m2Element)
#endif
#undef EP_DETAIL_ELEMENT
template <typename Described>
struct Element<Described*, false> {
    static constexpr unsigned kFlags = kPointerElement << kElementShift | sizeof(Described*) << kElementSizeShift;
};

template <typename Described>
struct Describe<Described*, false> {
    static constexpr ParamKind kKind = kPointer;
    static constexpr unsigned kFlags = Element<typename Plain<Described>::PlainType>::kFlags;
};
template <typename Described>
struct Describe<const Described*, false> {
    static constexpr ParamKind kKind = kPointer;
    static constexpr unsigned kFlags = kPointsToConst | Element<typename Plain<Described>::PlainType>::kFlags;
};

template <int... kIndices>
struct Indices {};
template <int kNumParams, int... kIndices>
struct MakeIndices : MakeIndices<kNumParams - 1, kNumParams - 1, kIndices...> {};
template <int... kIndices>
struct MakeIndices<0, kIndices...> {
    using PlainType = Indices<kIndices...>;
};

template <typename KernelType>
struct Entry {
    static_assert(sizeof(KernelType) == 0, "a kernel must be a function that returns void");
};

template <typename... ParamTypes>
struct Entry<void (*)(ParamTypes...)> {
    static constexpr int kCount = sizeof...(ParamTypes);
    static constexpr ParamTable<kCount> kTable = {
        kTableMagic,
        kCount,
        {{Describe<ParamTypes>::kKind, sizeof(ParamTypes), alignof(ParamTypes), Describe<ParamTypes>::kFlags}...}};

#ifdef EP_EMULATOR
    // Not instrumented: the arguments lie in host memory, which kernels do not use.
    template <void (*kKernel)(ParamTypes...), int... kIndices>
    __attribute__((no_sanitize("thread"))) static void enter_kernel_with(void** param_bytes, Indices<kIndices...>) {
        kKernel(*static_cast<ParamTypes*>(param_bytes[kIndices])...);
    }
    template <void (*kKernel)(ParamTypes...)>
    __attribute__((no_sanitize("thread"))) static void enter_kernel(void** param_bytes) {
        enter_kernel_with<kKernel>(param_bytes, typename MakeIndices<kCount>::PlainType{});
    }
#endif
};

#ifdef __cpp_noexcept_function_type
template <typename... ParamTypes>
struct Entry<void (*)(ParamTypes...) noexcept> : Entry<void (*)(ParamTypes...)> {};
#endif

}  // namespace ep::detail

// Several kernels of one source may be compiled together: NUMBER tells them apart.
#ifdef EP_EMULATOR
#define EP_KERNEL_ENTRY(NUMBER, ...)                                                                    \
    extern "C" __attribute__((visibility("default"), used)) const auto ep_kernel_params_##NUMBER =      \
        ep::detail::Entry<decltype(&__VA_ARGS__)>::kTable;                                              \
    extern "C" __attribute__((visibility("default"), no_sanitize("thread"))) void epemu_entry_##NUMBER( \
        void** param_bytes) {                                                                           \
        ep::detail::Entry<decltype(&__VA_ARGS__)>::template enter_kernel<&__VA_ARGS__>(param_bytes);    \
    }
#else
#define EP_KERNEL_ENTRY(NUMBER, ...) \
    extern "C" __device__ const auto ep_kernel_params_##NUMBER = ep::detail::Entry<decltype(&__VA_ARGS__)>::kTable;
#endif
