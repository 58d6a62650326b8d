// softmax_cross_entropy: the mean cross-entropy of a batch of logits, and its gradient
//
//   loss = mean over rows of  log(sum_c exp(logits_c)) - logits_label
//   dLogits = scale / BATCH * (softmax(logits) - onehot(label))
//
//   logits, dLogits (BATCH, CLASSES) fp16, labels (BATCH) int32, row major. The row's largest logit is subtracted first, so
//   no exponential overflows. `scale` is the loss scale that keeps small gradients inside fp16.
//
//   row 0  | lane 0 | lane 1 | ... |   LANES lanes of a warp share a row and meet by shuffles; the block's lane groups
//   row 1  | lane 0 | lane 1 | ... |   walk over the rows. One block does it all: the batch's logits are a few hundred
//   ...                                bytes, and a second block would cost more than it helps.
//
// The mean is written to loss[(*position + offset) % slots]: a captured CUDA graph replays with fixed arguments, and
// `position` lets each of its steps find its own place in the log. The sum runs in a fixed order, so the same inputs give the same bits.
//
// Sizes:    BATCH CLASSES            Tunables: THREADS LANES OVERLAP
#include "common.cuh"

#ifndef BATCH
#define BATCH 32
#endif
#ifndef CLASSES
#define CLASSES 10
#endif
#ifndef THREADS
#define THREADS 128
#endif
#ifndef OVERLAP
#define OVERLAP 0
#endif
#ifndef LANES
#define LANES 4
#endif

using namespace mnt;

static constexpr int GROUPS = THREADS / LANES, PER_LANE = ceil_div(CLASSES, LANES);

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "whole warps, at most 1024 threads");
static_assert(LANES >= 1 && LANES <= 32 && (LANES & (LANES - 1)) == 0, "shuffles need a power of two of lanes in one warp");

template <typename Combine> __device__ __forceinline__ float across_lanes(float v, Combine combine) {
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2) v = combine(v, __shfl_xor_sync(0xffffffffu, v, distance));
    return v;
}

extern "C" __global__ void __launch_bounds__(THREADS)
softmax_cross_entropy(const half* __restrict__ logits, const int* __restrict__ labels, half* __restrict__ dLogits,
                      float* __restrict__ loss, const int* __restrict__ position, int offset, int slots,
                      float scale) {
    MNT_DYNAMIC_SHARED(shared);
    float* const group_loss = reinterpret_cast<float*>(shared);
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;

    const float minus_infinity = __uint_as_float(0xff800000u);  // NVRTC has no INFINITY
    float sum_of_losses = 0.0f;
#if OVERLAP
    wait_for_predecessors();
    let_successors_start();
#endif
    // Every lane of a warp makes the same number of turns, rows or not: shuffles need them all.
    for (int row0 = 0; row0 < BATCH; row0 += GROUPS) {
        const int row = row0 + group;
        const bool is_row = row < BATCH;
        const half* const z = logits + size_t(is_row ? row : 0) * CLASSES;
        const int label = labels[is_row ? row : 0];
        float v[PER_LANE], largest = minus_infinity, of_label = 0.0f, sum = 0.0f;
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            const int c = i * LANES + lane;
            v[i] = c < CLASSES ? __half2float(z[c]) : minus_infinity;
            // Not fmaxf, which would drop a NaN.
            largest = v[i] <= largest ? largest : v[i];
            if (c == label) of_label = v[i];
        }
        largest = across_lanes(largest, [](float a, float b) { return b <= a ? a : b; });
        of_label = across_lanes(of_label, [](float a, float b) { return a + b; });
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            v[i] = i * LANES + lane < CLASSES ? __expf(v[i] - largest) : 0.0f;
            sum += v[i];
        }
        sum = across_lanes(sum, [](float a, float b) { return a + b; });
        if (!is_row) continue;
        if (lane == 0) sum_of_losses += __logf(sum) + largest - of_label;
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            const int c = i * LANES + lane;
            if (c < CLASSES)
                dLogits[size_t(row) * CLASSES + c] = __float2half_rn((v[i] / sum - (c == label ? 1.0f : 0.0f)) * (scale / BATCH));
        }
    }
    if (lane == 0) group_loss[group] = sum_of_losses;
    __syncthreads();
    if (threadIdx.x < 32) {
        float total = 0.0f;
        for (int g = threadIdx.x; g < GROUPS; g += 32) total += group_loss[g];
        for (int distance = 16; distance > 0; distance /= 2) total += __shfl_xor_sync(0xffffffffu, total, distance);
        if (threadIdx.x == 0) loss[(*position + offset) % slots] = total / BATCH;
    }
}
