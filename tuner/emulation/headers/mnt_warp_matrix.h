// Stands in for three warp-wide instructions of PTX, in the layouts that PTX documents: mma.sync.m16n8k16 (fp16, fp32
// sums), ldmatrix.x4 and movmatrix. Kernels call these where __MNT_EMULATION__ is defined, and inline PTX elsewhere.
//
// Lane 4 g + t holds, of an 8x8 matrix, elements (g, 2t) and (g, 2t + 1), the first one in the low half of the word.
#pragma once

#include <cuda_fp16.h>

namespace emulation {

struct Rows {
    const uint16_t *given, *taken[4][2];
};
template <bool Transposed>
MNT_UNCHECKED void perform_rows(void** lanes, unsigned) {
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i)
            for (int half = 0; half < 2; ++half) {
                const int row = Transposed ? 2 * (lane % 4) + half : lane / 4;
                static_cast<Rows*>(lanes[lane])->taken[i][half] = static_cast<Rows*>(lanes[8 * i + row])->given;
            }
}

struct Product {
    const unsigned* a;
    unsigned b[2];
    float* c;
};
MNT_UNCHECKED inline float half_of(unsigned word, int which) {
    return half_to_float(static_cast<uint16_t>(which ? word >> 16 : word));
}
MNT_UNCHECKED inline void perform_product(void** lanes, unsigned) {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; ++lane) {
        const auto* const mine = static_cast<Product*>(lanes[lane]);
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; ++i)
            for (int e = 0; e < 2; ++e) a[g + i % 2 * 8][2 * t + i / 2 * 8 + e] = half_of(mine->a[i], e);
        for (int i = 0; i < 2; ++i)
            for (int e = 0; e < 2; ++e) b[2 * t + i * 8 + e][g] = half_of(mine->b[i], e);
    }
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i) {
            float sum = static_cast<Product*>(lanes[lane])->c[i];
            for (int k = 0; k < 16; ++k) sum += a[lane / 4 + i / 2 * 8][k] * b[k][lane % 4 * 2 + i % 2];
            static_cast<Product*>(lanes[lane])->c[i] = sum;
        }
}

struct Turned {
    unsigned given, taken;
};
MNT_UNCHECKED inline void perform_turn(void** lanes, unsigned) {
    for (int lane = 0; lane < 32; ++lane) {
        unsigned word = 0;
        for (int e = 0; e < 2; ++e) {
            const unsigned from = static_cast<Turned*>(lanes[(lane % 4 * 2 + e) * 4 + lane / 8])->given;
            word |= (lane / 4 % 2 ? from >> 16 : from & 0xffffu) << (16 * e);
        }
        static_cast<Turned*>(lanes[lane])->taken = word;
    }
}

}  // namespace emulation

// Four 8x8 matrices; lane i gives the address of row i % 8 of matrix i / 8.
template <bool Transposed>
inline void mnt_load_matrices(unsigned* r, const void* row, MNT_SITE) {
    if (reinterpret_cast<uintptr_t>(row) % 16) mnt_emulation_trap("ldmatrix of a row that is not aligned to 16 bytes", file_, line_);
    emulation::Rows rows{static_cast<const uint16_t*>(row), {}};
    mnt_emulation_collective(0xffffffffu, MNT_FRAGMENT_LOAD, &rows, emulation::perform_rows<Transposed>, file_, line_);
    const int g = static_cast<int>(emulation::lane()) / 4, t = static_cast<int>(emulation::lane()) % 4;
    for (int i = 0; i < 4; ++i) {
        const unsigned low = rows.taken[i][0][Transposed ? g : 2 * t];
        const unsigned high = rows.taken[i][1][Transposed ? g : 2 * t + 1];
        r[i] = low | high << 16;
    }
}

// c (16x8, fp32) += a (16x16) b (16x8)
MNT_UNCHECKED inline void mnt_mma_m16n8k16(float* c, const unsigned* a, unsigned b0, unsigned b1, MNT_SITE) {
    emulation::Product product{a, {b0, b1}, c};
    mnt_emulation_collective(0xffffffffu, MNT_MMA, &product, emulation::perform_product, file_, line_);
}

// The transpose of an 8x8 matrix.
MNT_UNCHECKED inline unsigned mnt_transpose(unsigned word, MNT_SITE) {
    emulation::Turned turned{word, 0};
    mnt_emulation_collective(0xffffffffu, MNT_SHUFFLE, &turned, emulation::perform_turn, file_, line_);
    return turned.taken;
}
