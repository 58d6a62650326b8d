// linear_backward, the library's way: cuBLAS has written dY W^T to dX and X^T dY, in fp16, to `partial`; here the rest, element
// by element, in one launch whose blocks share it out:
//
//   W -= rate X^T dY     the first UPDATE_BLOCKS blocks: a vector of weights per thread, 10 bytes per weight
//   dX = 0 where X <= 0  the next MASK_BLOCKS
//   b -= rate (sum of the rows of dY)    the last BIAS_BLOCKS: a column per thread
//
//   The weight is W + master / 2048, both fp16, as in linear_backward with MASTER_FP32 0; so is all else. The parameters are
//   those of linear_backward, so that either serves a caller.
//
// Sizes: BATCH IN_FEATURES OUT_FEATURES, NEED_DX
#include "common.cuh"

#ifndef BATCH
#define BATCH 32
#endif
#ifndef IN_FEATURES
#define IN_FEATURES 128
#endif
#ifndef OUT_FEATURES
#define OUT_FEATURES 128
#endif
#ifndef NEED_DX
#define NEED_DX 1
#endif
#ifndef THREADS
#define THREADS 256
#endif

using namespace mnt;

static constexpr float RESIDUAL_SCALE = 2048.0f;
static constexpr int W_WIDTH = vector_width(OUT_FEATURES, 8), X_WIDTH = vector_width(IN_FEATURES, 8);
static constexpr int W_VECTORS = IN_FEATURES * (OUT_FEATURES / W_WIDTH), X_VECTORS = BATCH * (IN_FEATURES / X_WIDTH);
static constexpr int UPDATE_BLOCKS = ceil_div(W_VECTORS, THREADS), MASK_BLOCKS = NEED_DX ? ceil_div(X_VECTORS, THREADS) : 0;

extern "C" __global__ void __launch_bounds__(THREADS)
linear_backward(const half* __restrict__ X, const half* __restrict__ dY, half* __restrict__ W, half* __restrict__ master,
                float* __restrict__ b, half* __restrict__ dX, float rate, int, const float* __restrict__ partial,
                unsigned* __restrict__) {
    int block = blockIdx.x;
    if (block < UPDATE_BLOCKS) {
        const int i = block * THREADS + threadIdx.x;
        if (i >= W_VECTORS) return;
        const size_t at = size_t(i) * W_WIDTH;
        __align__(16) half high[W_WIDTH], low[W_WIDTH], g[W_WIDTH];
        copy_vector<W_WIDTH * 2>(high, W + at);
        copy_vector<W_WIDTH * 2>(low, master + at);
        copy_vector<W_WIDTH * 2>(g, reinterpret_cast<const half*>(partial) + at);
#pragma unroll
        for (int k = 0; k < W_WIDTH; ++k) {
            const float weight = __half2float(high[k]) + __half2float(low[k]) / RESIDUAL_SCALE - rate * __half2float(g[k]);
            high[k] = __float2half_rn(weight);
            low[k] = __float2half_rn((weight - __half2float(high[k])) * RESIDUAL_SCALE);
        }
        copy_vector<W_WIDTH * 2>(W + at, high);
        copy_vector<W_WIDTH * 2>(master + at, low);
        return;
    }
    block -= UPDATE_BLOCKS;
    if (block < MASK_BLOCKS) {
        const int i = block * THREADS + threadIdx.x;
        if (i >= X_VECTORS) return;
        __align__(16) half x[X_WIDTH], d[X_WIDTH];
        copy_vector<X_WIDTH * 2>(x, X + size_t(i) * X_WIDTH);
        copy_vector<X_WIDTH * 2>(d, dX + size_t(i) * X_WIDTH);
#pragma unroll
        for (int k = 0; k < X_WIDTH; ++k) d[k] = __half2float(x[k]) > 0.0f ? d[k] : __float2half_rn(0.0f);
        copy_vector<X_WIDTH * 2>(dX + size_t(i) * X_WIDTH, d);
        return;
    }
    const int column = (block - MASK_BLOCKS) * THREADS + threadIdx.x;
    if (column >= OUT_FEATURES) return;
    float sum = 0.0f;
#pragma unroll 8
    for (int row = 0; row < BATCH; ++row) sum += __half2float(dY[size_t(row) * OUT_FEATURES + column]);
    b[column] -= rate * sum;
}
