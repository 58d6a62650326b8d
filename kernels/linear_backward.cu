// linear_backward: the gradients of Y = X W + b and the SGD update, in one pass over W.
//
//   dX = dY W^T, with the W of before the update, and zero where X is not positive (X is the ReLU of the layer below)
//   W -= rate X^T dY,   b -= rate (sum of the rows of dY);   X^T dY is never written to memory
//
//   X (BATCH, IN_FEATURES), dY (BATCH, OUT_FEATURES), dX like X: fp16; W (IN_FEATURES, OUT_FEATURES): fp16, which is what
//   linear_forward reads, and beside it the master part of the same shape; b (OUT_FEATURES) fp32. All row major.
//
//   MASTER_FP32 1: the master is the weight in fp32, and W its rounding.      14 bytes per weight and step (12 without dX)
//   MASTER_FP32 0: the weight is W + master / 2048, both fp16 (22 bits).       8 bytes per weight and step
//
//                OUT_FEATURES                    A block owns BLOCK_K rows of W and walks along them in tiles of BLOCK_N
//            +----+----+----+----+               columns (one of SPLIT_N slices of them). Nobody else touches its tiles,
//   IN       |tile|--->|    |    |               so reading the old W and writing the new needs no order between blocks.
//   FEATURES +----+----+----+----+
//            |    |    |    |    |               Per tile:  dX (BLOCK_M x BLOCK_K) += dY tile x W tile^T    tensor cores
//            +----+----+----+----+                          G  (BLOCK_K x BLOCK_N)  = X tile^T x dY tile    tensor cores
//                                                           W tile -= rate G, element by element, 16 bytes at a time
//   The tiles of W, master and dY come through a ring of STAGES buffers. G passes through shared memory, since only there
//   do WMMA fragments and 16-byte vectors agree on who holds what.
//
//   A batch larger than BLOCK_M is walked in chunks of BLOCK_M rows. A block then has just one tile (SPLIT_N = tiles of a
//   row), G grows over the chunks, and the chunks of X and dY are what the ring holds.
//
// The slices of dX meet through REDUCE_CLUSTER (sm_90), or else through `partial`, summed in order of the slice by the
// block that arrives last.
//
// Sizes:      BATCH IN_FEATURES OUT_FEATURES, NEED_DX (0: the first layer of a network)
// Tunables:   BLOCK_M BLOCK_N BLOCK_K WARPS WARP_M WARP_K STAGES SPLIT_N REDUCE_CLUSTER MASTER_FP32 VECTOR SKEW OVERLAP
//             ACCUMULATOR MIN_BLOCKS; linear_backward.py says what each trades against what.
// Parameters: rate: learning rate / loss scale. settled: not 0 where the kernel right before this one writes neither X nor
//             W nor master; with OVERLAP the first of them are then fetched while it is still finishing. partial (SPLIT_N, BATCH, padded IN_FEATURES) fp32 workspace, arrived: one
//             zeroed counter per BLOCK_K rows of W.
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
#ifndef BLOCK_M
#define BLOCK_M 32
#endif
#ifndef BLOCK_N
#define BLOCK_N 64
#endif
#ifndef BLOCK_K
#define BLOCK_K 32
#endif
#ifndef WARPS
#define WARPS 4
#endif
#ifndef WARP_M
#define WARP_M 16
#endif
#ifndef WARP_K
#define WARP_K 16
#endif
#ifndef STAGES
#define STAGES 2
#endif
#ifndef SPLIT_N
#define SPLIT_N 1
#endif
#ifndef REDUCE_CLUSTER
#define REDUCE_CLUSTER 0
#endif
#ifndef MASTER_FP32
#define MASTER_FP32 0
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

#if MASTER_FP32
using Master = float;
#else
using Master = half;
#endif

static constexpr int THREADS = 32 * WARPS;
static constexpr int N_TILES = ceil_div(OUT_FEATURES, BLOCK_N), M_CHUNKS = ceil_div(BATCH, BLOCK_M);
// W itself is read where dX or the sum of two parts needs it; an fp32 master says all when dX is not asked for.
static constexpr bool READ_W = NEED_DX || !MASTER_FP32;
static constexpr bool CHUNKED = M_CHUNKS > 1;

static constexpr int X_LD = BLOCK_K + SKEW, W_LD = BLOCK_N + SKEW, G_LD = BLOCK_N + 8, SUM_LD = BLOCK_K + 8;
static constexpr int X_BYTES = BLOCK_M * X_LD * 2, DY_BYTES = BLOCK_M * W_LD * 2;
static constexpr int W_BYTES = READ_W ? BLOCK_K * W_LD * 2 : 0, MASTER_BYTES = BLOCK_K * W_LD * int(sizeof(Master));
// What every step brings anew (a buffer of the ring), and what stays for the block's whole life.
static constexpr int STAGE_BYTES = DY_BYTES + (CHUNKED ? X_BYTES : W_BYTES + MASTER_BYTES);
static constexpr int RESIDENT_BYTES = CHUNKED ? W_BYTES + MASTER_BYTES : X_BYTES;
static constexpr int IN_VECTOR = vector_width(IN_FEATURES, VECTOR), OUT_VECTOR = vector_width(OUT_FEATURES, VECTOR);
static constexpr int MASTER_VECTOR = smaller(OUT_VECTOR, 16 / int(sizeof(Master)));
static constexpr int DX_VECTOR = IN_FEATURES % 4 == 0 ? 4 : 1;
[[maybe_unused]] static constexpr int PARTIAL_LD = ceil_div(IN_FEATURES, 4) * 4;

// dX: a warp keeps WARP_M x WARP_K of it; warps that share a piece take turns with the steps of 16 along BLOCK_N.
static constexpr int DX_WARPS_M = BLOCK_M / WARP_M, DX_WARPS_K = BLOCK_K / WARP_K;
static constexpr int DX_SHARERS = larger(WARPS / (DX_WARPS_M * DX_WARPS_K), 1);
static constexpr int DX_FRAGMENTS_M = WARP_M / 16, DX_FRAGMENTS_K = WARP_K / 16;
static constexpr int SUM_TILE = BLOCK_M * SUM_LD;
// G: its fragments of 16x16 are dealt to the warps in runs along a row, so that a run shares one fragment of X.
static constexpr int G_FRAGMENTS = (BLOCK_K / 16) * (BLOCK_N / 16), G_PER_WARP = ceil_div(G_FRAGMENTS, WARPS);

[[maybe_unused]] static constexpr float RESIDUAL_SCALE = 2048.0f;  // 2^11: lifts what fp16 rounding left to where fp16 is normal

static_assert(BLOCK_M % WARP_M == 0 && BLOCK_K % WARP_K == 0, "warp tiles must fill the block's piece of dX");
static_assert(WARP_M % 16 == 0 && WARP_K % 16 == 0 && BLOCK_N % 16 == 0, "tiles are made of 16x16 fragments");
static_assert(!NEED_DX || WARPS % (DX_WARPS_M * DX_WARPS_K) == 0, "the warps must share out dX evenly");
static_assert(!NEED_DX || (BLOCK_N / 16) % DX_SHARERS == 0, "every sharer needs the same number of steps of 16");
static_assert(!CHUNKED || SPLIT_N == N_TILES, "a chunked batch needs one tile of W per block");
static_assert(SPLIT_N <= N_TILES, "every slice needs a tile");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");
static_assert(SKEW % 8 == 0, "WMMA's leading dimension is a multiple of 16 bytes");
static_assert(!REDUCE_CLUSTER || (NEED_DX && SPLIT_N > 1 && SPLIT_N <= 8), "a portable cluster has at most 8 blocks");

// Where a value of X is positive its gradient passes, else it is zero (the ReLU of the layer below).
__device__ __forceinline__ void finish_dx(half* dX, const half* X, int row, int col, float4 sum) {
    if (row >= BATCH || col >= IN_FEATURES) return;
    const size_t at = size_t(row) * IN_FEATURES + col;
    float v[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (DX_VECTOR == 4 || col + i < IN_FEATURES) v[i] = __half2float(X[at + i]) > 0.0f ? v[i] : 0.0f;
    store4<DX_VECTOR>(dX + at, make_float4(v[0], v[1], v[2], v[3]), IN_FEATURES - col);
}

// Update `N` neighbouring weights: read their parts from shared memory, write them to global memory.
template <int N>
__device__ __forceinline__ void update(half* W, Master* master, const half* w_old, const Master* m_old, const float* G,
                                       float rate) {
    alignas(16) half w[N];
    alignas(16) Master m[N];
    alignas(16) float g[N];
    copy_vector<N * int(sizeof(half))>(w, w_old);  // without READ_W a dummy that the fp32 master replaces
    constexpr int MASTER_STEP = smaller(N, 16 / int(sizeof(Master))), G_STEP = smaller(N, 4);
#pragma unroll
    for (int i = 0; i < N; i += MASTER_STEP) copy_vector<MASTER_STEP * int(sizeof(Master))>(m + i, m_old + i);
#pragma unroll
    for (int i = 0; i < N; i += G_STEP) copy_vector<G_STEP * int(sizeof(float))>(g + i, G + i);
#pragma unroll
    for (int i = 0; i < N; ++i) {
#if MASTER_FP32
        m[i] -= rate * g[i];
        w[i] = __float2half_rn(m[i]);
#else
        const float weight = __half2float(w[i]) + __half2float(m[i]) * (1.0f / RESIDUAL_SCALE) - rate * g[i];
        w[i] = __float2half_rn(weight);
        m[i] = __float2half_rn((weight - __half2float(w[i])) * RESIDUAL_SCALE);
#endif
    }
    // The next forward pass reads W, but nobody reads the master part before the next update: L2 should rather keep W.
    copy_vector<N * int(sizeof(half))>(W, w);
#pragma unroll
    for (int i = 0; i < N; i += MASTER_STEP) store_streaming<MASTER_STEP * int(sizeof(Master))>(master + i, m + i);
}

extern "C" __global__ void
#if REDUCE_CLUSTER
__cluster_dims__(1, SPLIT_N, 1)
#endif
__launch_bounds__(THREADS, MIN_BLOCKS)
linear_backward(const half* __restrict__ X, const half* __restrict__ dY, half* __restrict__ W, Master* __restrict__ master,
                float* __restrict__ b, half* __restrict__ dX, float rate, int settled, float* __restrict__ partial,
                unsigned* __restrict__ arrived) {
    MNT_DYNAMIC_SHARED(shared);
    unsigned char* const resident = shared;
    unsigned char* const ring = shared + RESIDENT_BYTES;
    float* const G = reinterpret_cast<float*>(ring + STAGES * STAGE_BYTES);

    const int warp = threadIdx.x / 32;
    const int in0 = blockIdx.x * BLOCK_K, slice = blockIdx.y;
    const int first_tile = slice * N_TILES / SPLIT_N, last_tile = (slice + 1) * N_TILES / SPLIT_N;
    // One step is one tile of W; or, with a chunked batch, one chunk.
    const int steps = CHUNKED ? M_CHUNKS : last_tile - first_tile;

    auto load_x = [&](half* to, int chunk) {
        load_tile<BLOCK_M, BLOCK_K, X_LD, BATCH, IN_FEATURES, IN_VECTOR, THREADS>(to, X, chunk * BLOCK_M, in0);
    };
    auto load_weights = [&](unsigned char* to, int tile) {
        if constexpr (READ_W)
            load_tile<BLOCK_K, BLOCK_N, W_LD, IN_FEATURES, OUT_FEATURES, OUT_VECTOR, THREADS>(
                reinterpret_cast<half*>(to), static_cast<const half*>(W), in0, tile * BLOCK_N);
        load_tile<BLOCK_K, BLOCK_N, W_LD, IN_FEATURES, OUT_FEATURES, MASTER_VECTOR, THREADS>(
            reinterpret_cast<Master*>(to + W_BYTES), static_cast<const Master*>(master), in0, tile * BLOCK_N);
    };
    // What a step brings besides dY: neither is written by the kernel before in a training step.
    auto load_settled = [&](int step) {
        unsigned char* const to = ring + step % STAGES * STAGE_BYTES + DY_BYTES;
        if (step < steps) {
            if constexpr (CHUNKED) {
                load_x(reinterpret_cast<half*>(to), step);
            } else {
                load_weights(to, first_tile + step);
            }
        }
    };
    auto load_dy = [&](int step) {
        const int chunk = CHUNKED ? step : 0, tile = CHUNKED ? first_tile : first_tile + step;
        if (step < steps)
            load_tile<BLOCK_M, BLOCK_N, W_LD, BATCH, OUT_FEATURES, OUT_VECTOR, THREADS>(
                reinterpret_cast<half*>(ring + step % STAGES * STAGE_BYTES), dY, chunk * BLOCK_M, tile * BLOCK_N);
        commit_copies();  // also when empty, so that the count of groups stays that of steps
    };
    auto load_step = [&](int step) {
        load_settled(step);
        load_dy(step);
    };
    auto load_resident = [&] {
        if constexpr (CHUNKED) {
            load_weights(resident, first_tile);
        } else {
            load_x(reinterpret_cast<half*>(resident), 0);
        }
    };

    wmma::fragment<wmma::accumulator, 16, 16, 16, ACCUMULATOR> dx_sums[DX_FRAGMENTS_M][DX_FRAGMENTS_K];
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> g_sums[G_PER_WARP];
    const int sharer = warp / (DX_WARPS_M * DX_WARPS_K);
    const int dx_row = warp / DX_WARPS_K % DX_WARPS_M * WARP_M, dx_col = warp % DX_WARPS_K * WARP_K;

    auto clear_dx = [&] {
#pragma unroll
        for (int m = 0; m < DX_FRAGMENTS_M; ++m)
#pragma unroll
            for (int k = 0; k < DX_FRAGMENTS_K; ++k) wmma::fill_fragment(dx_sums[m][k], ACCUMULATOR(0.0f));
    };
    auto clear_g = [&] {
#pragma unroll
        for (int i = 0; i < G_PER_WARP; ++i) wmma::fill_fragment(g_sums[i], 0.0f);
    };
    // dX += dY tile x W tile^T. W^T is W read as a column-major operand.
    auto multiply_dx = [&](const half* dy, const half* w) {
#pragma unroll
        for (int step = 0; step < BLOCK_N / (16 * DX_SHARERS); ++step) {
            const int n = (step * DX_SHARERS + sharer) * 16;
            wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a[DX_FRAGMENTS_M];
            wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> wt[DX_FRAGMENTS_K];
#pragma unroll
            for (int m = 0; m < DX_FRAGMENTS_M; ++m) wmma::load_matrix_sync(a[m], dy + (dx_row + m * 16) * W_LD + n, W_LD);
#pragma unroll
            for (int k = 0; k < DX_FRAGMENTS_K; ++k) wmma::load_matrix_sync(wt[k], w + (dx_col + k * 16) * W_LD + n, W_LD);
#pragma unroll
            for (int m = 0; m < DX_FRAGMENTS_M; ++m)
#pragma unroll
                for (int k = 0; k < DX_FRAGMENTS_K; ++k) wmma::mma_sync(dx_sums[m][k], a[m], wt[k], dx_sums[m][k]);
        }
    };
    // G += X tile^T x dY tile. X^T is X read as a column-major operand.
    auto multiply_g = [&](const half* x, const half* dy) {
#pragma unroll
        for (int i = 0; i < G_PER_WARP; ++i) {
            const int f = warp * G_PER_WARP + i, row = f / (BLOCK_N / 16) * 16, col = f % (BLOCK_N / 16) * 16;
            if (G_FRAGMENTS % WARPS == 0 || f < G_FRAGMENTS) {
#pragma unroll
                for (int m = 0; m < BLOCK_M; m += 16) {
                    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::col_major> xt;
                    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> d;
                    wmma::load_matrix_sync(xt, x + m * X_LD + row, X_LD);
                    wmma::load_matrix_sync(d, dy + m * W_LD + col, W_LD);
                    wmma::mma_sync(g_sums[i], xt, d, g_sums[i]);
                }
            }
        }
    };
    auto store_g = [&] {
#pragma unroll
        for (int i = 0; i < G_PER_WARP; ++i) {
            const int f = warp * G_PER_WARP + i, row = f / (BLOCK_N / 16) * 16, col = f % (BLOCK_N / 16) * 16;
            if (G_FRAGMENTS % WARPS == 0 || f < G_FRAGMENTS)
                wmma::store_matrix_sync(G + row * G_LD + col, g_sums[i], G_LD, wmma::mem_row_major);
        }
    };
    auto update_tile = [&](const unsigned char* weights, int tile) {
        const half* const w = reinterpret_cast<const half*>(weights);
        const Master* const m = reinterpret_cast<const Master*>(weights + W_BYTES);
        constexpr int PER_ROW = BLOCK_N / OUT_VECTOR, COUNT = BLOCK_K * PER_ROW;
#pragma unroll
        for (int i0 = 0; i0 < COUNT; i0 += THREADS) {
            const int i = i0 + int(threadIdx.x), r = i / PER_ROW, c = i % PER_ROW * OUT_VECTOR;
            const int row = in0 + r, col = tile * BLOCK_N + c;
            if (i < COUNT && row < IN_FEATURES && col < OUT_FEATURES) {
                const size_t at = size_t(row) * OUT_FEATURES + col;
                const int local = r * W_LD + c;
                update<OUT_VECTOR>(W + at, master + at, READ_W ? w + local : reinterpret_cast<const half*>(m + local),
                                   m + local, G + r * G_LD + c, rate);
            }
        }
    };
    // b: one thread per column; the blocks of the first rows do it, chunk by chunk.
    float b_gradient = 0.0f;
    auto sum_columns = [&](const half* dy) {
        if (in0 == 0 && int(threadIdx.x) < BLOCK_N)
            for (int m = 0; m < BLOCK_M; ++m) b_gradient += __half2float(dy[m * W_LD + threadIdx.x]);
    };
    auto update_b = [&](int tile) {
        const int col = tile * BLOCK_N + int(threadIdx.x);
        if (in0 == 0 && int(threadIdx.x) < BLOCK_N && col < OUT_FEATURES) b[col] -= rate * b_gradient;
        b_gradient = 0.0f;
    };
    static_assert(BLOCK_N <= THREADS, "the update of b takes one thread per column of the tile");

    // Sum what the sharers hold, then what the slices hold, and write dX for one chunk.
    auto write_dx = [&](int chunk) {
        constexpr int QUADS = BLOCK_M * BLOCK_K / 4;
        ACCUMULATOR* const tiles = reinterpret_cast<ACCUMULATOR*>(G);  // G is spent; SUM_TILE was reckoned in
#pragma unroll
        for (int m = 0; m < DX_FRAGMENTS_M; ++m)
#pragma unroll
            for (int k = 0; k < DX_FRAGMENTS_K; ++k)
                wmma::store_matrix_sync(tiles + sharer * SUM_TILE + (dx_row + m * 16) * SUM_LD + dx_col + k * 16,
                                        dx_sums[m][k], SUM_LD, wmma::mem_row_major);
        __syncthreads();
        auto block_sum = [&](int quad) {
            const int at = quad / (BLOCK_K / 4) * SUM_LD + quad % (BLOCK_K / 4) * 4;
            float4 sum = load4(tiles + at);
#pragma unroll
            for (int s = 1; s < DX_SHARERS; ++s) sum = sum + load4(tiles + s * SUM_TILE + at);
            return sum;
        };
        auto row_of = [&](int quad) { return chunk * BLOCK_M + quad / (BLOCK_K / 4); };
        auto col_of = [&](int quad) { return in0 + quad % (BLOCK_K / 4) * 4; };
        if constexpr (SPLIT_N == 1) {
            for (int quad = threadIdx.x; quad < QUADS; quad += THREADS)
                finish_dx(dX, X, row_of(quad), col_of(quad), block_sum(quad));
        } else {
#if REDUCE_CLUSTER
            float* const own = reinterpret_cast<float*>(tiles + DX_SHARERS * SUM_TILE);
            for (int quad = threadIdx.x; quad < QUADS; quad += THREADS)
                *reinterpret_cast<float4*>(own + quad * 4) = block_sum(quad);
            cluster_sync();
            for (int quad = slice * THREADS + threadIdx.x; quad < QUADS; quad += SPLIT_N * THREADS) {
                float4 sum = cluster_load(own + quad * 4, 0);
#pragma unroll
                for (int s = 1; s < SPLIT_N; ++s) sum = sum + cluster_load(own + quad * 4, s);
                finish_dx(dX, X, row_of(quad), col_of(quad), sum);
            }
            cluster_sync();  // nobody overwrites or leaves while another still reads its shared memory
#else
            for (int quad = threadIdx.x; quad < QUADS; quad += THREADS)
                if (row_of(quad) < BATCH && col_of(quad) < IN_FEATURES)
                    *reinterpret_cast<float4*>(partial + (size_t(slice) * BATCH + row_of(quad)) * PARTIAL_LD +
                                               col_of(quad)) = block_sum(quad);
#endif
        }
        __syncthreads();  // G and the tiles may be written again
    };

    clear_dx();
    clear_g();
#if OVERLAP
    if (settled) {
        load_resident();
#pragma unroll
        for (int s = 0; s < STAGES - 1; ++s) load_settled(s);
    }
    wait_for_predecessors();
    let_successors_start();
    if (!settled) load_resident();
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        if (!settled) load_settled(s);
        load_dy(s);
    }
#else
    load_resident();
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) load_step(s);
#endif
    for (int step = 0; step < steps; ++step) {
        if (STAGES == 1) {
            __syncthreads();  // the one buffer is free when all have left the step before
            load_step(step);
        }
        wait_copies<(STAGES > 1 ? STAGES - 2 : 0)>();
        __syncthreads();
        if (STAGES > 1) load_step(step + STAGES - 1);  // into the buffer of the step before, which all have left
        unsigned char* const stage = ring + step % STAGES * STAGE_BYTES;
        const half* const dy = reinterpret_cast<const half*>(stage);
        const half* const x = reinterpret_cast<const half*>(CHUNKED ? stage + DY_BYTES : resident);
        const unsigned char* const weights = CHUNKED ? resident : stage + DY_BYTES;

        multiply_g(x, dy);
        if constexpr (NEED_DX) multiply_dx(dy, reinterpret_cast<const half*>(weights));
        sum_columns(dy);
        if constexpr (CHUNKED) {
            if constexpr (NEED_DX) {
                write_dx(step);
                clear_dx();
            }
        } else {
            store_g();
            __syncthreads();
            update_tile(weights, first_tile + step);
            update_b(first_tile + step);
            clear_g();
        }
    }
    wait_copies<0>();
    __syncthreads();
    if constexpr (CHUNKED) {
        store_g();
        __syncthreads();
        update_tile(resident, first_tile);
        update_b(first_tile);
    } else if constexpr (NEED_DX) {
        write_dx(0);
    }
#if !REDUCE_CLUSTER
    if constexpr (NEED_DX && SPLIT_N > 1) {
        if (!arrives_last(arrived + blockIdx.x, SPLIT_N, reinterpret_cast<int*>(shared))) return;
        constexpr int QUADS_PER_ROW = BLOCK_K / 4;
        for (int quad = threadIdx.x; quad < BATCH * QUADS_PER_ROW; quad += THREADS) {
            const int row = quad / QUADS_PER_ROW, col = in0 + quad % QUADS_PER_ROW * 4;
            if (col >= IN_FEATURES) continue;
            float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            for (int s = 0; s < SPLIT_N; ++s)
                sum = sum + load_partial(partial + (size_t(s) * BATCH + row) * PARTIAL_LD + col);
            finish_dx(dX, X, row, col, sum);
        }
    }
#endif
}
