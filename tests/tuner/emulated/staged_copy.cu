// Three stages of asynchronous copies: y = 2 x, a tile of 64 numbers at a time; a short last tile is filled with zeros.
#include <cuda_pipeline.h>
extern "C" __global__ void staged_copy(const float* x, float* y, int n) {
    MNT_DYNAMIC_SHARED(raw);
    float* shared = reinterpret_cast<float*>(raw);
    const int i = threadIdx.x, tiles = (n + 63) / 64;
    auto load = [&](int tile) {
        const int at = tile * 64 + i;
        if (tile < tiles) __pipeline_memcpy_async(shared + tile % 3 * 64 + i, at < n ? x + at : x, 4, at < n ? 0 : 4);
        __pipeline_commit();
    };
    load(0);
    load(1);
    for (int tile = 0; tile < tiles; ++tile) {
        __pipeline_wait_prior(1);
        __syncthreads();
        load(tile + 2);
        y[tile * 64 + i] = 2.0f * shared[tile % 3 * 64 + (i ^ 1)];
    }
}
