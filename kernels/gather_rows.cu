// gather_rows: the batches of the next STEPS training steps, picked on the device
//
//   X[s, m, :] = images[order[(*position + s) % total, m], :],  y[s, m] its label,  then *position += STEPS
//
//   images (any number of rows, FEATURES) fp16, labels (the same rows) uint8, order (total, BATCH) int32,
//   X (STEPS, BATCH, FEATURES) fp16, y (STEPS, BATCH) int32. Row major.
//
//   One launch serves all STEPS steps of a captured CUDA graph. `position` counts the steps done, on the device, so that
//   the graph can be replayed without the host saying where it is; after `total` steps the order starts over. Each block
//   copies ROWS rows, VECTOR elements at a time.
//
// Sizes:    BATCH FEATURES STEPS     Tunables: THREADS ROWS VECTOR
// arrived:  one zeroed counter; the block that arrives last moves `position`, when all have read it.
#include "common.cuh"

#ifndef BATCH
#define BATCH 32
#endif
#ifndef FEATURES
#define FEATURES 784
#endif
#ifndef STEPS
#define STEPS 1
#endif
#ifndef THREADS
#define THREADS 128
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef VECTOR
#define VECTOR 8
#endif

using namespace mnt;

static constexpr int WIDTH = vector_width(FEATURES, VECTOR), PER_ROW = FEATURES / WIDTH;
static_assert(THREADS % 32 == 0 && THREADS <= 1024, "whole warps, at most 1024 threads");

extern "C" __global__ void __launch_bounds__(THREADS)
gather_rows(const half* __restrict__ images, const unsigned char* __restrict__ labels, const int* __restrict__ order,
            int* __restrict__ position, int total, half* __restrict__ X, int* __restrict__ y,
            unsigned* __restrict__ arrived) {
    MNT_DYNAMIC_SHARED(shared);
    const int done = *position;
    for (int i = threadIdx.x; i < ROWS * PER_ROW; i += THREADS) {
        const int row = blockIdx.x * ROWS + i / PER_ROW, at = i % PER_ROW * WIDTH;
        if (row >= STEPS * BATCH) break;
        const int step = (done + row / BATCH) % total;
        const int source = order[size_t(step) * BATCH + row % BATCH];
        copy_vector<WIDTH * int(sizeof(half))>(X + size_t(row) * FEATURES + at, images + size_t(source) * FEATURES + at);
        if (at == 0) y[row] = labels[source];
    }
    if (arrives_last(arrived, gridDim.x, reinterpret_cast<int*>(shared)) && threadIdx.x == 0) *position = done + STEPS;
}
