// Stands in for CUDA's mma.h under g++: nvcuda::wmma with half inputs, accumulators in float or half, all three shapes.
//
// Lane l of a warp holds consecutive elements, unlike any GPU, so a kernel that relies on the hardware's (unspecified)
// layout gives wrong results here. A fresh fragment is poisoned: a missing fill_fragment shows at the first mma_sync.
#pragma once

#include "cuda_fp16.h"

namespace nvcuda {
namespace wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major {
    static constexpr bool is_row_major = true;
};
struct col_major {
    static constexpr bool is_row_major = false;
};
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int M, int N, int K>
struct MntShape;
template <int M, int N, int K>
struct MntShape<matrix_a, M, N, K> {
    static constexpr int rows = M, columns = K, per_lane = 16;
};
template <int M, int N, int K>
struct MntShape<matrix_b, M, N, K> {
    static constexpr int rows = K, columns = N, per_lane = 16;
};
template <int M, int N, int K>
struct MntShape<accumulator, M, N, K> {
    static constexpr int rows = M, columns = N, per_lane = M * N / 32;
};

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
    static_assert(K == 16 && ((M == 16 && N == 16) || (M == 32 && N == 8) || (M == 8 && N == 32)),
                  "wmma shapes for half are 16x16x16, 32x8x16 and 8x32x16");
    static_assert(std::is_same<T, half>::value ||
                      (std::is_same<T, float>::value && std::is_same<Use, accumulator>::value),
                  "emulated fragments hold half, accumulators half or float");
    using Shape = MntShape<Use, M, N, K>;
    using element_type = T;
    using storage_element_type = T;
    static constexpr int num_elements = Shape::per_lane, num_storage_elements = Shape::per_lane;
    T x[num_elements];
    MNT_UNCHECKED fragment() { __builtin_memset(static_cast<void*>(x), 0xff, sizeof x); }
};

template <class Use, int M, int N, int K, class T, class Layout>
inline void fill_fragment(fragment<Use, M, N, K, T, Layout>& f, typename emulation::Same<T>::type value) {
    for (auto& element : f.x) element = value;
}

template <class Use, int M, int N, int K, class T, class Layout>
inline void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& f, const T* memory, unsigned leading, MNT_SITE) {
    using Shape = MntShape<Use, M, N, K>;
    static constexpr MntTile tile = {sizeof(T), Layout::is_row_major ? Shape::columns : Shape::rows,
                                     Shape::rows * Shape::columns, Shape::per_lane, false};
    mnt_emulation_fragment_load(f.x, memory, leading, &tile, file_, line_);
}

template <int M, int N, int K, class T>
inline void load_matrix_sync(fragment<accumulator, M, N, K, T>& f, const T* memory, unsigned leading, layout_t layout,
                             MNT_SITE) {
    const MntTile tile = {sizeof(T), N, M * N, M * N / 32, layout == mem_col_major};
    mnt_emulation_fragment_load(f.x, memory, leading, &tile, file_, line_);
}

template <int M, int N, int K, class T>
inline void store_matrix_sync(T* memory, const fragment<accumulator, M, N, K, T>& f, unsigned leading, layout_t layout,
                              MNT_SITE) {
    const MntTile tile = {sizeof(T), N, M * N, M * N / 32, layout == mem_col_major};
    mnt_emulation_fragment_store(f.x, memory, leading, &tile, file_, line_);
}

template <int M, int N, int K, class LayoutA, class LayoutB, class D, class C>
MNT_UNCHECKED inline void mma_sync(fragment<accumulator, M, N, K, D>& d,
                                   const fragment<matrix_a, M, N, K, half, LayoutA>& a,
                                   const fragment<matrix_b, M, N, K, half, LayoutB>& b,
                                   const fragment<accumulator, M, N, K, C>& c, MNT_SITE) {
    MntMma mma{a.x, b.x, c.x, d.x, M, N, LayoutA::is_row_major, LayoutB::is_row_major, sizeof(C) == 2, sizeof(D) == 2};
    mnt_emulation_collective(0xffffffffu, MNT_MMA, &mma, mnt_emulation_mma, file_, line_);
}

}  // namespace wmma
}  // namespace nvcuda
