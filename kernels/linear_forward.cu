// linear_forward: Y = activation(X W + b)
//
//   X (BATCH, IN_FEATURES) fp16, W (IN_FEATURES, OUT_FEATURES) fp16, b (OUT_FEATURES) fp32, Y (BATCH, OUT_FEATURES) fp16,
//   all row major. Sums in fp32, or in fp16 where ACCUMULATOR is half.
//
//              OUT_FEATURES                      A block makes one BLOCK_M x BLOCK_N tile of Y from one of SPLIT_K slices
//            +----+----+----+                    of the sum. It walks its slice in steps of BLOCK_K through a ring of
//   IN       |    | W  |    |  <- slice 0        STAGES tiles in shared memory, filled asynchronously.
//   FEATURES +----+----+----+
//            |    | W  |    |  <- slice 1        Its warps form a WARPS_M x WARPS_N x WARPS_K box: each keeps a
//            +----+----+----+                    WARP_M x WARP_N piece of the tile as WMMA fragments and takes every
//   X        +----+----+----+                    WARPS_K-th step of 16. With 32 rows of X the kernel is a stream over W:
//   ======>  |    | Y  |    |                    many blocks (SPLIT_K), many bytes in flight (STAGES) decide its speed.
//            +----+----+----+
//
// The slices meet through REDUCE_CLUSTER (sm_90: the blocks of a tile form a cluster and read each other's shared memory)
// or else through `partial` in global memory, summed in order of the slice by the block that arrives last.
//
// Sizes:      BATCH IN_FEATURES OUT_FEATURES, RELU (0 or 1)
// Tunables:   BLOCK_M BLOCK_N BLOCK_K WARP_M WARP_N WARPS_K FRAGMENT_M FRAGMENT_N STAGES SPLIT_K REDUCE_CLUSTER VECTOR SKEW
//             OVERLAP ACCUMULATOR MIN_BLOCKS; linear_forward.py says what each trades against what.
// Parameters: settled: not 0 where the kernel right before this one does not write W; with OVERLAP its first tiles are then
//             fetched while that kernel is still finishing. partial (SPLIT_K, BATCH, padded OUT_FEATURES) fp32 workspace, arrived: one zeroed counter per tile of Y.
#include "common.cuh"

#ifndef BATCH
#define BATCH 32
#endif
#ifndef IN_FEATURES
#define IN_FEATURES 784
#endif
#ifndef OUT_FEATURES
#define OUT_FEATURES 128
#endif
#ifndef RELU
#define RELU 1
#endif
#ifndef BLOCK_M
#define BLOCK_M 32
#endif
#ifndef BLOCK_N
#define BLOCK_N 32
#endif
#ifndef BLOCK_K
#define BLOCK_K 64
#endif
#ifndef WARP_M
#define WARP_M 32
#endif
#ifndef WARP_N
#define WARP_N 32
#endif
#ifndef WARPS_K
#define WARPS_K 4
#endif
#ifndef FRAGMENT_M
#define FRAGMENT_M 16
#endif
#ifndef FRAGMENT_N
#define FRAGMENT_N 16
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifndef SPLIT_K
#define SPLIT_K 4
#endif
#ifndef REDUCE_CLUSTER
#define REDUCE_CLUSTER 0
#endif
#ifndef VECTOR
#define VECTOR 8
#endif
#ifndef OVERLAP
#define OVERLAP 0
#endif
#ifndef SKEW
#define SKEW 8
#endif
#ifndef ACCUMULATOR
#define ACCUMULATOR float
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1
#endif

using namespace mnt;

static constexpr int WARPS_M = BLOCK_M / WARP_M, WARPS_N = BLOCK_N / WARP_N;
static constexpr int THREADS = 32 * WARPS_M * WARPS_N * WARPS_K;
static constexpr int FRAGMENTS_M = WARP_M / FRAGMENT_M, FRAGMENTS_N = WARP_N / FRAGMENT_N;
static constexpr int X_LD = BLOCK_K + SKEW, W_LD = BLOCK_N + SKEW, SUM_LD = BLOCK_N + 8;
static constexpr int X_TILE = BLOCK_M * X_LD, W_TILE = BLOCK_K * W_LD, SUM_TILE = BLOCK_M * SUM_LD;
static constexpr int X_VECTOR = vector_width(IN_FEATURES, VECTOR), W_VECTOR = vector_width(OUT_FEATURES, VECTOR);
static constexpr int K_TILES = ceil_div(IN_FEATURES, BLOCK_K);
// The epilogue works on four columns at a time; the workspace's rows are padded so that this never meets an edge.
static constexpr int Y_VECTOR = OUT_FEATURES % 4 == 0 ? 4 : 1;
[[maybe_unused]] static constexpr int PARTIAL_LD = ceil_div(OUT_FEATURES, 4) * 4;

static_assert(BLOCK_M % WARP_M == 0 && BLOCK_N % WARP_N == 0, "warp tiles must fill the block tile");
static_assert(WARP_M % FRAGMENT_M == 0 && WARP_N % FRAGMENT_N == 0, "fragments must fill the warp tile");
static_assert(BLOCK_K % (16 * WARPS_K) == 0, "every warp needs the same number of steps of 16 in a tile");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");
static_assert(SPLIT_K <= K_TILES, "every slice needs a tile");
static_assert(SKEW % 8 == 0, "WMMA's leading dimension is a multiple of 16 bytes");
static_assert(FRAGMENT_N % 16 == 0, "WMMA pointers are aligned to 32 bytes: 8 columns of a row-major B are not");
static_assert(!REDUCE_CLUSTER || (SPLIT_K > 1 && SPLIT_K <= 8), "a portable cluster has at most 8 blocks");

// Add the bias, apply the activation and write the columns that exist of four.
__device__ __forceinline__ void finish(half* Y, const float* b, int row, int col, float4 sum) {
    if (col >= OUT_FEATURES || (BATCH % BLOCK_M != 0 && row >= BATCH)) return;
    float v[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        v[i] += Y_VECTOR == 4 || col + i < OUT_FEATURES ? b[col + i] : 0.0f;
        // Not fmaxf, which would turn a NaN into 0 and hide it.
        if (RELU) v[i] = v[i] < 0.0f ? 0.0f : v[i];
    }
    store4<Y_VECTOR>(Y + size_t(row) * OUT_FEATURES + col, make_float4(v[0], v[1], v[2], v[3]), OUT_FEATURES - col);
}

extern "C" __global__ void
#if REDUCE_CLUSTER
__cluster_dims__(1, 1, SPLIT_K)
#endif
__launch_bounds__(THREADS, MIN_BLOCKS)
linear_forward(const half* __restrict__ X, const half* __restrict__ W, const float* __restrict__ b, half* __restrict__ Y,
               int settled, float* __restrict__ partial, unsigned* __restrict__ arrived) {
    MNT_DYNAMIC_SHARED(shared);
    half* const x_ring = reinterpret_cast<half*>(shared);
    half* const w_ring = x_ring + STAGES * X_TILE;

    const int warp = threadIdx.x / 32;
    const int warp_k = warp / (WARPS_M * WARPS_N), warp_m = warp / WARPS_N % WARPS_M, warp_n = warp % WARPS_N;
    const int col0 = blockIdx.x * BLOCK_N, row0 = blockIdx.y * BLOCK_M, slice = blockIdx.z;
    const int first = slice * K_TILES / SPLIT_K, last = (slice + 1) * K_TILES / SPLIT_K;

    auto load_w = [&](int tile) {
        if (tile < last)
            load_tile<BLOCK_K, BLOCK_N, W_LD, IN_FEATURES, OUT_FEATURES, W_VECTOR, THREADS>(
                w_ring + (tile - first) % STAGES * W_TILE, W, tile * BLOCK_K, col0);
    };
    auto load_x = [&](int tile) {
        if (tile < last)
            load_tile<BLOCK_M, BLOCK_K, X_LD, BATCH, IN_FEATURES, X_VECTOR, THREADS>(
                x_ring + (tile - first) % STAGES * X_TILE, X, row0, tile * BLOCK_K);
        commit_copies();  // also when empty, so that the count of groups stays that of tiles
    };
    auto load = [&](int tile) {
        load_w(tile);
        load_x(tile);
    };

    wmma::fragment<wmma::accumulator, FRAGMENT_M, FRAGMENT_N, 16, ACCUMULATOR> sums[FRAGMENTS_M][FRAGMENTS_N];
#pragma unroll
    for (int m = 0; m < FRAGMENTS_M; ++m)
#pragma unroll
        for (int n = 0; n < FRAGMENTS_N; ++n) wmma::fill_fragment(sums[m][n], ACCUMULATOR(0.0f));

#if OVERLAP
    if (settled) {
#pragma unroll
        for (int s = 0; s < STAGES - 1; ++s) load_w(first + s);
    }
    wait_for_predecessors();
    let_successors_start();
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        if (!settled) load_w(first + s);
        load_x(first + s);
    }
#else
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) load(first + s);
#endif
    for (int tile = first; tile < last; ++tile) {
        if (STAGES == 1) {
            __syncthreads();  // the one buffer is free when all have read the tile before
            load(tile);
        }
        wait_copies<(STAGES > 1 ? STAGES - 2 : 0)>();
        __syncthreads();
        if (STAGES > 1) load(tile + STAGES - 1);  // into the buffer of the tile before, which all have left
        const half* const x = x_ring + (tile - first) % STAGES * X_TILE + warp_m * WARP_M * X_LD;
        const half* const w = w_ring + (tile - first) % STAGES * W_TILE + warp_n * WARP_N;
#pragma unroll
        for (int step = 0; step < BLOCK_K / (16 * WARPS_K); ++step) {
            const int k = (step * WARPS_K + warp_k) * 16;
            wmma::fragment<wmma::matrix_a, FRAGMENT_M, FRAGMENT_N, 16, half, wmma::row_major> a[FRAGMENTS_M];
            wmma::fragment<wmma::matrix_b, FRAGMENT_M, FRAGMENT_N, 16, half, wmma::row_major> w_part[FRAGMENTS_N];
#pragma unroll
            for (int m = 0; m < FRAGMENTS_M; ++m) wmma::load_matrix_sync(a[m], x + m * FRAGMENT_M * X_LD + k, X_LD);
#pragma unroll
            for (int n = 0; n < FRAGMENTS_N; ++n) wmma::load_matrix_sync(w_part[n], w + k * W_LD + n * FRAGMENT_N, W_LD);
#pragma unroll
            for (int m = 0; m < FRAGMENTS_M; ++m)
#pragma unroll
                for (int n = 0; n < FRAGMENTS_N; ++n) wmma::mma_sync(sums[m][n], a[m], w_part[n], sums[m][n]);
        }
    }

    // The warps' sums meet in shared memory, which the ring has left.
    wait_copies<0>();
    __syncthreads();
    ACCUMULATOR* const tiles = reinterpret_cast<ACCUMULATOR*>(shared);
#pragma unroll
    for (int m = 0; m < FRAGMENTS_M; ++m)
#pragma unroll
        for (int n = 0; n < FRAGMENTS_N; ++n)
            wmma::store_matrix_sync(tiles + warp_k * SUM_TILE + (warp_m * WARP_M + m * FRAGMENT_M) * SUM_LD +
                                        warp_n * WARP_N + n * FRAGMENT_N,
                                    sums[m][n], SUM_LD, wmma::mem_row_major);
    __syncthreads();

    constexpr int QUADS = BLOCK_M * BLOCK_N / 4;  // groups of four columns in the tile
    auto block_sum = [&](int quad) {
        const int at = quad / (BLOCK_N / 4) * SUM_LD + quad % (BLOCK_N / 4) * 4;
        float4 sum = load4(tiles + at);
#pragma unroll
        for (int k = 1; k < WARPS_K; ++k) sum = sum + load4(tiles + k * SUM_TILE + at);
        return sum;
    };

    if constexpr (SPLIT_K == 1) {
        for (int quad = threadIdx.x; quad < QUADS; quad += THREADS)
            finish(Y, b, row0 + quad / (BLOCK_N / 4), col0 + quad % (BLOCK_N / 4) * 4, block_sum(quad));
        return;
    }
#if REDUCE_CLUSTER
    // Behind the warps' tiles, so that no warp overwrites what another still reads.
    float* const own = reinterpret_cast<float*>(tiles + WARPS_K * SUM_TILE);
    for (int quad = threadIdx.x; quad < QUADS; quad += THREADS)
        *reinterpret_cast<float4*>(own + quad * 4) = block_sum(quad);
    cluster_sync();
    for (int quad = slice * THREADS + threadIdx.x; quad < QUADS; quad += SPLIT_K * THREADS) {
        float4 sum = cluster_load(own + quad * 4, 0);
#pragma unroll
        for (int s = 1; s < SPLIT_K; ++s) sum = sum + cluster_load(own + quad * 4, s);
        finish(Y, b, row0 + quad / (BLOCK_N / 4), col0 + quad % (BLOCK_N / 4) * 4, sum);
    }
    cluster_sync();  // nobody leaves while another still reads its shared memory
#else
    for (int quad = threadIdx.x; quad < QUADS; quad += THREADS) {
        const int row = row0 + quad / (BLOCK_N / 4), col = col0 + quad % (BLOCK_N / 4) * 4;
        if (row < BATCH && col < OUT_FEATURES)
            *reinterpret_cast<float4*>(partial + (size_t(slice) * BATCH + row) * PARTIAL_LD + col) = block_sum(quad);
    }
    if (!arrives_last(arrived + blockIdx.y * gridDim.x + blockIdx.x, SPLIT_K, reinterpret_cast<int*>(shared))) return;
    for (int quad = threadIdx.x; quad < QUADS; quad += THREADS) {
        const int row = row0 + quad / (BLOCK_N / 4), col = col0 + quad % (BLOCK_N / 4) * 4;
        if (row >= BATCH || col >= OUT_FEATURES) continue;
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int s = 0; s < SPLIT_K; ++s)
            sum = sum + load_partial(partial + (size_t(s) * BATCH + row) * PARTIAL_LD + col);
        finish(Y, b, row, col, sum);
    }
#endif
}
