// CUDA's vector types with their alignments (float4 is aligned to 16 bytes, which the alignment checks rely on).
#pragma once

#include "interface.h"

#define MNT_ALIGNED_TO(bytes) __attribute__((aligned((bytes) < 16 ? (bytes) : 16)))
#define MNT_VECTOR_TYPES(T, NAME)                                   \
    struct MNT_ALIGNED_TO(2 * sizeof(T)) NAME##2 { T x, y; };       \
    struct MNT_ALIGNED_TO(4 * sizeof(T)) NAME##4 { T x, y, z, w; }; \
    constexpr NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }   \
    constexpr NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define MNT_VECTOR_TYPE_3(T, NAME) \
    struct NAME##3 { T x, y, z; }; \
    constexpr NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }

MNT_VECTOR_TYPES(signed char, char)
MNT_VECTOR_TYPES(unsigned char, uchar)
MNT_VECTOR_TYPES(short, short)
MNT_VECTOR_TYPES(unsigned short, ushort)
MNT_VECTOR_TYPES(int, int)
MNT_VECTOR_TYPES(unsigned, uint)
MNT_VECTOR_TYPES(long long, longlong)
MNT_VECTOR_TYPES(unsigned long long, ulonglong)
MNT_VECTOR_TYPES(float, float)
MNT_VECTOR_TYPES(double, double)
MNT_VECTOR_TYPE_3(int, int)
MNT_VECTOR_TYPE_3(float, float)
constexpr uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
