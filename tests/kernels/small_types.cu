// half, bfloat16 and FP8: conversions of every bit pattern, arithmetic, and what NVIDIA's headers keep for the device.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#define AT (blockIdx.x * blockDim.x + threadIdx.x)

// ---- to float: index = bit pattern ----------------------------------------------------------------------------
extern "C" __global__ void widen(float* half_out, float* bf16_out, float* e4m3_out, float* e5m2_out) {
    const unsigned i = AT;
    if (i < 65536) {
        half_out[i] = __half2float(__ushort_as_half(static_cast<unsigned short>(i)));
        bf16_out[i] = __bfloat162float(__ushort_as_bfloat16(static_cast<unsigned short>(i)));
    }
    if (i < 256) {
        __nv_fp8_e4m3 a;
        __nv_fp8_e5m2 b;
        a.__x = b.__x = static_cast<__nv_fp8_storage_t>(i);
        e4m3_out[i] = static_cast<float>(a);
        e5m2_out[i] = static_cast<float>(b);
    }
}

// ---- from float -----------------------------------------------------------------------------------------------
extern "C" __global__ void narrow(const float* in, unsigned short* half_out, unsigned short* bf16_out,
                                  unsigned char* e4m3_out, unsigned char* e5m2_out, int n) {
    const int i = AT;
    if (i >= n) return;
    const float x = in[i];
    half_out[i] = __half_as_ushort(__float2half_rn(x));
    half_out[n + i] = __half_as_ushort(__float2half_rz(x));
    half_out[2 * n + i] = __half_as_ushort(__float2half_ru(x));
    half_out[3 * n + i] = __half_as_ushort(__float2half_rd(x));
    bf16_out[i] = __bfloat16_as_ushort(__float2bfloat16_rn(x));
    bf16_out[n + i] = __bfloat16_as_ushort(__float2bfloat16_rz(x));
    bf16_out[2 * n + i] = __bfloat16_as_ushort(__float2bfloat16_ru(x));
    bf16_out[3 * n + i] = __bfloat16_as_ushort(__float2bfloat16_rd(x));
    e4m3_out[i] = __nv_fp8_e4m3(x).__x;
    e5m2_out[i] = __nv_fp8_e5m2(x).__x;
    e4m3_out[n + i] = __nv_cvt_float_to_fp8(x, __NV_NOSAT, __NV_E4M3);
    e5m2_out[n + i] = __nv_cvt_float_to_fp8(x, __NV_NOSAT, __NV_E5M2);
    const __nv_fp8x4_e4m3 four(make_float4(x, 1.0f, x, -2.0f));
    e4m3_out[2 * n + i] = static_cast<unsigned char>(four.__x >> 16);
    const float4 back = static_cast<float4>(four);
    e5m2_out[2 * n + i] = __nv_fp8_e5m2(back.z).__x;
}

// ---- arithmetic, the same code for both types -----------------------------------------------------------------
template <typename T>
struct Pair;
template <>
struct Pair<__half> {
    using Type = __half2;
};
template <>
struct Pair<__nv_bfloat16> {
    using Type = __nv_bfloat162;
};

template <typename T>
__global__ void arithmetic(const T* as, const T* bs, const T* cs, T* out, int n) {
    const int i = AT;
    if (i >= n) return;
    const T a = as[i], b = bs[i], c = cs[i];
    using T2 = typename Pair<T>::Type;
    const T2 two = __hfma2(T2(a, b), T2(b, a), T2(c, c)), sum = __hadd2(T2(a, b), T2(b, c)),
             product = T2(a, b) * T2(b, c);
    T accumulated = a;
    accumulated += b;
    const T results[] = {
        __hadd(a, b),  __hsub(a, b), __hmul(a, b), __hdiv(a, b),    a + b,     a - b,         a * b,
        a / b,         -a,           accumulated,  __hfma(a, b, c), two.x,     two.y,         sum.x,
        sum.y,         product.y,    __hmax(a, b), __hmin(a, b),    __habs(a), __hneg(b),     hsqrt(__habs(a)),
        hrcp(a),       hfloor(a),    hceil(a),     htrunc(a),       hrint(a),  a < b ? a : b, __hgt(a, b) ? a : b,
        a == a ? a : b};
    for (int k = 0; k < static_cast<int>(sizeof(results) / sizeof(T)); k++) out[k * n + i] = results[k];
}

template <typename T>
__global__ void elementary(const T* as, T* out, int n) {
    const int i = AT;
    if (i >= n) return;
    const T a = as[i], p = __habs(a);
    const typename Pair<T>::Type both = h2exp(typename Pair<T>::Type(a, p));
    const T results[] = {hexp(a),   hexp2(a), hexp10(a), hlog(p),   hlog2(p),
                         hlog10(p), hsin(a),  hcos(a),   hrsqrt(p), both.y};
    for (int k = 0; k < static_cast<int>(sizeof(results) / sizeof(T)); k++) out[k * n + i] = results[k];
}

// ---- to integers and back -------------------------------------------------------------------------------------
extern "C" __global__ void integers(const unsigned short* bits, long long* out, int n) {
    const int i = AT;
    if (i >= n) return;
    const __half h = __ushort_as_half(bits[i]);
    const __nv_bfloat16 b = __ushort_as_bfloat16(bits[i]);
    const long long results[] = {
        __half2int_rn(h),     __half2int_rz(h),     __half2int_ru(h),       __half2int_rd(h),     __half2short_rn(h),
        __half2ushort_rd(h),  __half2ll_ru(h),      __half2uint_rn(h),      __bfloat162int_rn(b), __bfloat162int_rz(b),
        __bfloat162int_ru(b), __bfloat162int_rd(b), __bfloat162short_rn(b), __bfloat162uint_rd(b)};
    for (int k = 0; k < static_cast<int>(sizeof(results) / sizeof(long long)); k++) out[k * n + i] = results[k];
}
extern "C" __global__ void from_integers(const int* in, unsigned short* out, int n) {
    const int i = AT;
    if (i >= n) return;
    out[i] = __half_as_ushort(__int2half_rn(in[i]));
    out[n + i] = __bfloat16_as_ushort(__int2bfloat16_rn(in[i]));
    out[2 * n + i] = __bfloat16_as_ushort(__int2bfloat16_rz(in[i]));
    out[3 * n + i] = __bfloat16_as_ushort(__int2bfloat16_ru(in[i]));
    out[4 * n + i] = __bfloat16_as_ushort(__int2bfloat16_rd(in[i]));
}

// ---- pairs and vectors in memory ------------------------------------------------------------------------------
extern "C" __global__ void vectors(const int4* in, int4* out, float* sums, int n) {
    const int i = AT;
    if (i >= n) return;
    const int4 v = __ldg(in + i);
    const __nv_bfloat162* pairs = reinterpret_cast<const __nv_bfloat162*>(&v);
    float sum = 0;
    __nv_bfloat162 doubled[4];
    for (int k = 0; k < 4; k++) {
        const float2 f = __bfloat1622float2(pairs[k]);
        sum += f.x + f.y;
        doubled[k] = __float22bfloat162_rn(make_float2(2 * f.x, 2 * f.y));
    }
    sums[i] = sum;
    __stcs(out + i, *reinterpret_cast<const int4*>(doubled));
}
