// linear_forward, the library's way: cuBLAS has written X W to Y; here Y = activation(Y + b), in place.
//
//   Y (BATCH, OUT_FEATURES) fp16 row major, b (OUT_FEATURES) fp32. One vector of a row per thread: the pass moves Y twice and
//   is over in a launch's latency for most layers.
//
// Sizes: BATCH OUT_FEATURES, RELU.      The parameters are those of linear_forward, so that either serves a caller.
#include "common.cuh"

#ifndef BATCH
#define BATCH 32
#endif
#ifndef OUT_FEATURES
#define OUT_FEATURES 128
#endif
#ifndef RELU
#define RELU 1
#endif
#ifndef THREADS
#define THREADS 128
#endif

using namespace mnt;

static constexpr int WIDTH = vector_width(OUT_FEATURES, 8), PER_ROW = OUT_FEATURES / WIDTH;

extern "C" __global__ void __launch_bounds__(THREADS)
linear_forward(const half* __restrict__, const half* __restrict__, const float* __restrict__ b, half* __restrict__ Y, int,
               float* __restrict__, unsigned* __restrict__) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= BATCH * PER_ROW) return;
    __align__(16) half v[WIDTH];
    copy_vector<WIDTH * 2>(v, Y + size_t(i) * WIDTH);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) {
        const float y = __half2float(v[k]) + b[i % PER_ROW * WIDTH + k];
        // Not fmaxf, which would turn a NaN into 0 and hide it.
        v[k] = __float2half_rn(RELU && y < 0.0f ? 0.0f : y);
    }
    copy_vector<WIDTH * 2>(Y + size_t(i) * WIDTH, v);
}
