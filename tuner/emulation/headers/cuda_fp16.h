// Stands in for CUDA's cuda_fp16.h under g++: half and half2, their conversions and arithmetic.
//
// Each operation is done in float (double for the fused one) and rounded once to half, as the GPU does.
#pragma once

#include <type_traits>

#include "cuda_runtime.h"
#include "emulation/half_bits.h"

struct __half {
    unsigned short bits;

    __half() = default;
    __half(float value) : bits(emulation::float_to_half(value)) {}
    __half(double value) : bits(emulation::double_to_half(value)) {}
    template <class Integer, class = std::enable_if_t<std::is_integral<Integer>::value>>
    __half(Integer value) : bits(emulation::double_to_half(static_cast<double>(value))) {}
    operator float() const { return emulation::half_to_float(bits); }

    __half& operator+=(__half other);
    __half& operator-=(__half other);
    __half& operator*=(__half other);
    __half& operator/=(__half other);
};
using half = __half;

struct __attribute__((aligned(4))) __half2 {
    half x, y;
};
using half2 = __half2;

inline float __half2float(half value) { return emulation::half_to_float(value.bits); }
inline half __float2half(float value) { return half(value); }
inline half __float2half_rn(float value) { return half(value); }
inline half __double2half(double value) { return half(value); }
inline half __int2half_rn(int value) { return half(value); }
inline int __half2int_rn(half value) { return static_cast<int>(__builtin_rintf(__half2float(value))); }
inline int __half2int_rz(half value) { return static_cast<int>(__half2float(value)); }
inline unsigned short __half_as_ushort(half value) { return value.bits; }
inline half __ushort_as_half(unsigned short bits) {
    half value;
    value.bits = bits;
    return value;
}

inline half operator+(half a, half b) { return half(__half2float(a) + __half2float(b)); }
inline half operator-(half a, half b) { return half(__half2float(a) - __half2float(b)); }
inline half operator*(half a, half b) { return half(__half2float(a) * __half2float(b)); }
inline half operator/(half a, half b) { return half(__half2float(a) / __half2float(b)); }
inline half operator-(half a) { return __ushort_as_half(a.bits ^ 0x8000u); }
inline half& __half::operator+=(half other) { return *this = *this + other; }
inline half& __half::operator-=(half other) { return *this = *this - other; }
inline half& __half::operator*=(half other) { return *this = *this * other; }
inline half& __half::operator/=(half other) { return *this = *this / other; }
#define MNT_HALF_COMPARISON(NAME, OPERATOR)                                                            \
    inline bool operator OPERATOR(half a, half b) { return __half2float(a) OPERATOR __half2float(b); } \
    inline bool NAME(half a, half b) { return __half2float(a) OPERATOR __half2float(b); }
MNT_HALF_COMPARISON(__hlt, <)
MNT_HALF_COMPARISON(__hle, <=)
MNT_HALF_COMPARISON(__hgt, >)
MNT_HALF_COMPARISON(__hge, >=)
MNT_HALF_COMPARISON(__heq, ==)
MNT_HALF_COMPARISON(__hne, !=)

inline half __hadd(half a, half b) { return a + b; }
inline half __hsub(half a, half b) { return a - b; }
inline half __hmul(half a, half b) { return a * b; }
inline half __hdiv(half a, half b) { return a / b; }
inline half __hneg(half a) { return -a; }
inline half __habs(half a) { return __ushort_as_half(a.bits & 0x7fffu); }
inline half __hfma(half a, half b, half c) {
    // The product is exact in double; the sum may not be, but is rounded far below half's last bit.
    return half(static_cast<double>(__half2float(a)) * __half2float(b) + static_cast<double>(__half2float(c)));
}
inline half __hmax(half a, half b) { return half(__builtin_fmaxf(a, b)); }
inline half __hmin(half a, half b) { return half(__builtin_fminf(a, b)); }
inline bool __hisnan(half a) { return (a.bits & 0x7fffu) > 0x7c00u; }
inline half hexp(half a) { return half(expf(a)); }
inline half hlog(half a) { return half(logf(a)); }
inline half hsqrt(half a) { return half(sqrtf(a)); }
inline half hrcp(half a) { return half(1.0f / __half2float(a)); }

inline half2 make_half2(half x, half y) { return {x, y}; }
inline half2 __halves2half2(half x, half y) { return {x, y}; }
inline half2 __half2half2(half value) { return {value, value}; }
inline half2 __floats2half2_rn(float x, float y) { return {half(x), half(y)}; }
inline half2 __float22half2_rn(float2 value) { return {half(value.x), half(value.y)}; }
inline half2 __float2half2_rn(float value) { return {half(value), half(value)}; }
inline float2 __half22float2(half2 value) { return {__half2float(value.x), __half2float(value.y)}; }
inline half __low2half(half2 value) { return value.x; }
inline half __high2half(half2 value) { return value.y; }
inline float __low2float(half2 value) { return __half2float(value.x); }
inline float __high2float(half2 value) { return __half2float(value.y); }
inline half2 __hadd2(half2 a, half2 b) { return {a.x + b.x, a.y + b.y}; }
inline half2 __hsub2(half2 a, half2 b) { return {a.x - b.x, a.y - b.y}; }
inline half2 __hmul2(half2 a, half2 b) { return {a.x * b.x, a.y * b.y}; }
inline half2 __hneg2(half2 a) { return {-a.x, -a.y}; }
inline half2 __hfma2(half2 a, half2 b, half2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
inline half2 __hmax2(half2 a, half2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }
inline half2 __hmin2(half2 a, half2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }
inline half2 operator+(half2 a, half2 b) { return __hadd2(a, b); }
inline half2 operator-(half2 a, half2 b) { return __hsub2(a, b); }
inline half2 operator*(half2 a, half2 b) { return __hmul2(a, b); }
inline half2& operator+=(half2& a, half2 b) { return a = a + b; }

inline half atomicAdd(half* address, half value, MNT_SITE) {
    return emulation::read_modify_write(address, [&](half old) { return old + value; }, file_, line_);
}
inline half2 atomicAdd(half2* address, half2 value, MNT_SITE) {
    return emulation::read_modify_write(address, [&](half2 old) { return old + value; }, file_, line_);
}
