// mlp_resident: many SGD steps of a whole MLP in one launch, the weights resident in registers
//
//   784 - H - ... - H - 10 (or other sizes) with ReLU between the layers, mean cross-entropy, W -= lr dW, b -= lr db, `steps` times.
//
//   images (any rows, IN_FEATURES) fp16, labels uint8, order (total, BATCH) int32: rows of each step's batch.
//   weights, fp32, one after the other: W0 (IN_FEATURES, WIDTH), b0, W1 (WIDTH, WIDTH), b1, ..., W_LAYERS (WIDTH, CLASSES), b.
//
//   At batch 32 and small widths a step is a chain of latencies. So nothing but activations moves: one launch of H/16 blocks
//   that are all on the GPU at once; block c owns the 16 columns and the 16 rows number c of every hidden matrix, in fp32.
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
//     CLUSTER (sm_90): the blocks form a cluster, and each writes its tile into the others' shared memory by st.async; a
//       memory barrier per all-gather counts the bytes. What lies where a faster block may write already is kept apart: the
//       first activations alternate between two buffers.
//   A thread that waits longer than SPIN_LIMIT waits no more in this launch, which then ends with *failed = 1 and no result.
//
// Order of a step. What another block waits for comes first; an update is made while an exchange is under way (window):
//
//   sum the first layer's parts, send h_0 | update of W_1 from the step before, next batch | product, send h_1 | ...
//   | product, send h_{L-1} | logits, softmax, dz_{L-1}, product: send dz_{L-2} | updates of W_L and W_{L-1} | ...
//   | product: dz_0 | first layer: update with this step's batch and product with the next one's, tile by tile
//
// Within a block:
//   - The tensor-core products run on registers in PTX's documented layouts (warp_matrix.cuh). Activations lie as their words
//     leave a product: tile by tile (16 columns of a block), a tile by 8x8 matrices, 128 bytes each: a warp sends 128
//     contiguous bytes, and ldmatrix meets no bank conflict.
//   - Masters are fp32 sums of such products, 16x16 a tile: row g (and g + 8) of a lane is a column of the operand, so packing
//     them to fp16 makes the operand. The first layer's tiles are used where they are kept: WARPS share its depth, and their
//     sums meet in shared memory. The operands of the others are written to shared memory when they change, and read into
//     registers before the activations arrive: SPLIT_K groups of warps share the depth of a product, each warp making 16x8.
//   - Logits and softmax need no exchange between warps: a warp makes 16 whole rows, twice where there are warps for it; each
//     copy then makes its part of the columns of dz_{L-1}, as an operand in registers.
//
// Sizes:      BATCH IN_FEATURES WIDTH LAYERS (hidden) CLASSES
// Tunables:   CLUSTER; WARPS; SPLIT_K; X_BUFFERS: 2 (the next batch arrives during the step) or 0 (a lane fetches what it
//             needs, for 64 KB of shared memory)
// Parameters: exchange: (2, phases, blocks, rows * 8) words of 8 bytes, any content but the numbers of steps to come (not used
//             by CLUSTER);
//             position: steps made so far, moved by `steps`; loss[(position + t) % slots]: the mean loss of each step.
// PROFILE:    cycles per step of block 0's first thread in each part of a step are left in `loss` instead (see MARK; the parts'
//             names are PARTS in mlp_resident.py).
#include "warp_matrix.cuh"

#ifndef BATCH
#define BATCH 32
#endif
#ifndef IN_FEATURES
#define IN_FEATURES 512
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
#ifndef SPLIT_K
#define SPLIT_K 1
#endif
#ifndef X_BUFFERS
#define X_BUFFERS 2
#endif
#ifndef SPIN_LIMIT
#define SPIN_LIMIT (1u << 22)  // polls of L2; about two seconds on a GPU
#endif
#ifndef CYCLE_LIMIT
#define CYCLE_LIMIT 4000000000ll  // of a wait for a memory barrier, whose polls may each take long
#endif
#ifndef PROFILE
#define PROFILE 0
#endif

using namespace mnt;

static constexpr int THREADS = 32 * WARPS;
static constexpr int BLOCKS = ceil_div(WIDTH, 16), X_TILES = ceil_div(IN_FEATURES, 16);
static constexpr int ROW_TILES = ceil_div(BATCH, 16), ROWS = ROW_TILES * 16;
static constexpr int X_PER_WARP = ceil_div(X_TILES, WARPS), X_WARPS = ceil_div(X_TILES, X_PER_WARP);
static constexpr int H_PER_WARP = ceil_div(BLOCKS, WARPS);
static constexpr int HIDDEN = LAYERS - 1;                    // matrices between hidden layers
static constexpr int PHASES = LAYERS + larger(LAYERS - 2, 0);  // all-gathers per step
// With one hidden layer a block may send again before another has received: two barriers take turns.
static constexpr int BARRIER_SETS = LAYERS == 1 ? 2 : 1;
static constexpr bool DEFERS = LAYERS >= 3;                  // the update of W_1 waits for the next step's first window
static constexpr int X_LD = X_TILES * 16 + 8;                // rows 8 halves apart modulo 64: no bank conflicts
static constexpr int TILE = ROWS * 16, WORDS = TILE / 2;     // 16 columns of activations: halves, and pairs of columns
static constexpr int X_VECTOR = vector_width(IN_FEATURES, 8);

// Who makes what of a hidden product: 16x8 units, GROUPS warps at a time, SPLIT_K of them for each.
static constexpr int UNITS = 2 * ROW_TILES, GROUPS = WARPS / SPLIT_K, UNITS_PER_WARP = ceil_div(UNITS, GROUPS);
static constexpr int DEPTH = ceil_div(BLOCKS, SPLIT_K);      // tiles of a unit
// And of the top: logits, softmax and the last hidden layer's gradient.
static constexpr int COPIES = WARPS >= 2 * ROW_TILES && BLOCKS > 1 ? 2 : 1, TOP_WARPS = COPIES * ROW_TILES;
static constexpr int TOP_TILES = ceil_div(BLOCKS, COPIES);
// Operands that the top has in registers before it needs them: as many as there is room for beside the masters.
static constexpr bool ROOMY = WARPS <= 8 && BLOCKS <= 8;
static constexpr int AHEAD = ROOMY ? BLOCKS : smaller(BLOCKS, 2);

// Shared memory, in bytes.
static constexpr int X_BYTES = ROWS * X_LD * 2, H_BYTES = BLOCKS * TILE * 2, OPERAND_BYTES = BLOCKS * 512;
static constexpr int H_BUFFERS = LAYERS + (CLUSTER ? 1 : 0), Z_BUFFERS = larger(LAYERS - 2, 0), OPERANDS = 2 * HIDDEN + 1;
static constexpr int SUMS_BYTES = X_WARPS * WORDS * 8, PARTS_BYTES = larger(SPLIT_K > 1 ? SPLIT_K : 0, COPIES > 1) * WORDS * 8;
// The first layer's sums may lie where the last activations will: those come only after the sums have been used.
static constexpr bool SUMS_IN_TOP = LAYERS >= 2 && SUMS_BYTES <= H_BYTES;
static constexpr int AT_H = X_BUFFERS * X_BYTES, AT_Z = AT_H + H_BUFFERS * H_BYTES;
static constexpr int AT_OPERANDS = AT_Z + Z_BUFFERS * H_BYTES, AT_PARTS = AT_OPERANDS + OPERANDS * OPERAND_BYTES;
static constexpr int AT_D = AT_PARTS + PARTS_BYTES, AT_Z0 = AT_D + TILE * 2, AT_BIAS = AT_Z0 + TILE * 2;
static constexpr int AT_LOSS = AT_BIAS + (LAYERS + 1) * 64, AT_LABELS = AT_LOSS + ROWS * 4, AT_SOURCES = AT_LABELS + ROWS * 8;
static constexpr int AT_BARRIERS = AT_SOURCES + ROWS * 16, AT_SUMS = SUMS_IN_TOP ? AT_H + (LAYERS - 1) * H_BYTES : AT_BARRIERS + PHASES * BARRIER_SETS * 8;
[[maybe_unused]] static constexpr int SHARED_BYTES = AT_BARRIERS + PHASES * BARRIER_SETS * 8 + (SUMS_IN_TOP ? 0 : SUMS_BYTES);

#ifdef EXPECTED_SHARED_BYTES
static_assert(SHARED_BYTES == EXPECTED_SHARED_BYTES, "the launch must ask for exactly what is laid out here");
#endif
static_assert(CLASSES <= 16, "the logits take one tile of 16 columns");
static_assert(LAYERS >= 1 && WARPS >= 1 && WARPS <= 32, "at least one hidden layer, at most 1024 threads");
static_assert(!CLUSTER || BLOCKS <= 16, "a cluster has at most 16 blocks");
static_assert(X_BUFFERS == 0 || X_BUFFERS == 2, "the next batch needs a buffer of its own");
static_assert(WARPS % SPLIT_K == 0 && GROUPS % 2 == 0 && GROUPS <= 16, "a group's units share their columns");
static_assert(SPLIT_K == 1 || GROUPS <= 15, "a named barrier for each group");
static_assert(ROW_TILES <= smaller(WARPS, 15), "a warp takes at most one tile of rows, and pairs meet at named barriers");

__host__ __device__ constexpr int in_of(int layer) { return layer == 0 ? IN_FEATURES : WIDTH; }
__host__ __device__ constexpr int out_of(int layer) { return layer == LAYERS ? CLASSES : WIDTH; }
// Where W and b of a layer start in `weights`.
__host__ __device__ constexpr size_t at_w(int layer) {
    return layer == 0 ? 0 : size_t(IN_FEATURES + 1) * WIDTH + size_t(layer - 1) * (WIDTH + 1) * WIDTH;
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

#if CLUSTER && defined(MNT_HAS_CLUSTERS)
__device__ __forceinline__ unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ unsigned address_in(unsigned own, unsigned rank) {
    unsigned remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(own), "r"(rank));
    return remote;
}

// One turn of waiting for the phase `parity` of a memory barrier. Without .acquire.cluster, which would empty L1 each time:
// what arrives here is shared memory, and its own barrier counts it.
__device__ __forceinline__ bool has_arrived(unsigned barrier, unsigned parity) {
    unsigned done;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done != 0;
}

// False where the phase did not come within CYCLE_LIMIT.
__device__ __forceinline__ bool await(unsigned barrier, unsigned parity) {
    if (has_arrived(barrier, parity)) return true;
    const long long since = clock64();
    while (!has_arrived(barrier, parity))
        if (clock64() - since > CYCLE_LIMIT) return false;
    return true;
}

__device__ __forceinline__ void expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
#endif

// ---- Tiles ------------------------------------------------------------------------------------------------------------

template <bool Value> struct Choice { static constexpr bool value = Value; };

// A 16x16 master: element f * 4 + c is sum c of the product that makes its columns 8 f and on.
using Master = float[8];

__device__ __forceinline__ int row_in_master(int i) { return int(threadIdx.x % 32 / 4) + i / 2 % 2 * 8; }
__device__ __forceinline__ int col_in_master(int i) { return int(threadIdx.x % 4 * 2) + i / 4 * 8 + i % 2; }

// The tile whose first element is `matrix` (row, col), or its transpose. Past L1: a block's last writes meet other blocks'
// first reads, with only the exchange between them.
template <bool Transposed>
__device__ __forceinline__ void load_master(Master& master, const float* matrix, int row, int col, int rows, int cols) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int r = row + (Transposed ? col_in_master(i) : row_in_master(i));
        const int c = col + (Transposed ? row_in_master(i) : col_in_master(i));
        master[i] = r < rows && c < cols ? __ldcg(matrix + size_t(r) * cols + c) : 0.0f;
    }
}

__device__ __forceinline__ void store_transposed(const Master& master, float* matrix, int row, int col, int rows, int cols) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int r = row + col_in_master(i), c = col + row_in_master(i);
        if (r < rows && c < cols) __stcg(matrix + size_t(r) * cols + c, master[i]);
    }
}

// The operand of which the master is the transpose: for its columns 8 n and on.
__device__ __forceinline__ uint2 operand_of(const Master& master, int n) {
    return make_uint2(pack(master[2 * n], master[2 * n + 1]), pack(master[4 + 2 * n], master[5 + 2 * n]));
}

// Word of a tile that holds row 8 * eighth + lane / 4, columns 8 n + lane % 4 * 2 and the next.
__device__ __forceinline__ int word_at(int n, int eighth) { return (n * (ROWS / 8) + eighth) * 32 + int(threadIdx.x % 32); }

__device__ __forceinline__ void clear(float* sums, int count) {
    for (int i = 0; i < count; ++i) sums[i] = 0.0f;
}

__device__ __forceinline__ float2 relu(float2 s) {
    // Not fmaxf, which would turn a NaN into 0 and hide it.
    return make_float2(s.x < 0.0f ? 0.0f : s.x, s.y < 0.0f ? 0.0f : s.y);
}

#if PROFILE
// Adds the cycles since the last mark to part i of the step.
#define MARK(i)                         \
    {                                   \
        const long long now = clock64(); \
        cycles[i] += now - marked;      \
        marked = now;                   \
    }
#else
#define MARK(i)
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
    uint2* const operands = reinterpret_cast<uint2*>(shared + AT_OPERANDS);
    float2* const parts = reinterpret_cast<float2*>(shared + AT_PARTS);  // sums of warps that share a unit
    float2* const sums = reinterpret_cast<float2*>(shared + AT_SUMS);    // the first layer's, a tile per warp
    half* const d = reinterpret_cast<half*>(shared + AT_D);              // gradient of the logits
    half* const z0 = reinterpret_cast<half*>(shared + AT_Z0);            // own columns of the first layer's gradient
    float* const bias = reinterpret_cast<float*>(shared + AT_BIAS);
    float* const row_loss = reinterpret_cast<float*>(shared + AT_LOSS);
    int* const label_of = reinterpret_cast<int*>(shared + AT_LABELS);    // of two steps
    int* const source_of = reinterpret_cast<int*>(shared + AT_SOURCES);  // rows of `images`, of four steps

    const int tid = threadIdx.x, warp = int(threadIdx.x / 32), lane = int(threadIdx.x % 32), block = blockIdx.x, own = block * 16;
    const int group = warp % GROUPS, part = SPLIT_K == 1 ? 0 : warp / GROUPS;  // its part of the depth of that group's units
    const int n_own = group % 2;                            // its units' columns are 8 n_own and on
    [[maybe_unused]] const bool clerk = tid == THREADS - 32;                 // a thread whose warp has least to do on the critical path
    const int done = __ldcg(position);
    bool late = false;
#if PROFILE
    long long cycles[16] = {}, marked = 0;
#endif

    // ---- The masters that this warp keeps. The last warps get theirs first: the first ones have the critical products.
    Master first[X_PER_WARP], columns[larger(HIDDEN, 1)][H_PER_WARP], rows[larger(HIDDEN, 1)][H_PER_WARP], last[H_PER_WARP];
    auto x_tile = [&](int j) { return warp * X_PER_WARP + j; };
    auto has_x_tile = [&](int j) { return j < X_TILES - (X_WARPS - 1) * X_PER_WARP || x_tile(j) < X_TILES; };  // if warp < X_WARPS
    auto h_tile = [&](int j) { return (WARPS - 1 - warp) * H_PER_WARP + j; };
    auto has_h_tile = [&](int j) { return BLOCKS % (WARPS * H_PER_WARP) == 0 || h_tile(j) < BLOCKS; };
    // This lane's row of the four 8x8 matrices of a tile's first 16 rows, top left, bottom left, top right, bottom right; or
    // with the second and third exchanged: transposed, they are in an operand's order again. In 16 rows of a batch, the first.
    const int row_at = lane / 16 * (ROWS * 8) + lane / 8 % 2 * 64 + lane % 8 * 8, x_row_at = lane % 16 * X_LD + lane / 16 * 8;
    const int turned_row_at = lane / 8 % 2 * (ROWS * 8) + lane / 16 * 64 + lane % 8 * 8;
    const int of_last = 2 * HIDDEN;  // numbers of the operands: columns of W_l: l - 1; rows of W_l: HIDDEN + l - 1; W_LAYERS
    auto operand_at = [&](int operand, int n, int tile) -> uint2& {
        return operands[((operand * 2 + n) * BLOCKS + tile) * 32 + lane];
    };
    auto write_operand = [&](int operand, int tile, const Master& master) {
        operand_at(operand, 0, tile) = operand_of(master, 0);
        operand_at(operand, 1, tile) = operand_of(master, 1);
    };
#pragma unroll
    for (int j = 0; j < X_PER_WARP; ++j)
        load_master<true>(first[j], weights + at_w(0), x_tile(j) * 16, own, IN_FEATURES, WIDTH);
#pragma unroll
    for (int j = 0; j < H_PER_WARP; ++j)
        if (has_h_tile(j)) {
#pragma unroll
            for (int l = 0; l < HIDDEN; ++l) {
                load_master<true>(columns[l][j], weights + at_w(l + 1), h_tile(j) * 16, own, WIDTH, WIDTH);
                load_master<false>(rows[l][j], weights + at_w(l + 1), own, h_tile(j) * 16, WIDTH, WIDTH);
                write_operand(l, h_tile(j), columns[l][j]);
                write_operand(HIDDEN + l, h_tile(j), rows[l][j]);
            }
            load_master<true>(last[j], weights + at_w(LAYERS), h_tile(j) * 16, 0, WIDTH, CLASSES);
            write_operand(of_last, h_tile(j), last[j]);
        }
    for (int i = tid; i < (LAYERS + 1) * 16; i += THREADS) {
        const int l = i / 16, c = l == LAYERS ? i % 16 : own + i % 16;
        bias[i] = c < out_of(l) ? __ldcg(weights + at_b(l) + c) : 0.0f;
    }

    // ---- The batches. `order` is read three steps ahead, labels two: nothing waits for them.
    int place = (done + 3) % total, coming = 0, coming_label = 0;
    const bool clerk_of_row = tid < BATCH;
    if (tid < ROWS) {
        const int now = clerk_of_row ? order[size_t(done % total) * BATCH + tid] : 0;
        const int next = clerk_of_row ? order[size_t((done + 1) % total) * BATCH + tid] : 0;
        source_of[tid] = now;
        source_of[ROWS + tid] = next;
        label_of[tid] = clerk_of_row ? labels[now] : 0;
        label_of[ROWS + tid] = 0;
        if (clerk_of_row) {
            coming_label = labels[next];
            coming = order[size_t((done + 2) % total) * BATCH + tid];
        }
    }
    auto prepare_batches = [&](int t) {
        if (clerk_of_row) {
            source_of[(t + 2) % 4 * ROWS + tid] = coming;
            label_of[(t + 1) % 2 * ROWS + tid] = coming_label;
            coming_label = labels[coming];
            coming = order[size_t(place) * BATCH + tid];
        }
        place = place + 1 == total ? 0 : place + 1;
    };
    auto x_buffer = [&](int t) { return x_buffers + t % 2 * (ROWS * X_LD); };
    // The whole batch of step t into its buffer: a warp copies whole rows.
    auto fetch_x = [&](int t) {
        if constexpr (X_BUFFERS > 0) {
#pragma unroll
            for (int i = 0; i < ceil_div(BATCH, WARPS); ++i) {
                const int row = i * WARPS + warp;
                if (BATCH % WARPS == 0 || row < BATCH) {
                    const half* const from = images + size_t(source_of[t % 4 * ROWS + row]) * IN_FEATURES;
                    half* const to = x_buffer(t) + row * X_LD;
#pragma unroll
                    for (int k = 0; k < ceil_div(IN_FEATURES, 32 * X_VECTOR); ++k) {
                        const int col = (k * 32 + lane) * X_VECTOR;
                        if ((k + 1) * 32 * X_VECTOR <= IN_FEATURES || col < IN_FEATURES)
                            copy_async<X_VECTOR * 2>(to + col, from + col);
                    }
                }
            }
            commit_copies();
        }
    };
    // What no copy ever reaches.
    if constexpr (X_BUFFERS > 0)
        for (int i = tid; i < X_BUFFERS * ROWS * X_LD; i += THREADS)
            if (i % X_LD >= IN_FEATURES || i / X_LD % ROWS >= BATCH) x_buffers[i] = __float2half_rn(0.0f);
    // Columns 16 k and on of 16 rows of the batch of step t as operand a, or transposed, as two operands b.
    auto take_x = [&](unsigned* r, int t, int m, int k, auto transposed) {
        constexpr bool TRANSPOSED = decltype(transposed)::value;
        if constexpr (X_BUFFERS > 0) {
            load_matrices<TRANSPOSED>(r, x_buffer(t) + x_row_at + m * 16 * X_LD + k * 16);
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = m * 16 + i % 2 * 8 + lane / 4, col = k * 16 + i / 2 * 8 + lane % 4 * 2;
                half2 both = __floats2half2_rn(0.0f, 0.0f);
                if (row < BATCH && col < IN_FEATURES) {
                    const half* const from = images + size_t(source_of[t % 4 * ROWS + row]) * IN_FEATURES + col;
                    if constexpr (X_VECTOR > 1) {
                        both = *reinterpret_cast<const half2*>(from);
                    } else {
                        both = __halves2half2(from[0], col + 1 < IN_FEATURES ? from[1] : __low2half(both));
                    }
                }
                const unsigned word = *reinterpret_cast<const unsigned*>(&both);
                r[i] = TRANSPOSED ? transpose(word) : word;
            }
        }
    };

    // ---- The exchange of this block's tile
    [[maybe_unused]] auto barrier_of = [&](int t, int phase) { return shared + AT_BARRIERS + (t % BARRIER_SETS * PHASES + phase) * 8; };
    [[maybe_unused]] auto places = [&](int t, int phase) { return exchange + size_t((t & 1) * PHASES + phase) * BLOCKS * WORDS; };
    // Let the memory barrier of an all-gather wait for its bytes: after the one before it at this barrier has arrived here.
    auto announce = [&](int t, int phase) {
#if CLUSTER && defined(MNT_HAS_CLUSTERS)
        if (clerk && !late) expect(shared_address(barrier_of(t, phase)), BLOCKS * WORDS * 4);
#endif
    };
    // A word of this block's tile to all blocks, whose buffer is `to`.
    auto send = [&](int t, int phase, int word, unsigned data, half* to) {
#if CLUSTER && defined(MNT_HAS_CLUSTERS)
        const unsigned place = shared_address(to + block * TILE) + word * 4, barrier = shared_address(barrier_of(t, phase));
#pragma unroll
        for (int k = 0; k < BLOCKS; ++k) {
            const unsigned rank = block + k < BLOCKS ? block + k : block + k - BLOCKS;  // not all to the same block at once
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(address_in(place, rank)),
                         "r"(data), "r"(address_in(barrier, rank))
                         : "memory");
        }
#else
        put_word(places(t, phase) + block * WORDS + word, data, unsigned(done + t + 1));
#endif
    };
    // All blocks' tiles of this phase into `to`.
    auto receive = [&](int t, int phase, half* to) {
#if CLUSTER && defined(MNT_HAS_CLUSTERS)
        late = late || !await(shared_address(barrier_of(t, phase)), t / BARRIER_SETS & 1);
        __syncwarp();  // what comes next are instructions of whole warps
#else
        constexpr int COUNT = BLOCKS * WORDS / 2, TURNS = ceil_div(COUNT, THREADS), AT_ONCE = smaller(TURNS, 4);
        const uint4* const from = reinterpret_cast<const uint4*>(places(t, phase));
        const unsigned number = unsigned(done + t + 1);
        for (int first_turn = 0; first_turn < TURNS; first_turn += AT_ONCE) {
            uint4 v[AT_ONCE];
            bool all = false;
            for (unsigned spins = 0; !all; ++spins) {
                all = true;
#pragma unroll
                for (int k = 0; k < AT_ONCE; ++k) {
                    const int i = (first_turn + k) * THREADS + tid;
                    if (i < COUNT) v[k] = get_words(from + i);
                }
#pragma unroll
                for (int k = 0; k < AT_ONCE; ++k)
                    if ((first_turn + k) * THREADS + tid < COUNT) all = all && v[k].y == number && v[k].w == number;
                late = late || spins > SPIN_LIMIT;
                all = all || late;
            }
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k) {
                const int i = (first_turn + k) * THREADS + tid;
                if (i < COUNT) reinterpret_cast<uint2*>(to)[i] = make_uint2(v[k].x, v[k].z);
            }
        }
        __syncthreads();
#endif
    };

    // Activations of hidden layer l in step t. A faster block may send the first ones of step t + 1 while this one still works
    // with those of t; it cannot get further without this one's answer.
    auto h_of = [&](int t, int l) {
        const int buffer = CLUSTER && l == 0 && (t & 1) ? LAYERS : l;
        return reinterpret_cast<half*>(shared + AT_H) + buffer * (BLOCKS * TILE);
    };
    // Gradients of hidden layer l: the last one's take the place of its activations, the first one's are z0.
    auto z_of = [&](int t, int l) {
        return l == LAYERS - 1 ? h_of(t, l) : reinterpret_cast<half*>(shared + AT_Z) + larger(l - 1, 0) * (BLOCKS * TILE);
    };
    auto words_of = [](half* tile) { return reinterpret_cast<unsigned*>(tile); };

    // ---- Products
    auto descend = [&](Master& master, const Master& gradient) {
#pragma unroll
        for (int i = 0; i < 8; ++i) master[i] -= rate * gradient[i];
    };
    // 16 columns of a tile as rows of operands a.
    auto turn = [&](unsigned(&at)[ROW_TILES][4], const half* tile) {
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) load_matrices<true>(at[m], tile + turned_row_at + m * 128);
    };
    // The first layer, tile by tile of its depth: update with the batch of step t, if there is one, and product with the next.
    auto first_layer = [&](int t, const half* z, auto updates) {
        if (warp >= X_WARPS) return;
        unsigned zt[ROW_TILES][4];
        if constexpr (decltype(updates)::value) turn(zt, z);
        float made[ROW_TILES][2][4];
        clear(&made[0][0][0], ROW_TILES * 8);
#pragma unroll
        for (int j = 0; j < X_PER_WARP; ++j)
            if (has_x_tile(j)) {
                unsigned r[4];
                if constexpr (decltype(updates)::value) {
                    Master g;
                    clear(g, 8);
#pragma unroll
                    for (int m = 0; m < ROW_TILES; ++m) {
                        take_x(r, t, m, x_tile(j), Choice<true>());
                        multiply_add(g, zt[m], r[0], r[1]);
                        multiply_add(g + 4, zt[m], r[2], r[3]);
                    }
                    descend(first[j], g);
                }
                const uint2 left = operand_of(first[j], 0), right = operand_of(first[j], 1);
#pragma unroll
                for (int m = 0; m < ROW_TILES; ++m) {
                    take_x(r, t + 1, m, x_tile(j), Choice<false>());
                    multiply_add(made[m][0], r, left.x, left.y);
                    multiply_add(made[m][1], r, right.x, right.y);
                }
            }
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                sums[warp * WORDS + word_at(i / 2, 2 * m + i % 2)] =
                    make_float2(made[m][i / 2][i % 2 * 2], made[m][i / 2][i % 2 * 2 + 1]);
    };
    // A hidden product's operand, before its activations are there.
    unsigned taken[DEPTH][2];
    auto take_operand = [&](int operand) {
#pragma unroll
        for (int i = 0; i < DEPTH; ++i)
            if (BLOCKS % SPLIT_K == 0 || part * DEPTH + i < BLOCKS) {
                const uint2 words = operand_at(operand, n_own, part * DEPTH + i);
                taken[i][0] = words.x;
                taken[i][1] = words.y;
            }
    };
    // finish(word, sums of its two columns) for each word of a x taken, in one of the threads. SPLIT_K warps share a unit's
    // words out among them; each adds up its own in the order of the depth.
    auto product = [&](const half* a, auto finish) {
        float made[UNITS_PER_WARP][4];
#pragma unroll
        for (int u = 0; u < UNITS_PER_WARP; ++u) {
            if (group + u * GROUPS < UNITS) {
                float chains[2][4];
                clear(&chains[0][0], 8);
#pragma unroll
                for (int i = 0; i < DEPTH; ++i)
                    if (BLOCKS % SPLIT_K == 0 || part * DEPTH + i < BLOCKS) {
                        unsigned r[4];
                        load_matrices<false>(r, a + row_at + (part * DEPTH + i) * TILE + (group + u * GROUPS) / 2 * 128);
                        multiply_add(chains[i % 2], r, taken[i][0], taken[i][1]);
                    }
#pragma unroll
                for (int c = 0; c < 4; ++c) made[u][c] = chains[0][c] + chains[1][c];
            }
        }
        auto each_word = [&](auto act) {
#pragma unroll
            for (int u = 0; u < UNITS_PER_WARP; ++u)
                if (group + u * GROUPS < UNITS)
#pragma unroll
                    for (int i = 0; i < 2; ++i)
                        act(word_at(n_own, (group + u * GROUPS) / 2 * 2 + i), i % SPLIT_K,
                            make_float2(made[u][2 * i], made[u][2 * i + 1]));
        };
        if constexpr (SPLIT_K > 1) {
            each_word([&](int word, int finisher, float2 s) {
                if (part != finisher) parts[part * WORDS + word] = s;
            });
            meet(true, 1 + group, SPLIT_K);
        }
        each_word([&](int word, int finisher, float2 s) {
            if (part != finisher) return;
            float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
            for (int p = 0; p < SPLIT_K; ++p) {
                const float2 v = p == part ? s : parts[p * WORDS + word];
                sum.x += v.x;
                sum.y += v.y;
            }
            finish(word, sum);
        });
    };
    // master -= rate a^T b for tiles of 16 columns of a (as operands) and b: the same products in the same order wherever a
    // weight is kept twice.
    auto update = [&](Master& master, const unsigned(&at)[ROW_TILES][4], const half* b) {
        Master g;
        clear(g, 8);
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
            unsigned r[4];
            load_matrices<true>(r, b + row_at + m * 128);
            multiply_add(g, at[m], r[0], r[1]);
            multiply_add(g + 4, at[m], r[2], r[3]);
        }
        descend(master, g);
    };
    // One warp: b -= rate (sums of a tile's columns)
    auto update_bias = [&](int layer, const half* tile) {
        const int col = lane % 16;
        float sum = 0.0f;
#pragma unroll 4
        for (int row = lane / 16; row < ROWS; row += 2)
            sum += __half2float(tile[(col / 8 * (ROWS / 8) + row / 8) * 64 + row % 8 * 8 + col % 8]);
        sum += __shfl_xor_sync(0xffffffffu, sum, 16);
        if (lane < 16) bias[layer * 16 + lane] -= rate * sum;
    };
    // W_l, both copies, and the bias of the layer that it makes, from h_{l-1} and dz_l.
    auto update_hidden = [&](int l, const half* h, const half* z) {
        unsigned z_own[ROW_TILES][4], h_own[ROW_TILES][4];
        if (has_h_tile(0)) {
            turn(z_own, z + block * TILE);
            turn(h_own, h + block * TILE);
        }
#pragma unroll
        for (int j = 0; j < H_PER_WARP; ++j)
            if (has_h_tile(j)) {
                update(columns[l - 1][j], z_own, h + h_tile(j) * TILE);
                update(rows[l - 1][j], h_own, z + h_tile(j) * TILE);
                write_operand(l - 1, h_tile(j), columns[l - 1][j]);
                write_operand(HIDDEN + l - 1, h_tile(j), rows[l - 1][j]);
            }
        if (warp == 0) update_bias(l, z + block * TILE);
    };
    auto activation = [&](float2 s, float2 shift) {
        const float2 v = relu(make_float2(s.x + shift.x, s.y + shift.y));
        return pack(v.x, v.y);
    };
    auto bias_of = [&](int layer, int n) { return reinterpret_cast<const float2*>(bias)[layer * 8 + n * 4 + lane % 4]; };

#if CLUSTER && defined(MNT_HAS_CLUSTERS)
    if (tid == 0) {
        for (int i = 0; i < PHASES * BARRIER_SETS; ++i)
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(shared + AT_BARRIERS + i * 8)));
        asm volatile("fence.mbarrier_init.release.cluster;");
    }
    cluster_sync();
#endif
    __syncthreads();
    announce(0, 0);
    fetch_x(0);
    wait_copies<0>();
    __syncthreads();
    first_layer(-1, z0, Choice<false>());
    __syncthreads();
#if PROFILE
    marked = clock64();
#endif
    for (int t = 0; t < steps; ++t) {
        // ---- Forward
        for (int word = tid; word < WORDS; word += THREADS) {
            float2 s = make_float2(0.0f, 0.0f);
#pragma unroll
            for (int w = 0; w < X_WARPS; ++w) {
                const float2 v = sums[w * WORDS + word];
                s.x += v.x;
                s.y += v.y;
            }
            send(t, 0, word, activation(s, bias_of(0, word / (WORDS / 2))), h_of(t, 0));
        }
        MARK(0)
        fetch_x(t + 1);  // into the buffer of the step before, which all have left
        if (DEFERS && t > 0) update_hidden(1, h_of(t - 1, 0), z_of(t - 1, 1));
        prepare_batches(t);
#pragma unroll
        for (int phase = 1; phase < PHASES; ++phase) announce(t, phase);
        __syncthreads();
        if (HIDDEN > 0) take_operand(0);
        MARK(1)
        receive(t, 0, h_of(t, 0));
        MARK(2)
        announce(t + 1, 0);
#pragma unroll
        for (int l = 1; l < LAYERS; ++l) {
            const float2 shift = bias_of(l, n_own);
            product(h_of(t, l - 1), [&](int word, float2 s) { send(t, l, word, activation(s, shift), h_of(t, l)); });
            MARK(l == 1 ? 3 : 5)
            if (l < HIDDEN) {
                take_operand(l);
                receive(t, l, h_of(t, l));
                MARK(4)
            }
        }

        // ---- Logits, loss and gradient of the last hidden layer, in every block: each warp makes 16 rows
        half* const top = h_of(t, LAYERS - 1);
        const bool at_top = warp < TOP_WARPS;
        const int m = warp % ROW_TILES, copy = warp / ROW_TILES, top_tile = COPIES == 1 ? 0 : copy * TOP_TILES;
        auto has_top_tile = [&](int j) { return BLOCKS % COPIES == 0 || top_tile + j < BLOCKS; };
        uint2 ahead[AHEAD][2];
        const float2 top_shift[2] = {bias_of(LAYERS, 0), bias_of(LAYERS, 1)};
        if (at_top) {
#pragma unroll
            for (int k = 0; k < AHEAD; ++k)
#pragma unroll
                for (int n = 0; n < 2; ++n) ahead[k][n] = operand_at(of_last, n, k);
        }
        if (LAYERS > 1) receive(t, LAYERS - 1, top);
        MARK(6)
        unsigned z_top[TOP_TILES][4];
        float of_label[2] = {}, sum_of[2], largest_of[2];  // of this lane's two rows
        float below[2][4];  // this copy's part of the gradient of the layer below, own columns
        clear(&below[0][0], 8);
        if (at_top) {
            float chains[2][2][4];
            clear(&chains[0][0][0], 16);
#pragma unroll
            for (int k = 0; k < BLOCKS; ++k) {
                unsigned r[4];
                load_matrices<false>(r, top + row_at + k * TILE + m * 128);
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                    const uint2 operand = k < AHEAD ? ahead[smaller(k, AHEAD - 1)][n] : operand_at(of_last, n, k);
                    multiply_add(chains[k % 2][n], r, operand.x, operand.y);
                }
            }
            // What comes after the softmax, before it where there is room: operands for a tile of its columns.
            unsigned back[TOP_TILES][2][2];
            uint2 down[TOP_TILES][2];
            auto take_top = [&](int j) {
                if (!has_top_tile(j)) return;
                const uint2 low = operand_at(of_last, 0, top_tile + j), high = operand_at(of_last, 1, top_tile + j);
                back[j][0][0] = transpose(low.x);
                back[j][0][1] = transpose(high.x);
                back[j][1][0] = transpose(low.y);
                back[j][1][1] = transpose(high.y);
                if (HIDDEN > 0)
#pragma unroll
                    for (int n = 0; n < 2; ++n) down[j][n] = operand_at(2 * HIDDEN - 1, n, top_tile + j);
            };
            if (ROOMY)
#pragma unroll
                for (int j = 0; j < TOP_TILES; ++j) take_top(j);
            unsigned dr[4];
#pragma unroll
            for (int i = 0; i < 2; ++i) {  // rows lane / 4 and 8 more; a row is in four lanes
                const int row = m * 16 + i * 8 + lane / 4, label = label_of[t % 2 * ROWS + row];
                const float lowest = -3.0e38f;
                float z[4], e[4], largest = lowest;
                auto col = [&](int c) { return c / 2 * 8 + lane % 4 * 2 + c % 2; };
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    const float shift = c % 2 ? top_shift[c / 2].y : top_shift[c / 2].x;
                    z[c] = chains[0][c / 2][i * 2 + c % 2] + chains[1][c / 2][i * 2 + c % 2] + shift;
                    if (col(c) >= CLASSES) z[c] = lowest;
                    if (col(c) == label) of_label[i] = z[c];
                    largest = z[c] <= largest ? largest : z[c];
                }
#pragma unroll
                for (int k = 1; k < 4; k *= 2) {
                    const float other = __shfl_xor_sync(0xffffffffu, largest, k);
                    largest = other <= largest ? largest : other;
                }
                float sum = 0.0f;
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    e[c] = col(c) < CLASSES ? __expf(z[c] - largest) : 0.0f;
                    sum += e[c];
                }
#pragma unroll
                for (int k = 1; k < 4; k *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, k);
                const float scale = row < BATCH ? __fdividef(1.0f, sum) : 0.0f, one = row < BATCH ? 1.0f : 0.0f;
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    e[c] = e[c] * scale - (col(c) == label ? one : 0.0f);
                }
                sum_of[i] = sum;
                largest_of[i] = largest;
                dr[i] = pack(e[0], e[1]);
                dr[2 + i] = pack(e[2], e[3]);
            }
            if (copy == 0)
#pragma unroll
                for (int i = 0; i < 4; ++i) words_of(d)[word_at(i / 2, 2 * m + i % 2)] = dr[i];
#pragma unroll
            for (int j = 0; j < TOP_TILES; ++j)
                if (has_top_tile(j)) {
                    if (!ROOMY) take_top(j);
                    unsigned h[4];
                    load_matrices<false>(h, top + row_at + (top_tile + j) * TILE + m * 128);
                    float z[2][4];
                    clear(&z[0][0], 8);
#pragma unroll
                    for (int f = 0; f < 2; ++f) multiply_add(z[f], dr, back[j][f][0], back[j][f][1]);
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        z_top[j][i] = pack(z[i / 2][i % 2 * 2], z[i / 2][i % 2 * 2 + 1]) & where_positive(h[i]);
                    if (HIDDEN > 0)
#pragma unroll
                        for (int n = 0; n < 2; ++n) multiply_add(below[n], z_top[j], down[j][n].x, down[j][n].y);
                }
        }
        MARK(7)
        // What becomes of the gradient of layer l, own columns: sent, or the first layer's.
        auto pass_down = [&](int l, int word, float2 s) {
            const unsigned v = pack(s.x, s.y) & where_positive(words_of(h_of(t, l) + block * TILE)[word]);
            if (l > 0) {
                send(t, LAYERS + LAYERS - 2 - l, word, v, z_of(t, l));
            } else {
                words_of(z0)[word] = v;
            }
        };
        if constexpr (HIDDEN > 0) {
            // Two copies: each finishes 8 columns, with the other's part.
            if constexpr (COPIES == 2) {
                if (at_top)
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const int n = 1 - copy;
                        parts[word_at(n, 2 * m + i)] = copy ? make_float2(below[0][2 * i], below[0][2 * i + 1])
                                                            : make_float2(below[1][2 * i], below[1][2 * i + 1]);
                    }
                meet(at_top, 1 + m, 2);
            }
            if (at_top)
#pragma unroll
                for (int n = 0; n < 2; ++n)
                    if (COPIES == 1 || n == copy)
#pragma unroll
                        for (int i = 0; i < 2; ++i) {
                            const int word = word_at(n, 2 * m + i);
                            float2 s = make_float2(below[n][2 * i], below[n][2 * i + 1]);
                            if (COPIES == 2) {
                                const float2 other = parts[word];
                                s = make_float2(s.x + other.x, s.y + other.y);
                            }
                            pass_down(HIDDEN - 1, word, s);
                        }
        }
        MARK(8)

        // ---- While the gradients are under way
        if (block == 0 && at_top && copy == 0)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int row = m * 16 + i * 8 + lane / 4, label = label_of[t % 2 * ROWS + row];
                if (label % 8 / 2 == lane % 4) row_loss[row] = row < BATCH ? __logf(sum_of[i]) + largest_of[i] - of_label[i] : 0.0f;
            }
        __syncthreads();  // d is there, and nobody needs the last layer's operand or the products' parts any more
        {
            unsigned dt[ROW_TILES][4];
            if (has_h_tile(0)) turn(dt, d);
#pragma unroll
            for (int j = 0; j < H_PER_WARP; ++j)
                if (has_h_tile(j)) {
                    update(last[j], dt, top + h_tile(j) * TILE);
                    write_operand(of_last, h_tile(j), last[j]);
                }
            if (warp == 0) update_bias(LAYERS, d);
        }
        __syncthreads();  // the last activations are not needed any more
        if (at_top)
#pragma unroll
            for (int j = 0; j < TOP_TILES; ++j)
                if (has_top_tile(j))
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        words_of(top + (top_tile + j) * TILE)[word_at(i / 2, 2 * m + i % 2)] = z_top[j][i];
        if (block == 0 && warp == WARPS - 1) {
            float sum = 0.0f;
            for (int row = lane; row < ROWS; row += 32) sum += row_loss[row];
#pragma unroll
            for (int k = 16; k > 0; k /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, k);
            if (lane == 0) loss[(done + t) % slots] = sum / BATCH;
        }
        __syncthreads();
        if (HIDDEN > 0) update_hidden(larger(HIDDEN, 1), h_of(t, larger(HIDDEN - 1, 0)), top);
        MARK(9)

        // ---- Backward through the other hidden matrices, W_l between layers l - 1 and l
#pragma unroll
        for (int l = HIDDEN - 1; l > 0; --l) {
            take_operand(HIDDEN + l - 1);
            receive(t, LAYERS + LAYERS - 2 - l, z_of(t, l));
            MARK(10)
            product(z_of(t, l), [&](int word, float2 s) { pass_down(l - 1, word, s); });
            if (l > 1) {
                __syncthreads();  // all have taken the operand
                update_hidden(l, h_of(t, l - 1), z_of(t, l));
            }
        }
        wait_copies<0>();
        __syncthreads();
        MARK(11)
        const half* const z_first = HIDDEN > 0 ? z0 : top + block * TILE;
        first_layer(t, z_first, Choice<true>());
        if (warp == WARPS - 1) update_bias(0, z_first);
        MARK(12)
        __syncthreads();
        MARK(13)
    }

    if (DEFERS && steps > 0) update_hidden(1, h_of(steps - 1, 0), z_of(steps - 1, 1));
    const bool failure = __syncthreads_or(late) != 0;
    int column = own;
    asm volatile("" : "+r"(column));  // or addresses of the first loads would be kept in registers until here
    if (failure) {
        if (tid == 0) *failed = 1;
    } else {
#pragma unroll
        for (int j = 0; j < X_PER_WARP; ++j)
            store_transposed(first[j], weights + at_w(0), x_tile(j) * 16, column, IN_FEATURES, WIDTH);
#pragma unroll
        for (int j = 0; j < H_PER_WARP; ++j)
            if (has_h_tile(j)) {
#pragma unroll
                for (int l = 0; l < HIDDEN; ++l)
                    store_transposed(columns[l][j], weights + at_w(l + 1), h_tile(j) * 16, column, WIDTH, WIDTH);
                if (block == 0) store_transposed(last[j], weights + at_w(LAYERS), h_tile(j) * 16, 0, WIDTH, CLASSES);
            }
        for (int i = tid; i < (LAYERS + 1) * 16; i += THREADS) {
            const int l = i / 16, c = l == LAYERS ? i % 16 : own + i % 16;
            if (c < out_of(l) && (l < LAYERS || block == 0)) __stcg(weights + at_b(l) + c, bias[i]);
        }
        if (block == 0 && tid == 0) __stcg(position, done + steps);
    }
#if PROFILE
    if (block == 0 && tid == 0)
        for (int i = 0; i < smaller(slots, 16); ++i) loss[i] = float(cycles[i]) / float(steps);
#endif
#if CLUSTER && defined(MNT_HAS_CLUSTERS)
    cluster_sync();  // nobody leaves while others may still send to it
#endif
}
