// Conversion between float and the 16 bits of a half, rounding to nearest even. Shared by cuda_fp16.h and the runtime.
//
// The instructions are called as compiler built-ins: <immintrin.h> would add 0.3 s to every kernel's compilation, and
// g++ knows _Float16 on x86 only from version 12 on.
#pragma once

#include <stdint.h>

namespace emulation {

inline uint32_t float_bits(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    return bits;
}
inline float bits_float(uint32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}

#if defined(__F16C__)
typedef short short8 __attribute__((vector_size(16)));
typedef float float4_vector __attribute__((vector_size(16)));

inline float half_to_float(uint16_t half) {
    const short8 lanes = {static_cast<short>(half)};
    return __builtin_ia32_vcvtph2ps(lanes)[0];
}
inline uint16_t float_to_half(float value) {
    const float4_vector lanes = {value};
    return static_cast<uint16_t>(__builtin_ia32_vcvtps2ph(lanes, 0)[0]);
}
#elif defined(__aarch64__)
inline float half_to_float(uint16_t half) {
    __fp16 value;
    __builtin_memcpy(&value, &half, 2);
    return static_cast<float>(value);
}
inline uint16_t float_to_half(float value) {
    const __fp16 rounded = static_cast<__fp16>(value);
    uint16_t half;
    __builtin_memcpy(&half, &rounded, 2);
    return half;
}
#else
inline float half_to_float(uint16_t half) {
    const uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31, fraction = half & 0x3ffu;
    if (exponent == 31) return bits_float(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) {  // zero, or a subnormal half, which float holds exactly
        const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return bits_float(sign | (exponent + 112) << 23 | fraction << 13);
}
inline uint16_t float_to_half(float value) {
    const uint32_t bits = float_bits(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and more round to infinity
    if (magnitude < 0x38800000u) {  // subnormal half: adding 0.5 lets the FPU round at its last bit, 2^-24
        const uint32_t rounded = float_bits(bits_float(magnitude) + 0.5f) - 0x3f000000u;
        return static_cast<uint16_t>(sign | rounded);
    }
    const uint32_t even = magnitude >> 13 & 1;
    return static_cast<uint16_t>(sign | (magnitude - 0x38000000u + 0xfffu + even) >> 13);
}
#endif

// A double to half with a single rounding: through the float that is rounded to odd, which keeps what half must see.
inline float round_to_odd(double value) {
    float nearest = static_cast<float>(value);
    if (static_cast<double>(nearest) == value || nearest != nearest) return nearest;
    uint32_t bits = float_bits(nearest);
    const double magnitude = value < 0 ? -value : value, found = nearest < 0 ? -static_cast<double>(nearest) : nearest;
    if (found > magnitude) --bits;  // toward zero, then the sticky bit
    return bits_float(bits | 1);
}
inline uint16_t double_to_half(double value) { return float_to_half(round_to_odd(value)); }

}  // namespace emulation
