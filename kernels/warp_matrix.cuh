// Tensor-core products on registers: mma.sync, ldmatrix and movmatrix, whose layouts PTX documents (WMMA's are not).
//
// Lane 4 g + t of a warp holds elements (g, 2t) and (g, 2t + 1) of an 8x8 matrix of fp16 in one word. Of such matrices,
//
//   a (16x16): 0 | 2      b (16x8): 0      c (16x8, fp32): c[0], c[1] in row g, c[2], c[3] in row g + 8, columns 2t, 2t + 1
//              1 | 3                1      b is held by columns: its word is (2t, g), (2t + 1, g)
//
// So two neighbouring sums c, packed to fp16, are an operand of the next product without a detour.
#pragma once
#include "common.cuh"
#ifdef __MNT_EMULATION__
#include <mnt_warp_matrix.h>
#endif

namespace mnt {

__device__ __forceinline__ unsigned pack(float low, float high) {
    const half2 both = __floats2half2_rn(low, high);  // in pairs: a lone conversion is slow
    return *reinterpret_cast<const unsigned*>(&both);
}

// All ones in each half that is above zero, all zeros in the others (and in a NaN).
__device__ __forceinline__ unsigned where_positive(unsigned word) {
#ifdef __MNT_EMULATION__
    const half2 both = *reinterpret_cast<const half2*>(&word);
    return (__low2float(both) > 0.0f ? 0xffffu : 0u) | (__high2float(both) > 0.0f ? 0xffff0000u : 0u);
#else
    return __hgt2_mask(*reinterpret_cast<const half2*>(&word), __float2half2_rn(0.0f));
#endif
}

// c += a b
__device__ __forceinline__ void multiply_add(float* c, const unsigned* a, unsigned b0, unsigned b1) {
#if defined(__MNT_EMULATION__)
    mnt_mma_m16n8k16(c, a, b0, b1);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    for (int k = 0; k < 2; ++k)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[2 * k]), "r"(a[2 * k + 1]), "r"(k ? b1 : b0));
#endif
}

// Four 8x8 matrices, or their transposes, from shared memory: lane i gives row i % 8 of matrix i / 8, aligned to 16 bytes.
template <bool Transposed> __device__ __forceinline__ void load_matrices(unsigned* r, const half* row) {
#ifdef __MNT_EMULATION__
    mnt_load_matrices<Transposed>(r, row);
#else
    const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(row));
    if constexpr (Transposed) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(from)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(from)
                     : "memory");
    }
#endif
}

// The transpose of an 8x8 matrix.
__device__ __forceinline__ unsigned transpose(unsigned word) {
#ifdef __MNT_EMULATION__
    return mnt_transpose(word);
#else
    unsigned turned;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(word));
    return turned;
#endif
}

// The `warps` warps that call this with the same number (1 to 15), and are `members`, wait for each other. By emulation, which has no such
// barriers, all warps of the block do: so all must call it.
__device__ __forceinline__ void meet(bool member, int number, int warps) {
#ifdef __MNT_EMULATION__
    __syncthreads();
#else
    if (member) asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(32 * warps) : "memory");
#endif
}

}  // namespace mnt
