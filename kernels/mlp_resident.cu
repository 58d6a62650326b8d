// mlp_resident: many SGD steps of a whole MLP in one launch, the weights resident in registers
//
//   784 - H - ... - H - 10 with ReLU between the layers, mean cross-entropy, W -= lr dW, b -= lr db, `steps` times.
//
//   images (any rows, IN_FEATURES) fp16, labels uint8, order (total, BATCH) int32: rows of each step's batch.
//   weights, fp32, one after the other: W0 (IN_FEATURES, WIDTH), b0, W1 (WIDTH, WIDTH), b1, ..., W_LAYERS (WIDTH, CLASSES), b.
//
//   At batch 32 and small widths a step is a chain of latencies. So nothing but activations moves: one cooperative launch
//   of H/16 blocks; block c owns the 16 columns and the 16 rows number c of every hidden matrix, in fp32.
//
//                 columns of c                       forward   h_l[:, c]  = relu(h_{l-1} W_l[:, c] + b)     needs all of h_{l-1}
//                +--+--+--+--+                       backward  dz_{l-1}[:, c] = dz_l W_l[c, :]^T            needs all of dz_l
//         rows   |  |##|  |  |                       update    W_l[:, c] -= h_{l-1}^T dz_l[:, c]            has both
//         of c   |##|##|##|##|                                 W_l[c, :] -= h_{l-1}[:, c]^T dz_l            has both
//                |  |##|  |  |
//                +--+--+--+--+                       The cross (#) is kept twice where it overlaps its neighbours' crosses; both
//                                                    copies are updated by the same products in the same order: same bits.
//
//   The last layer and the softmax are computed by every block, so dz of the last hidden layer needs no exchange, and dz of
//   the first stays where it is made: LAYERS + max(0, LAYERS - 2) all-gathers per step.
//
//   An all-gather takes one of two ways, without a barrier between the blocks:
//     through L2 (any GPU, a cooperative launch): each 4 bytes of data travel in one 8-byte store with the number of the step
//       beside them, and the reader polls until all the numbers are this step's. Two sets of places alternate, so that nobody
//       overwrites what a slower block has not read.
//     CLUSTER (sm_90, up to 8 blocks): the blocks form a cluster, and each writes its tile into the others' shared memory by
//       st.async; a memory barrier per all-gather counts the bytes. What lies where a faster block may write already is kept
//       apart: the first activations alternate between two buffers, and every gradient has its own.
//   A wait gives up after SPIN_LIMIT turns: the launch then ends with *failed = 1 instead of hanging.
//
//   Within a block the WARPS split the depth of each product; their sums meet in shared memory. Master weights are WMMA
//   accumulator fragments; the fp16 operand is made from them through a warp's corner of shared memory.
//
// Sizes:      BATCH IN_FEATURES WIDTH LAYERS (hidden) CLASSES
// Tunables:   CLUSTER; WARPS; X_BUFFERS: 2 (the next batch arrives during the step), 1, or 0 (tile by tile, for 64 KB of shared memory)
// Parameters: exchange: (2, phases, blocks, rows * 8) words of 8 bytes, any content but the numbers of steps to come (not used
//             by CLUSTER);
//             position: steps made so far, moved by `steps`; loss[(position + t) % slots]: the mean loss of each step.
#include "common.cuh"

#ifndef BATCH
#define BATCH 32
#endif
#ifndef IN_FEATURES
#define IN_FEATURES 784
#endif
#ifndef WIDTH
#define WIDTH 32
#endif
#ifndef LAYERS
#define LAYERS 3
#endif
#ifndef CLASSES
#define CLASSES 10
#endif
#ifndef CLUSTER
#define CLUSTER 0
#endif
#ifndef WARPS
#define WARPS 8
#endif
#ifndef SPIN_LIMIT
#define SPIN_LIMIT (1u << 22)  // polls; about two seconds on a GPU
#endif
#ifndef X_BUFFERS
#define X_BUFFERS 0
#endif

using namespace mnt;

static constexpr int THREADS = 32 * WARPS;
static constexpr int BLOCKS = ceil_div(WIDTH, 16), X_TILES = ceil_div(IN_FEATURES, 16);
static constexpr int ROW_TILES = ceil_div(BATCH, 16), ROWS = ROW_TILES * 16;
static constexpr int X_PER_WARP = ceil_div(X_TILES, WARPS), H_PER_WARP = ceil_div(BLOCKS, WARPS);
static constexpr int HIDDEN = LAYERS - 1;                    // matrices between hidden layers
static constexpr int PHASES = LAYERS + larger(LAYERS - 2, 0);  // all-gathers per step
static constexpr int X_LD = X_TILES * 16 + 8, TILE_LD = 24;
// Activations and gradients lie tile by tile: the 16 columns of a block together, rows H_LD apart. A warp's part of a tile is
// contiguous at 16, which st.async wants; 24 avoids bank conflicts.
static constexpr int H_LD = CLUSTER ? 16 : 24, H_TILE = ROWS * H_LD;
static constexpr int H_BUFFERS = LAYERS + (CLUSTER ? 1 : 0), DZ_BUFFERS = CLUSTER ? larger(LAYERS - 1, 1) : 2;
static constexpr int PAIRS = ROWS * 8;  // of neighbouring columns in a block's 16 columns
static constexpr int X_VECTOR = vector_width(IN_FEATURES, 8);

// Shared memory, in bytes.
static constexpr int X_BYTES = ROWS * X_LD * 2, H_BYTES = BLOCKS * H_TILE * 2, NARROW_BYTES = ROWS * TILE_LD * 2;
static constexpr int SUMS_BYTES = ROWS * 16 * 4;  // of one warp
static constexpr int AT_H = X_BUFFERS * X_BYTES, AT_DZ = AT_H + H_BUFFERS * H_BYTES, AT_SUMS = AT_DZ + DZ_BUFFERS * H_BYTES;
static constexpr int AT_CORNER = AT_SUMS + WARPS * SUMS_BYTES, CORNER_BYTES = larger(16, X_BUFFERS ? 16 : ROWS) * TILE_LD * 2;
static constexpr int AT_D = AT_CORNER + WARPS * CORNER_BYTES, AT_Z = AT_D + NARROW_BYTES, AT_B = AT_Z + NARROW_BYTES;
static constexpr int AT_LOSS = AT_B + (LAYERS + 1) * 16 * 4, AT_LABELS = AT_LOSS + ROWS * 4;
[[maybe_unused]] static constexpr int AT_ARRIVALS = AT_LABELS + ROWS * 4, SHARED_BYTES = AT_ARRIVALS + PHASES * 8;

static_assert(CLASSES <= 16, "the logits take one tile of 16 columns");
static_assert(LAYERS >= 1 && WARPS >= 1 && WARPS <= 32, "at least one hidden layer, at most 1024 threads");
static_assert(!CLUSTER || BLOCKS <= 8, "a portable cluster has at most 8 blocks");
static_assert(SUMS_BYTES >= 16 * 16 * 4, "a warp's sums also stage its 16x16 fp32 tiles");

using Sums = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;
using HalfSums = wmma::fragment<wmma::accumulator, 16, 16, 16, half>;
using Rows = wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major>;
using Transposed = wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::col_major>;
using Operand = wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major>;
using OperandT = wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major>;

__host__ __device__ constexpr int in_of(int layer) { return layer == 0 ? IN_FEATURES : WIDTH; }
__host__ __device__ constexpr int out_of(int layer) { return layer == LAYERS ? CLASSES : WIDTH; }
// Where W and b of a layer start in `weights`.
__host__ __device__ constexpr size_t at_w(int layer) {
    return layer == 0 ? 0 : at_w(layer - 1) + size_t(in_of(layer - 1) + 1) * out_of(layer - 1);
}
__host__ __device__ constexpr size_t at_b(int layer) { return at_w(layer) + size_t(in_of(layer)) * out_of(layer); }

// ---- The exchange -----------------------------------------------------------------------------------------------------

__device__ __forceinline__ void put_word(uint2* place, unsigned data, unsigned number) {
#ifdef __MNT_EMULATION__
    // A vector is one access on a GPU, but several on a CPU: here data and number must not come apart.
    atomicExch(reinterpret_cast<unsigned long long*>(place), (static_cast<unsigned long long>(number) << 32) | data);
#else
    asm volatile("st.volatile.global.v2.u32 [%0], {%1, %2};" ::"l"(place), "r"(data), "r"(number) : "memory");
#endif
}

__device__ __forceinline__ uint4 get_words(const uint4* place) {
#ifdef __MNT_EMULATION__
    const unsigned long long* const words = reinterpret_cast<const unsigned long long*>(place);
    const unsigned long long a = __ldcg(words), b = __ldcg(words + 1);  // give the other blocks a turn
    return make_uint4(unsigned(a), unsigned(a >> 32), unsigned(b), unsigned(b >> 32));
#else
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(place)
                 : "memory");
    return v;
#endif
}

__device__ __forceinline__ unsigned bits_of(half2 v) { return *reinterpret_cast<const unsigned*>(&v); }

// ---- Tiles ------------------------------------------------------------------------------------------------------------

// fp32 master -> fp16 in the warp's corner, ready to be loaded as an operand; sync_corner() before the next use of it.
__device__ __forceinline__ void to_corner(half* corner, const Sums& master) {
    HalfSums rounded;
#pragma unroll
    for (int i = 0; i < rounded.num_elements; ++i) rounded.x[i] = __float2half_rn(master.x[i]);
    wmma::store_matrix_sync(corner, rounded, TILE_LD, wmma::mem_row_major);
    __syncwarp();
}

__device__ __forceinline__ void descend(Sums& master, const Sums& gradient, float rate) {
#pragma unroll
    for (int i = 0; i < master.num_elements; ++i) master.x[i] -= rate * gradient.x[i];
}

// A 16x16 tile of a row-major fp32 matrix from and to global memory, with its tails, through `stage` (fp32, 16x16). Past L1:
// a block's last writes meet other blocks' first reads, with only the exchange between them.
__device__ __forceinline__ void load_master(Sums& master, float* stage, const float* matrix, int row, int col, int rows, int cols) {
    __syncwarp();
    for (int i = threadIdx.x % 32; i < 256; i += 32) {
        const int r = row + i / 16, c = col + i % 16;
        stage[i] = r < rows && c < cols ? __ldcg(matrix + size_t(r) * cols + c) : 0.0f;
    }
    __syncwarp();
    wmma::load_matrix_sync(master, stage, 16, wmma::mem_row_major);
}

__device__ __forceinline__ void store_master(const Sums& master, float* stage, float* matrix, int row, int col, int rows, int cols) {
    __syncwarp();
    wmma::store_matrix_sync(stage, master, 16, wmma::mem_row_major);
    __syncwarp();
    for (int i = threadIdx.x % 32; i < 256; i += 32) {
        const int r = row + i / 16, c = col + i % 16;
        if (r < rows && c < cols) __stcg(matrix + size_t(r) * cols + c, stage[i]);
    }
}

#if CLUSTER && defined(MNT_HAS_CLUSTERS)
__device__ __forceinline__ unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ unsigned address_in(unsigned own, unsigned rank) {
    unsigned remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(own), "r"(rank));
    return remote;
}

// One turn of waiting for the phase `parity` of a memory barrier.
__device__ __forceinline__ bool has_arrived(unsigned barrier, unsigned parity) {
    unsigned done;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done != 0;
}
#endif

extern "C" __global__ void
#if CLUSTER
__cluster_dims__(BLOCKS, 1, 1)
#endif
__launch_bounds__(THREADS, 1)
mlp_resident(const half* __restrict__ images, const unsigned char* __restrict__ labels, const int* __restrict__ order,
             int* position, int total, int steps, float* weights, float rate, float* __restrict__ loss, int slots,
             uint2* exchange, int* failed) {
    MNT_DYNAMIC_SHARED(shared);
    half* const x_buffers = reinterpret_cast<half*>(shared);
    half* const activations = reinterpret_cast<half*>(shared + AT_H);
    half* const gradients = reinterpret_cast<half*>(shared + AT_DZ);
    float* const sums = reinterpret_cast<float*>(shared + AT_SUMS);
    half* const d = reinterpret_cast<half*>(shared + AT_D);    // gradient of the logits
    half* const z = reinterpret_cast<half*>(shared + AT_Z);    // own columns of the first layer's gradient
    float* const bias = reinterpret_cast<float*>(shared + AT_B);
    float* const row_loss = reinterpret_cast<float*>(shared + AT_LOSS);
    int* const label_of = reinterpret_cast<int*>(shared + AT_LABELS);

    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, block = blockIdx.x, own = block * 16;
    half* const corner = reinterpret_cast<half*>(shared + AT_CORNER + warp * CORNER_BYTES);
    float* const mine = sums + warp * (ROWS * 16);
    const int done = __ldcg(position);
    bool late = false;

    // The masters that this warp keeps: its tiles along the depth of each product.
    Sums first[X_PER_WARP], columns[larger(HIDDEN, 1)][H_PER_WARP], rows[larger(HIDDEN, 1)][H_PER_WARP], last[H_PER_WARP];
    auto x_tile = [&](int j) { return warp * X_PER_WARP + j; };
    auto h_tile = [&](int j) { return warp * H_PER_WARP + j; };
#pragma unroll
    for (int j = 0; j < X_PER_WARP; ++j)
        load_master(first[j], mine, weights + at_w(0), x_tile(j) * 16, own, IN_FEATURES, WIDTH);
#pragma unroll
    for (int j = 0; j < H_PER_WARP; ++j) {
#pragma unroll
        for (int l = 0; l < HIDDEN; ++l) {
            load_master(columns[l][j], mine, weights + at_w(l + 1), h_tile(j) * 16, own, WIDTH, WIDTH);
            load_master(rows[l][j], mine, weights + at_w(l + 1), own, h_tile(j) * 16, WIDTH, WIDTH);
        }
        load_master(last[j], mine, weights + at_w(LAYERS), h_tile(j) * 16, 0, WIDTH, CLASSES);
    }
    for (int i = tid; i < (LAYERS + 1) * 16; i += THREADS) {
        const int l = i / 16, c = l == LAYERS ? i % 16 : own + i % 16;
        bias[i] = c < out_of(l) ? __ldcg(weights + at_b(l) + c) : 0.0f;
    }

    auto source_of = [&](int t, int row) { return order[size_t((done + t) % total) * BATCH + row]; };
    // The whole batch of step t into its buffer.
    auto fetch_x = [&](int t) {
        if constexpr (X_BUFFERS > 0) {
            constexpr int PER_ROW = X_TILES * 16 / X_VECTOR;
            half* const to = x_buffers + t % larger(X_BUFFERS, 1) * (ROWS * X_LD);
            for (int i = tid; i < ROWS * PER_ROW; i += THREADS) {
                const int row = i / PER_ROW, col = i % PER_ROW * X_VECTOR;
                if (row < BATCH && col < IN_FEATURES) {
                    copy_async<X_VECTOR * 2>(to + row * X_LD + col, images + size_t(source_of(t, row)) * IN_FEATURES + col);
                } else {
                    zero_vector<X_VECTOR * 2>(to + row * X_LD + col);
                }
            }
            commit_copies();
        }
    };
    // Tile k of the batch of step t: from the buffer, or fetched into the corner.
    auto x_at = [&](int t, int k, int& ld) -> const half* {
        if constexpr (X_BUFFERS > 0) {
            ld = X_LD;
            return x_buffers + t % larger(X_BUFFERS, 1) * (ROWS * X_LD) + k * 16;
        } else {
            ld = TILE_LD;
            __syncwarp();
            for (int i = lane; i < ROWS * 16 / X_VECTOR; i += 32) {
                const int row = i / (16 / X_VECTOR), col = i % (16 / X_VECTOR) * X_VECTOR;
                half* const to = corner + row * TILE_LD + col;
                if (row < BATCH && k * 16 + col < IN_FEATURES) {
                    copy_vector<X_VECTOR * 2>(to, images + size_t(source_of(t, row)) * IN_FEATURES + k * 16 + col);
                } else {
                    zero_vector<X_VECTOR * 2>(to);
                }
            }
            __syncwarp();
            return corner;
        }
    };

    Sums partial[ROW_TILES];
    auto clear_partial = [&] {
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) wmma::fill_fragment(partial[m], 0.0f);
    };
    auto accumulate = [&](const half* a, int ld, const auto& operand) {
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
            Rows part;
            wmma::load_matrix_sync(part, a + m * 16 * ld, ld);
            wmma::mma_sync(partial[m], part, operand, partial[m]);
        }
    };
    // partial += a[:, tiles of this warp] x masters (or their transposes)
    auto multiply = [&](const half* a, const Sums(&masters)[H_PER_WARP], auto operand) {
#pragma unroll
        for (int j = 0; j < H_PER_WARP; ++j)
            if (h_tile(j) < BLOCKS) {
                to_corner(corner, masters[j]);
                wmma::load_matrix_sync(operand, corner, TILE_LD);
                __syncwarp();
                accumulate(a + h_tile(j) * H_TILE, H_LD, operand);
            }
    };
    auto store_partial = [&] {
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m)
            wmma::store_matrix_sync(mine + m * 256, partial[m], 16, wmma::mem_row_major);
        __syncthreads();
    };
    // Two neighbouring columns of the sum over the warps.
    auto pair_sum = [&](int i) {
        float2 s = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float2 v = reinterpret_cast<const float2*>(sums + w * (ROWS * 16))[i];
            s.x += v.x;
            s.y += v.y;
        }
        return s;
    };
    // master -= rate a^T dz for this warp's tiles; the same products in the same order wherever a weight is kept twice.
    auto gradient = [&](const half* a, int a_ld, const half* b, int b_ld) {
        Sums g;
        wmma::fill_fragment(g, 0.0f);
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
            Transposed at;
            Operand operand;
            wmma::load_matrix_sync(at, a + m * 16 * a_ld, a_ld);
            wmma::load_matrix_sync(operand, b + m * 16 * b_ld, b_ld);
            wmma::mma_sync(g, at, operand, g);
        }
        return g;
    };
    auto descend_bias = [&](int layer, const half* b, int ld) {
        if (tid < 16) {
            float sum = 0.0f;
            for (int row = 0; row < ROWS; ++row) sum += __half2float(b[row * ld + tid]);
            bias[layer * 16 + tid] -= rate * sum;
        }
    };
    [[maybe_unused]] auto places = [&](int t, int phase) { return exchange + size_t((t & 1) * PHASES + phase) * BLOCKS * PAIRS; };
    // Pair i of this block's tile to all blocks, whose buffer is `to`.
    auto send = [&](int t, int phase, int i, half2 v, half* to) {
#if CLUSTER && defined(MNT_HAS_CLUSTERS)
        const unsigned arrivals = shared_address(shared + AT_ARRIVALS + phase * 8);
        if (i == 0)
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(arrivals), "r"(BLOCKS * PAIRS * 4) : "memory");
        const unsigned place = shared_address(to + block * H_TILE + i / 8 * H_LD + i % 8 * 2);
#pragma unroll
        for (int k = 0; k < BLOCKS; ++k) {
            const unsigned rank = (block + k) % BLOCKS;  // not all to the same block at once
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(address_in(place, rank)),
                         "r"(bits_of(v)), "r"(address_in(arrivals, rank))
                         : "memory");
        }
#else
        put_word(places(t, phase) + block * PAIRS + i, bits_of(v), unsigned(done + t + 1));
#endif
    };
    // All blocks' columns of this phase into `to`. False where a block did not answer: then all threads leave.
    auto receive = [&](int t, int phase, half* to) {
#if CLUSTER && defined(MNT_HAS_CLUSTERS)
        const unsigned arrivals = shared_address(shared + AT_ARRIVALS + phase * 8);
        for (unsigned spins = 0; !late && !has_arrived(arrivals, t & 1); ++spins) late = spins > SPIN_LIMIT;
        return __syncthreads_or(late) == 0;
#else
        constexpr int COUNT = BLOCKS * PAIRS / 2, TURNS = ceil_div(COUNT, THREADS), AT_ONCE = smaller(TURNS, 4);
        const uint4* const from = reinterpret_cast<const uint4*>(places(t, phase));
        const unsigned number = unsigned(done + t + 1);
        for (int first_turn = 0; first_turn < TURNS; first_turn += AT_ONCE) {
            uint4 v[AT_ONCE];
            bool all = false;
            for (unsigned spins = 0; !all && !late; ++spins) {
                all = true;
#pragma unroll
                for (int k = 0; k < AT_ONCE; ++k) {
                    const int i = (first_turn + k) * THREADS + tid;
                    if (i < COUNT) v[k] = get_words(from + i);
                }
#pragma unroll
                for (int k = 0; k < AT_ONCE; ++k)
                    if ((first_turn + k) * THREADS + tid < COUNT) all = all && v[k].y == number && v[k].w == number;
                late = spins > SPIN_LIMIT;
            }
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k) {
                const int i = (first_turn + k) * THREADS + tid, pair = i % (PAIRS / 2) * 2;
                if (i < COUNT)
                    *reinterpret_cast<uint2*>(to + i / (PAIRS / 2) * H_TILE + pair / 8 * H_LD + pair % 8 * 2) =
                        make_uint2(v[k].x, v[k].z);
            }
        }
        return __syncthreads_or(late) == 0;
#endif
    };
    auto give_up = [&] {
        if (tid == 0) *failed = 1;
    };
    auto relu_of = [&](float2 s, int layer, int i) {
        const float a = s.x + bias[layer * 16 + i % 8 * 2], b = s.y + bias[layer * 16 + i % 8 * 2 + 1];
        // Not fmaxf, which would turn a NaN into 0 and hide it.
        return __floats2half2_rn(a < 0.0f ? 0.0f : a, b < 0.0f ? 0.0f : b);
    };
    auto masked = [&](float2 s, const half* activation) {
        return __floats2half2_rn(__half2float(activation[0]) > 0.0f ? s.x : 0.0f, __half2float(activation[1]) > 0.0f ? s.y : 0.0f);
    };

    // Activations of hidden layer l in step t. A faster block may send the first ones of step t + 1 while this one still works
    // with those of t; it cannot get further without this one's answer.
    auto h_of = [&](int t, int l) {
        const int buffer = CLUSTER && l == 0 && (t & 1) ? LAYERS : l;
        return activations + buffer * (BLOCKS * H_TILE);
    };
    auto dz_of = [&](int l) { return gradients + (CLUSTER ? l - 1 : l & 1) * (BLOCKS * H_TILE); };  // l from 1: layer 0 is `z`

#if CLUSTER && defined(MNT_HAS_CLUSTERS)
    if (tid == 0) {
        for (int phase = 0; phase < PHASES; ++phase)
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(shared + AT_ARRIVALS + phase * 8)));
        asm volatile("fence.mbarrier_init.release.cluster;");
    }
    cluster_sync();
#endif
    fetch_x(0);
    for (int t = 0; t < steps; ++t) {
        // ---- Forward
        wait_copies<0>();
        __syncthreads();
        if (X_BUFFERS == 2 && t + 1 < steps) fetch_x(t + 1);  // into the buffer of the step before, which all have left
        for (int row = tid; row < ROWS; row += THREADS) label_of[row] = row < BATCH ? labels[source_of(t, row)] : 0;
        clear_partial();
#pragma unroll
        for (int j = 0; j < X_PER_WARP; ++j)
            if (x_tile(j) < X_TILES) {
                Operand operand;
                to_corner(corner, first[j]);
                wmma::load_matrix_sync(operand, corner, TILE_LD);
                __syncwarp();
                int ld;
                const half* const x = x_at(t, x_tile(j), ld);
                accumulate(x, ld, operand);
            }
        store_partial();
        for (int i = tid; i < PAIRS; i += THREADS) send(t, 0, i, relu_of(pair_sum(i), 0, i), h_of(t, 0));
        if (!receive(t, 0, h_of(t, 0))) return give_up();
#pragma unroll
        for (int l = 1; l < LAYERS; ++l) {
            clear_partial();
            multiply(h_of(t, l - 1), columns[l - 1], Operand());
            store_partial();
            for (int i = tid; i < PAIRS; i += THREADS) send(t, l, i, relu_of(pair_sum(i), l, i), h_of(t, l));
            if (!receive(t, l, h_of(t, l))) return give_up();
        }

        // ---- Logits, loss and their gradient: in every block
        const half* const top = h_of(t, LAYERS - 1);
        clear_partial();
        multiply(top, last, Operand());
        store_partial();
        for (int i = tid; i < PAIRS; i += THREADS) {
            const int row = i / 8, c = i % 8 * 2;
            const int label = label_of[row];
            const float2 s = pair_sum(i);
            const float lowest = -3.0e38f;
            const float a = c < CLASSES ? s.x + bias[LAYERS * 16 + c] : lowest;
            const float b = c + 1 < CLASSES ? s.y + bias[LAYERS * 16 + c + 1] : lowest;
            float largest = b <= a ? a : b;
#pragma unroll
            for (int k = 4; k > 0; k /= 2) {
                const float other = __shfl_xor_sync(0xffffffffu, largest, k);
                largest = other <= largest ? largest : other;
            }
            const float ea = c < CLASSES ? __expf(a - largest) : 0.0f, eb = c + 1 < CLASSES ? __expf(b - largest) : 0.0f;
            float sum = ea + eb;
#pragma unroll
            for (int k = 4; k > 0; k /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, k);
            const float ga = ea / sum - (c == label ? 1.0f : 0.0f), gb = eb / sum - (c + 1 == label ? 1.0f : 0.0f);
            const half2 g = row < BATCH ? __floats2half2_rn(ga, gb) : __floats2half2_rn(0.0f, 0.0f);
            *reinterpret_cast<unsigned*>(d + row * TILE_LD + c) = bits_of(g);
            if (c == (label & ~1)) row_loss[row] = row < BATCH ? __logf(sum) + largest - (label & 1 ? b : a) : 0.0f;
        }
        __syncthreads();
        if (block == 0 && warp == 0) {
            float sum = 0.0f;
            for (int row = lane; row < ROWS; row += 32) sum += row_loss[row];
#pragma unroll
            for (int k = 16; k > 0; k /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, k);
            if (lane == 0) loss[(done + t) % slots] = sum / BATCH;
        }

        // ---- Backward: dz of the last hidden layer, all of it, in every block; then the last layer's update
        half* const top_gradient = dz_of(larger(HIDDEN, 1));
#pragma unroll
        for (int j = 0; j < H_PER_WARP; ++j)
            if (h_tile(j) < BLOCKS) {
                OperandT operand;
                to_corner(corner, last[j]);
                wmma::load_matrix_sync(operand, corner, TILE_LD);
                __syncwarp();
                clear_partial();
                accumulate(d, TILE_LD, operand);
#pragma unroll
                for (int m = 0; m < ROW_TILES; ++m)
                    wmma::store_matrix_sync(mine + m * 256, partial[m], 16, wmma::mem_row_major);
                __syncwarp();
                for (int i = lane; i < PAIRS; i += 32) {
                    const int at = h_tile(j) * H_TILE + i / 8 * H_LD + i % 8 * 2;
                    *reinterpret_cast<unsigned*>(top_gradient + at) = bits_of(masked(reinterpret_cast<const float2*>(mine)[i], top + at));
                }
                __syncwarp();
                descend(last[j], gradient(top + h_tile(j) * H_TILE, H_LD, d, TILE_LD), rate);
            }
        descend_bias(LAYERS, d, TILE_LD);
        __syncthreads();

#pragma unroll
        for (int l = HIDDEN; l > 0; --l) {  // the matrix between hidden layers l and l + 1
            const half* const below = h_of(t, l - 1);
            const half* const gradient_now = dz_of(l);
            half* const gradient_next = dz_of(larger(l - 1, 1));  // not used by the last one
            const int phase = LAYERS + (HIDDEN - l);
            clear_partial();
            multiply(gradient_now, rows[l - 1], OperandT());
            store_partial();
            for (int i = tid; i < PAIRS; i += THREADS) {
                const half2 v = masked(pair_sum(i), below + block * H_TILE + i / 8 * H_LD + i % 8 * 2);
                if (l > 1) {
                    send(t, phase, i, v, gradient_next);
                } else {
                    *reinterpret_cast<unsigned*>(z + i / 8 * TILE_LD + i % 8 * 2) = bits_of(v);
                }
            }
            // While the others' columns are under way.
#pragma unroll
            for (int j = 0; j < H_PER_WARP; ++j)
                if (h_tile(j) < BLOCKS) {
                    const int k = h_tile(j) * H_TILE, here = block * H_TILE;
                    descend(columns[l - 1][j], gradient(below + k, H_LD, gradient_now + here, H_LD), rate);
                    descend(rows[l - 1][j], gradient(below + here, H_LD, gradient_now + k, H_LD), rate);
                }
            descend_bias(l, gradient_now + block * H_TILE, H_LD);
            if (l > 1) {
                if (!receive(t, phase, gradient_next)) return give_up();
            } else {
                __syncthreads();
            }
        }

        // ---- The first layer
        const half* const z1 = HIDDEN > 0 ? z : top_gradient + block * H_TILE;
        constexpr int Z_LD = HIDDEN > 0 ? TILE_LD : H_LD;
#pragma unroll
        for (int j = 0; j < X_PER_WARP; ++j)
            if (x_tile(j) < X_TILES) {
                int ld;
                const half* const x = x_at(t, x_tile(j), ld);
                descend(first[j], gradient(x, ld, z1, Z_LD), rate);
            }
        descend_bias(0, z1, Z_LD);
        if (X_BUFFERS == 1 && t + 1 < steps) {
            __syncthreads();
            fetch_x(t + 1);
        }
    }

    __syncthreads();
#pragma unroll
    for (int j = 0; j < X_PER_WARP; ++j)
        store_master(first[j], mine, weights + at_w(0), x_tile(j) * 16, own, IN_FEATURES, WIDTH);
#pragma unroll
    for (int j = 0; j < H_PER_WARP; ++j) {
#pragma unroll
        for (int l = 0; l < HIDDEN; ++l)
            store_master(columns[l][j], mine, weights + at_w(l + 1), h_tile(j) * 16, own, WIDTH, WIDTH);
        if (block == 0) store_master(last[j], mine, weights + at_w(LAYERS), h_tile(j) * 16, 0, WIDTH, CLASSES);
    }
    for (int i = tid; i < (LAYERS + 1) * 16; i += THREADS) {
        const int l = i / 16, c = l == LAYERS ? i % 16 : own + i % 16;
        if (c < out_of(l) && (l < LAYERS || block == 0)) __stcg(weights + at_b(l) + c, bias[i]);
    }
    if (block == 0 && tid == 0) __stcg(position, done + steps);
}
