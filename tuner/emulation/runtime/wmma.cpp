// WMMA: fragment loads and stores (each lane for itself) and the product (once for the warp, by the last lane).
//
// Products of two halves are exact in float. The default sums them in float, rounding to nearest at every addition. An
// accumulator in half is rounded once per 16 products. The precise mode sums exactly and rounds once per 8 products, a
// float accumulator toward zero: closer to what has been measured of tensor cores, and several times slower.
#include <math.h>

#include "../headers/emulation/half_bits.h"
#include "checker.h"
#include "report.h"
#include "scheduler.h"

using namespace emulation;

namespace {

constexpr int K = 16;
constexpr int kPreciseStep = 8;
typedef float Float8 __attribute__((vector_size(32), may_alias));

inline void halves_to_floats(const uint16_t* halves, float* floats) {  // 8 of them
#ifdef __F16C__
    short8 lanes;
    memcpy(&lanes, halves, 16);
    const Float8 converted = __builtin_ia32_vcvtph2ps256(lanes);
    memcpy(floats, &converted, 32);
#else
    for (int i = 0; i < 8; ++i) floats[i] = half_to_float(halves[i]);
#endif
}

// Whether one of the halves is 0xFFFF, the poison of memory that nobody wrote. `count` is a multiple of 4.
inline bool has_poison(const uint16_t* halves, int count) {
    uint64_t found = 0;
    for (int i = 0; i < count; i += 4) {
        uint64_t inverted;
        memcpy(&inverted, halves + i, 8);
        inverted = ~inverted;  // poison is a 16-bit zero now
        found |= (inverted - 0x0001000100010001u) & ~inverted & 0x8000800080008000u;
    }
    return found != 0;
}

void check_pointer(const void* memory, unsigned leading, const MntTile& tile, int kind, const char* file, int line) {
    const auto address = reinterpret_cast<uintptr_t>(memory);
    Fiber& fiber = *this_fiber();
    fiber.file = file;
    fiber.line = line;
    if (address % kWmmaAlignment)
        report("misaligned", Severity::goes_on, "%s at %s: the pointer is %zu modulo 32 (WMMA needs 256-bit alignment)",
               collective_name(kind), position(file, line).c_str(), static_cast<size_t>(address % kWmmaAlignment));
    if (leading * static_cast<unsigned>(tile.element_bytes) % 16)
        report("misaligned", Severity::goes_on, "%s at %s: the leading dimension %u is not a multiple of 16 bytes",
               collective_name(kind), position(file, line).c_str(), leading);
    // The warp executes these together; only the checked build pays for making sure of it.
    if (current_launch->checked) mnt_emulation_collective(0xffffffffu, kind, nullptr, nullptr, file, line);
}

// Calls visit(index in the lane's elements, byte offset in memory, bytes) for the pieces of a lane's part.
template <class Visit>
inline void walk(const MntTile& tile, unsigned leading, Visit visit) {
    const int first = static_cast<int>(this_fiber()->lane) * tile.count & (tile.size - 1);  // all are powers of two
    const size_t bytes = static_cast<size_t>(tile.element_bytes);
    const int shift = __builtin_ctz(static_cast<unsigned>(tile.inner));
    if (tile.transposed) {
        for (int i = 0; i < tile.count; ++i) {
            const int row = (first + i) >> shift, column = (first + i) & (tile.inner - 1);
            visit(i, (static_cast<size_t>(column) * leading + static_cast<size_t>(row)) * bytes, bytes);
        }
        return;
    }
    for (int i = 0; i < tile.count; i += 8) {  // runs are at least 8 long
        const int element = (first + i) & (tile.size - 1), run = element >> shift, place = element & (tile.inner - 1);
        visit(i, (static_cast<size_t>(run) * leading + static_cast<size_t>(place)) * bytes, 8 * bytes);
    }
}

struct Product {
    alignas(32) float a[32 * K];  // M x K
    alignas(32) float b[K * 32];  // K x N
    alignas(32) float c[256];     // M x N
    bool poison = false;
};

// An operand as it lay in memory: lane after lane, the upper lanes repeating the lower ones where it is small.
void gather(void** lanes, const void* MntMma::* operand, int size, float* out, bool& poison) {
    for (int lane = 0; lane < size / 16; ++lane) {
        const auto* halves = static_cast<const uint16_t*>(static_cast<MntMma*>(lanes[lane])->*operand);
        poison |= has_poison(halves, 16);
        halves_to_floats(halves, out + lane * 16);
        halves_to_floats(halves + 8, out + lane * 16 + 8);
    }
}

void gather_all(void** lanes, const MntMma& mma, Product& product) {
    alignas(32) float transposed[32 * K];
    if (mma.a_row_major) {
        gather(lanes, &MntMma::a, mma.m * K, product.a, product.poison);
    } else {
        gather(lanes, &MntMma::a, mma.m * K, transposed, product.poison);
        for (int k = 0; k < K; ++k)
            for (int i = 0; i < mma.m; ++i) product.a[i * K + k] = transposed[k * mma.m + i];
    }
    if (mma.b_row_major) {
        gather(lanes, &MntMma::b, mma.n * K, product.b, product.poison);
    } else {
        gather(lanes, &MntMma::b, mma.n * K, transposed, product.poison);
        for (int j = 0; j < mma.n; ++j)
            for (int k = 0; k < K; ++k) product.b[k * mma.n + j] = transposed[j * K + k];
    }
    for (int lane = 0; lane < 32; ++lane) {
        const void* c = static_cast<MntMma*>(lanes[lane])->c;
        float* out = product.c + lane * 8;
        if (mma.c_half) {
            product.poison |= has_poison(static_cast<const uint16_t*>(c), 8);
            halves_to_floats(static_cast<const uint16_t*>(c), out);
        } else {
            memcpy(out, c, 32);
            for (int i = 0; i < 8; ++i) product.poison |= float_bits(out[i]) == 0xffffffffu;
        }
    }
}

template <int M, int N>
void multiply(Product& product) {
    constexpr int vectors = N / 8;
    for (int i = 0; i < M; i += 2) {  // two rows at a time, so that a loaded row of B serves twice
        Float8 sum[2][vectors];
        for (int u = 0; u < 2; ++u)
            for (int j = 0; j < vectors; ++j) sum[u][j] = *reinterpret_cast<Float8*>(product.c + (i + u) * N + j * 8);
        for (int k = 0; k < K; ++k)
            for (int j = 0; j < vectors; ++j) {
                const Float8 b = *reinterpret_cast<Float8*>(product.b + k * N + j * 8);
                for (int u = 0; u < 2; ++u) sum[u][j] += product.a[(i + u) * K + k] * b;
            }
        for (int u = 0; u < 2; ++u)
            for (int j = 0; j < vectors; ++j) *reinterpret_cast<Float8*>(product.c + (i + u) * N + j * 8) = sum[u][j];
    }
}

float toward_zero(double value) {
    const float nearest = static_cast<float>(value);
    if (isfinite(nearest) && fabs(static_cast<double>(nearest)) > fabs(value))
        return bits_float(float_bits(nearest) - 1);
    return nearest;
}

void multiply_rounding_every(int step, const MntMma& mma, Product& product) {
    double sum[256];
    const int m = mma.m, n = mma.n;
    for (int i = 0; i < m * n; ++i) sum[i] = static_cast<double>(product.c[i]);
    for (int begin = 0; begin < K; begin += step) {
        for (int i = 0; i < m; ++i)
            for (int k = begin; k < begin + step; ++k) {
                const double a = static_cast<double>(product.a[i * K + k]);
                for (int j = 0; j < n; ++j) sum[i * n + j] += a * static_cast<double>(product.b[k * n + j]);
            }
        for (int i = 0; i < m * n; ++i)
            sum[i] = static_cast<double>(mma.d_half ? half_to_float(double_to_half(sum[i])) : toward_zero(sum[i]));
    }
    for (int i = 0; i < m * n; ++i) product.c[i] = static_cast<float>(sum[i]);
}

}  // namespace

extern "C" void mnt_emulation_fragment_load(void* x, const void* memory, unsigned leading, const MntTile* tile,
                                            const char* file, int line) {
    check_pointer(memory, leading, *tile, MNT_FRAGMENT_LOAD, file, line);
    const char* from = static_cast<const char*>(memory);
    char* to = static_cast<char*>(x);
    walk(*tile, leading, [&](int i, size_t offset, size_t bytes) {
        if (current_launch->checked) checker_access(from + offset, bytes, Access::read, Collective, file, line);
        memcpy(to + i * tile->element_bytes, from + offset, bytes);
    });
    if (tile->element_bytes == 2 && has_poison(static_cast<uint16_t*>(x), tile->count))
        report("poison", Severity::goes_on, "load_matrix_sync at %s reads memory that nobody has written",
               position(file, line).c_str());
}

extern "C" void mnt_emulation_fragment_store(const void* x, void* memory, unsigned leading, const MntTile* tile,
                                             const char* file, int line) {
    check_pointer(memory, leading, *tile, MNT_FRAGMENT_STORE, file, line);
    const char* from = static_cast<const char*>(x);
    char* to = static_cast<char*>(memory);
    walk(*tile, leading, [&](int i, size_t offset, size_t bytes) {
        if (current_launch->checked) checker_access(to + offset, bytes, Access::write, Collective, file, line);
        memcpy(to + offset, from + i * tile->element_bytes, bytes);
    });
}

extern "C" void mnt_emulation_mma(void** lanes, unsigned) {
    const MntMma& mma = *static_cast<MntMma*>(lanes[0]);
    Product product;
    gather_all(lanes, mma, product);
    if (product.poison) {
        const Fiber& fiber = *this_fiber();
        report("poison", Severity::goes_on,
               "mma_sync at %s reads a fragment that was never filled, or filled from such memory",
               position(fiber.file, fiber.line).c_str());
    }
    if (mma.d_half || current_launch->precise)
        multiply_rounding_every(current_launch->precise ? kPreciseStep : K, mma, product);
    else if (mma.n == 16)
        multiply<16, 16>(product);
    else if (mma.n == 8)
        multiply<32, 8>(product);
    else
        multiply<8, 32>(product);

    for (int lane = 0; lane < 32; ++lane) {
        void* d = static_cast<MntMma*>(lanes[lane])->d;
        const float* from = product.c + lane * 8;
        if (!mma.d_half) {
            memcpy(d, from, 32);
            continue;
        }
        for (int i = 0; i < 8; ++i) static_cast<uint16_t*>(d)[i] = float_to_half(from[i]);
    }
}
