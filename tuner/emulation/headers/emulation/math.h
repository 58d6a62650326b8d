// Arithmetic that CUDA offers beyond C: min and max of any two numbers, fast approximations, bit casts and counts.
//
// The approximations are the exact functions here; a kernel must not depend on their error.
#pragma once

#include <math.h>

#include "interface.h"

template <class A, class B>
constexpr auto min(A a, B b) -> decltype(a + b) {
    return b < a ? b : a;
}
template <class A, class B>
constexpr auto max(A a, B b) -> decltype(a + b) {
    return a < b ? b : a;
}

inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return powf(10.0f, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

namespace emulation {
template <class To, class From>
inline To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "bit casts keep the size");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
}  // namespace emulation
inline unsigned __float_as_uint(float x) { return emulation::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return emulation::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return emulation::bit_cast<float>(x); }
inline float __int_as_float(int x) { return emulation::bit_cast<float>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(rintf(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned x, unsigned y) {
    return static_cast<unsigned>(static_cast<unsigned long long>(x) * y >> 32);
}
