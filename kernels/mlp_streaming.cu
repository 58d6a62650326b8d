// mlp_streaming: many SGD steps of a whole MLP in one launch, for weights that no SM can keep: they stream from memory
//
//   784 - H - ... - H - 10 (or other sizes) with ReLU between the layers, mean cross-entropy, W -= lr dW, b -= lr db, `steps` times.
//
//   images (any rows, IN_FEATURES) fp16, labels uint8, order (total, BATCH) int32: rows of each step's batch.
//   weights: all matrices but the last, in 16x16 tiles of 512 contiguous bytes (below), zero where a tile leaves the matrix:
//     first the high parts, then the low parts: w = high + low / 2048, both fp16. 10 bytes a weight are moved per step (the
//     first layer's: 8): high for the forward pass, high and low, read and written, for backward pass and update in one.
//   last: GRID_N equal copies of the last matrix, fp32, tile by tile. bias: fp32, a row of TILES * 16 per layer, then 16.
//
//   GRID_N teams of GRID_K blocks are all on the GPU at once. With C = GRID_K, this is who multiplies what:
//
//     forward h_l = relu(h_{l-1} W_l + b)                 backward dz_{l-1} = dz_l W_l^T, and W_l -= h_{l-1}^T dz_l
//
//              team 0  1  2 ..                                      block 0   1   ..  C-1   (of each team)
//             +--+--+--+--+--+                                     +-------+-------+------+
//     block 0 |  |  |  |  |  |   each team has                team 0 |       |       |      |  each team has rows of W_l,
//             +--+--+--+--+--+   columns of W_l,                    +-------+-------+------+  and its blocks share the
//     block 1 |  |  |  |  |  |   its blocks share                 1 |       |       |      |  columns
//             +--+--+--+--+--+   the depth                          +-------+-------+------+
//
//   Either way a block needs 1/GRID_K of the activations (the slab) and makes partial sums of 1/GRID_N of the outcome. Two
//   messages follow: the team's blocks send each other their partial sums, each adding up its share of the columns in the
//   order of the blocks (no atomics: same bits each time), and publish it to all blocks through L2.
//   The last matrix, logits and softmax: each team computes them all, a block from its slab, with one message in the team.
//   The first layer is updated and multiplied with the next batch in one pass.
//
//   Within a team messages take one of two ways (persistent.cuh): CLUSTER (sm_90), the team is a cluster and they go through
//   its shared memory; or through L2. A thread that waits longer than the limits there waits no more in this launch, which
//   then ends with *failed = 1; the weights are worthless then.
//
// The stream: a warp reads its tiles of a step in an order that is known, whatever arrives when. So it requests them SLOTS slots
// ahead, across the passes, into a ring of its own in shared memory: memory is busy while the blocks exchange activations. A
// lane copies what it uses itself; no barrier is needed. A tile's 16 bytes of a lane are the words of mma.sync's operand b,
//
//   lane 4 g + t: (k 2t, 2t+1; n g), (k 8+2t..; n g), (k 2t..; n 8+g), (k 8+2t..; n 8+g)
//
//   which are those of a transposed product's sums, too: the gradient lies as the weights do.
// Other blocks' weights are read in the forward pass only, which follows the update in the step before; in between, `written`
// says how far each block is, and a step's stream starts when all have finished the step before.
//
// Sizes:      BATCH IN_FEATURES WIDTH LAYERS (hidden, from 2) CLASSES
// Tunables:   CLUSTER; GRID_N, GRID_K; WARPS; SLOTS: of 1 KB for each of the warp's columns of tiles; ROUNDS: in which a team's
//             partial sums are exchanged, each in the same place of shared memory
// Parameters: exchange, sums: words of 8 bytes, any content but the numbers of steps to come; written: likewise, a word a block;
//             bias_steps: workspace; position: steps made so far, moved by `steps`; loss[(position + t) % slots]: mean loss.
// PROFILE:    cycles per step of block 0's first thread in each part of a step are left in `loss` instead (see MARK; the parts'
//             names are `parts` in mlp_streaming.py).
#include "persistent.cuh"

#ifndef BATCH
#define BATCH 32
#endif
#ifndef IN_FEATURES
#define IN_FEATURES 784
#endif
#ifndef WIDTH
#define WIDTH 512
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
#ifndef GRID_N
#define GRID_N 8
#endif
#ifndef GRID_K
#define GRID_K 4
#endif
#ifndef WARPS
#define WARPS 8
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef ROUNDS
#define ROUNDS 1
#endif
#ifndef PROFILE
#define PROFILE 0
#endif

using namespace mnt;

static constexpr int THREADS = 32 * WARPS, BLOCKS = GRID_N * GRID_K;
static constexpr int ROW_TILES = ceil_div(BATCH, 16), ROWS = ROW_TILES * 16;
static constexpr int TILE = ROWS * 16, WORDS = TILE / 2;           // 16 columns of activations: halves, and pairs of columns
static constexpr int HIDDEN = LAYERS - 1;                          // matrices between hidden layers
static constexpr int OUT_TILES = ceil_div(ceil_div(WIDTH, 16), GRID_N);  // of a team
static constexpr int TILES = OUT_TILES * GRID_N;                   // of a hidden layer, padded
static constexpr int IN_TILES = TILES / GRID_K;                    // of a slab
static constexpr int X_TILES = ceil_div(IN_FEATURES, 16), X_SHARE = ceil_div(X_TILES, GRID_K);
static constexpr int X_LD = X_SHARE * 16 + 8;
static constexpr int X_VECTOR = vector_width(IN_FEATURES, 8);

// Warps share a block's outcome (WARP_N) and the depth of its products (WARP_K).
__host__ __device__ constexpr int largest_power(int most, int power) { return 2 * power <= most ? largest_power(most, 2 * power) : power; }
static constexpr int WARP_N = smaller(WARPS, largest_power(OUT_TILES, 1)), WARP_K = WARPS / WARP_N;
static constexpr int OUT = ceil_div(OUT_TILES, WARP_N);            // columns of tiles (rows, in the backward pass) of a warp
static constexpr int DEPTH = ceil_div(IN_TILES, WARP_K), X_DEPTH = ceil_div(X_SHARE, WARP_K);
// A slot holds, for each of these, two tiles of high parts, or the high and the low part of one.
static constexpr int FORWARD_SLOTS = ceil_div(DEPTH, 2), STEP_SLOTS = HIDDEN * (FORWARD_SLOTS + DEPTH) + X_DEPTH;

// A block's share of its team's outcome: PAIRS pairs of columns. PAIRS_TOGETHER of them lie side by side in what is sent.
static constexpr int PAIRS = OUT_TILES * 8 / GRID_K, SHARE = PAIRS * ROWS, PAIRS_TOGETHER = vector_width(PAIRS, 4);
static constexpr int IN_ROUND = SHARE / ROUNDS;

// The last matrix: tiles of the slab that a warp keeps.
static constexpr int LAST = ceil_div(IN_TILES, WARPS), LAST_WARPS = ceil_div(IN_TILES, LAST);
// Tiles of the slab whose columns a block sums for the biases: each team's block does some of the same slab's.
static constexpr int SUMMED = ceil_div(IN_TILES, GRID_N);

// In tiles.
__host__ __device__ constexpr int first_tile_of(int layer) { return layer == 0 ? 0 : X_TILES * TILES + (layer - 1) * TILES * TILES; }
static constexpr size_t LOW = size_t(first_tile_of(LAYERS)) * 32;  // from a high part to its low part, in lanes' 16 bytes
static constexpr float FINER = 2048.0f;                            // of low parts

// Numbers of messages: h_l is l; dz_l follows, the first layer's last. Partial sums: of forward passes, backward passes, first layer.
static constexpr int PHASES = LAYERS + HIDDEN, SUM_STAGES = 2 * HIDDEN + 1, FIRST_LAYER = 2 * HIDDEN;

// Shared memory, in bytes.
static constexpr int RING_BYTES = WARPS * SLOTS * OUT * 1024, SLAB_BYTES = IN_TILES * TILE * 2, BESIDE_BYTES = OUT_TILES * TILE * 2;
static constexpr int X_BYTES = ROWS * X_LD * 2, PART_BYTES = larger(WARP_K > 1 ? WARP_K * OUT_TILES : 0, LAST_WARPS) * WORDS * 8;
static constexpr int RECEIVED_BYTES = CLUSTER ? GRID_K * larger(IN_ROUND, WORDS) * 8 : 0;
static constexpr int AT_SLAB = RING_BYTES, AT_BESIDE = AT_SLAB + SLAB_BYTES, AT_X = AT_BESIDE + BESIDE_BYTES;
static constexpr int AT_PARTS = AT_X + 2 * X_BYTES, AT_RECEIVED = AT_PARTS + PART_BYTES, AT_D = AT_RECEIVED + RECEIVED_BYTES;
static constexpr int AT_MASKS = AT_D + TILE * 2, AT_BIAS = AT_MASKS + HIDDEN * SHARE * 4, AT_LAST_BIAS = AT_BIAS + LAYERS * PAIRS * 8;
static constexpr int AT_LOSS = AT_LAST_BIAS + 64, AT_LABELS = AT_LOSS + ROWS * 4, AT_SOURCES = AT_LABELS + ROWS * 8;
static constexpr int AT_BARRIERS = AT_SOURCES + ROWS * 16;
[[maybe_unused]] static constexpr int SHARED_BYTES = AT_BARRIERS + 16;

#ifdef EXPECTED_SHARED_BYTES
static_assert(SHARED_BYTES == EXPECTED_SHARED_BYTES, "the launch must ask for exactly what is laid out here");
#endif
static_assert(CLASSES <= 16, "the logits take one tile of 16 columns");
static_assert(LAYERS >= 2, "with one hidden layer there is no hidden matrix to stream");
static_assert(GRID_N % GRID_K == 0, "a slab is a whole number of tiles");
static_assert(OUT_TILES * 8 % GRID_K == 0, "every block of a team needs a share of its columns");
static_assert(SHARE % ROUNDS == 0, "every round exchanges as much");
static_assert(!CLUSTER || GRID_K <= 8, "a team is a cluster, of at most 8 blocks on every GPU");
static_assert(WARPS == 1 || WARPS == 2 || WARPS == 4 || WARPS == 8 || WARPS == 16, "warps are shared out by halves");
static_assert(SLOTS >= 1 && SLOTS <= 32, "a thread waits for a number of copies that is compiled in");

#if CLUSTER && (defined(MNT_HAS_CLUSTERS) || defined(__MNT_EMULATION__))
#define THROUGH_CLUSTER 1
#else
#define THROUGH_CLUSTER 0
#endif

#if PROFILE
// Adds the cycles since the last mark to part i of the step.
#define MARK(i)                          \
    {                                    \
        const long long now = clock64(); \
        cycles[i] += now - marked;       \
        marked = now;                    \
    }
#else
#define MARK(i)
#endif

// A 16x16 tile of the last matrix, transposed: element f * 4 + c is sum c of the product that makes its columns 8 f and on.
using Master = float[8];

// The operand of which the master is the transpose: for its columns 8 n and on.
__device__ __forceinline__ uint2 operand_of(const Master& master, int n) {
    return make_uint2(pack(master[2 * n], master[2 * n + 1]), pack(master[4 + 2 * n], master[5 + 2 * n]));
}

// first[0] + first[stride] + ..., Count of them, in this order.
template <int Count> __device__ __forceinline__ float2 sum_in_order(const float2* first, int stride) {
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int k = 0; k < Count; ++k) {
        const float2 v = first[k * stride];
        sum.x += v.x;
        sum.y += v.y;
    }
    return sum;
}

// Two weights, less what is to be subtracted.
__device__ __forceinline__ void subtract(unsigned& high, unsigned& low, float x, float y) {
    const float2 h = __half22float2(*reinterpret_cast<const half2*>(&high)), l = __half22float2(*reinterpret_cast<const half2*>(&low));
    const float2 w = make_float2(fmaf(l.x, 1.0f / FINER, h.x) - x, fmaf(l.y, 1.0f / FINER, h.y) - y);
    high = pack(w.x, w.y);
    const float2 kept = __half22float2(*reinterpret_cast<const half2*>(&high));
    low = pack((w.x - kept.x) * FINER, (w.y - kept.y) * FINER);
}

extern "C" __global__ void
#if CLUSTER
__cluster_dims__(GRID_K, 1, 1)
#endif
__launch_bounds__(THREADS, 1)
mlp_streaming(const half* __restrict__ images, const unsigned char* __restrict__ labels, const int* __restrict__ order, int* position,
              int total, int steps, half* weights, float* last_copies, float* biases, float rate, float* __restrict__ loss, int slots,
              uint2* exchange, uint2* sums, unsigned* written, float* bias_steps, int* failed) {
    MNT_DYNAMIC_SHARED(shared);
    if (steps <= 0) return;
    half* const slab = reinterpret_cast<half*>(shared + AT_SLAB);
    half* const beside = reinterpret_cast<half*>(shared + AT_BESIDE);       // activations of the team's own columns
    half* const x_buffers = reinterpret_cast<half*>(shared + AT_X);         // this block's part of two batches
    float2* const parts = reinterpret_cast<float2*>(shared + AT_PARTS);     // sums of warps that share an outcome
    [[maybe_unused]] float2* const received = reinterpret_cast<float2*>(shared + AT_RECEIVED);
    half* const d = reinterpret_cast<half*>(shared + AT_D);                 // gradient of the logits
    unsigned* const masks = reinterpret_cast<unsigned*>(shared + AT_MASKS); // own share of the activations below the last ones
    float* const bias = reinterpret_cast<float*>(shared + AT_BIAS);         // own share
    float* const last_bias = reinterpret_cast<float*>(shared + AT_LAST_BIAS);
    float* const row_loss = reinterpret_cast<float*>(shared + AT_LOSS);
    int* const label_of = reinterpret_cast<int*>(shared + AT_LABELS);       // of two steps
    int* const source_of = reinterpret_cast<int*>(shared + AT_SOURCES);     // rows of `images`, of four steps

    const int tid = threadIdx.x, warp = int(threadIdx.x / 32), lane = int(threadIdx.x % 32), block = blockIdx.x;
    const int team = block / GRID_K, rank = block % GRID_K;
    const int warp_n = warp % WARP_N, warp_k = warp / WARP_N;
    const int first_out = warp_n * OUT, depth_at = warp_k * DEPTH;          // tiles of the team, and of the slab
    const int x_first = rank * X_TILES / GRID_K, x_count = (rank + 1) * X_TILES / GRID_K - x_first, x_at = warp_k * X_DEPTH;
    const int own_columns = (team * OUT_TILES * 8 + rank * PAIRS) * 2;
    [[maybe_unused]] const bool clerk = tid == THREADS - 32;
    const int done = __ldcg(position);
    bool late = false;
#if PROFILE
    long long cycles[16] = {}, marked = 0;
#endif
    auto has_out = [&](int o) { return OUT_TILES % OUT == 0 || first_out + o < OUT_TILES; };
    auto number_at = [&](int t) { return unsigned(done + t + 1); };

    // ---- The stream of weights
    uint4* const planes = reinterpret_cast<uint4*>(weights);
    uint4* const ring = reinterpret_cast<uint4*>(shared) + warp * (SLOTS * OUT * 64) + lane;
    const uint4* coming = planes;                                   // what is requested next, and the way on from there
    size_t to_part = 0, to_out = 0, to_slot = 0;
    int stage = 0, stage_slots = 0, left = 0, per_slot = 1, requested = 0, place = 0;
    auto open_stage = [&](int which) {
        stage = which;
        const bool forward = which < HIDDEN, hidden = which < FIRST_LAYER;
        const int layer = forward ? which + 1 : FIRST_LAYER - which;
        const int out = team * OUT_TILES + first_out, depth = hidden ? rank * IN_TILES + depth_at : x_first + x_at;
        const bool across = hidden && !forward;                     // depth along a row of W
        const int tile = first_tile_of(layer) + (across ? out * TILES + depth : depth * TILES + out);
        coming = planes + size_t(tile) * 32 + lane;
        to_part = forward ? size_t(TILES) * 32 : LOW;
        to_out = across ? size_t(TILES) * 32 : 32;
        per_slot = forward ? 2 : 1;
        to_slot = (across ? 1 : per_slot * TILES) * size_t(32);
        left = hidden ? smaller(DEPTH, IN_TILES - depth_at) : smaller(X_DEPTH, x_count - x_at);
        stage_slots = forward ? FORWARD_SLOTS : hidden ? DEPTH : X_DEPTH;
    };
    // The next slot of this step, if there is one, to where the last one was read.
    auto request = [&] {
        if (requested < STEP_SLOTS) {
#pragma unroll
            for (int o = 0; o < OUT; ++o)
#pragma unroll
                for (int part = 0; part < 2; ++part)
                    if (has_out(o) && left > part * (per_slot - 1))
                        copy_async<16>(ring + (place * OUT + o) * 64 + part * 32, coming + part * to_part + o * to_out);
            coming += to_slot;
            left -= per_slot;
            ++requested;
            if (--stage_slots == 0 && requested < STEP_SLOTS) open_stage(stage + 1);
        }
        commit_copies();
        place = place + 1 == SLOTS ? 0 : place + 1;
    };
    auto start_stream = [&] {
        requested = 0;
        open_stage(0);
        for (int i = 0; i < SLOTS; ++i) request();
    };
    // The first `count` parts of the next slot, by columns of tiles. Its place is then used for what is requested next.
    auto take = [&](uint4(&words)[OUT][2], int count) {
        wait_copies<SLOTS - 1>();
#pragma unroll
        for (int o = 0; o < OUT; ++o)
#pragma unroll
            for (int part = 0; part < 2; ++part)
                if (has_out(o) && part < count) words[o][part] = ring[(place * OUT + o) * 64 + part * 32];
        request();
    };

    // ---- The batches. `order` is read three steps ahead, labels two: nothing waits for them.
    int at_order = (done + 3) % total, coming_row = 0, coming_label = 0;
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
            coming_row = order[size_t((done + 2) % total) * BATCH + tid];
        }
    }
    auto prepare_batches = [&](int t) {
        if (clerk_of_row) {
            source_of[(t + 2) % 4 * ROWS + tid] = coming_row;
            label_of[(t + 1) % 2 * ROWS + tid] = coming_label;
            coming_label = labels[coming_row];
            coming_row = order[size_t(at_order) * BATCH + tid];
        }
        at_order = at_order + 1 == total ? 0 : at_order + 1;
    };
    auto x_buffer = [&](int t) { return x_buffers + t % 2 * (ROWS * X_LD); };
    // This block's columns of the batch of step t; the copies count with the next slot that is requested: whoever took the
    // step's first slot has them.
    auto fetch_x = [&](int t) {
        constexpr int PER_ROW = X_SHARE * 16 / X_VECTOR;
        for (int i = tid; i < BATCH * PER_ROW; i += THREADS) {
            const int row = i / PER_ROW, col = i % PER_ROW * X_VECTOR, from = x_first * 16 + col;
            if (col < x_count * 16 && from < IN_FEATURES)
                copy_async<X_VECTOR * 2>(x_buffer(t) + row * X_LD + col, images + size_t(source_of[t % 4 * ROWS + row]) * IN_FEATURES + from);
        }
    };
    for (int i = tid; i < 2 * ROWS * X_LD; i += THREADS) x_buffers[i] = __float2half_rn(0.0f);  // what no copy ever reaches
    // Columns 16 k and on of 16 rows of the batch of step t as operand a, or transposed, as two operands b.
    const int x_row_at = lane % 16 * X_LD + lane / 16 * 8;
    auto rows_of_x = [&](int t, int m, int k) { return x_buffer(t) + x_row_at + m * 16 * X_LD + k * 16; };

    // ---- Messages
    // Word i of a block's share: pair of columns and row.
    auto pair_of = [](int i) { return i / (ROWS * PAIRS_TOGETHER) * PAIRS_TOGETHER + i % PAIRS_TOGETHER; };
    auto row_of = [](int i) { return i / PAIRS_TOGETHER % ROWS; };
    auto word_of = [&](int i) {  // in the team's tiles
        const int pair = rank * PAIRS + pair_of(i);
        return pair / 8 * WORDS + word_of_pair<ROWS>(pair % 8, row_of(i));
    };
    auto places = [&](int t, int phase) { return exchange + size_t((t & 1) * PHASES + phase) * TILES * WORDS; };
    auto publish = [&](int t, int phase, int i, unsigned word) {
        put_word(places(t, phase) + team * OUT_TILES * WORDS + word_of(i), word, number_at(t));
    };
    // Tiles from the number `first` on, Count of them, as all blocks publish them.
    auto receive = [&](int t, int phase, int first, auto count, half* to) {
        constexpr int PAIRS_OF_WORDS = decltype(count)::value * WORDS / 2;
        late = !take_words<PAIRS_OF_WORDS, THREADS>(places(t, phase) + size_t(first) * WORDS, number_at(t), late,
                                                    [&](int i, unsigned a, unsigned b) { reinterpret_cast<uint2*>(to)[i] = make_uint2(a, b); });
    };
    [[maybe_unused]] auto sums_at = [&](int t, int which, int owner, int sender) {
        return sums + ((size_t((t & 1) * SUM_STAGES + which) * BLOCKS + owner) * GRID_K + sender) * (SHARE * 2);
    };
    [[maybe_unused]] auto logits_at = [&](int t, int sender) {
        return sums + size_t(2 * SUM_STAGES) * BLOCKS * GRID_K * (SHARE * 2) + (size_t(t & 1) * BLOCKS + sender) * (WORDS * 2);
    };
    [[maybe_unused]] auto put_pair = [&](uint2* to, float2 s, unsigned number) {
        put_word(to, __float_as_uint(s.x), number);
        put_word(to + 1, __float_as_uint(s.y), number);
    };
#if THROUGH_CLUSTER
    const unsigned inbox = shared_address(shared + AT_BARRIERS), gradient_inbox = inbox + 8;
    int collected = 0;
#endif
    // Before this block sends to its team: all have used what they got before.
    auto await_team = [&] {
#if THROUGH_CLUSTER
        cluster_wait();
#endif
    };
    // All threads: sums of the team's blocks, in their order, of words i < Count; each block's are at from(i, block).
    // next_bytes: what comes to this block the next time.
    auto collect = [&](auto count, unsigned number, auto from, [[maybe_unused]] int next_bytes, auto use) {
        constexpr int COUNT = decltype(count)::value;
#if THROUGH_CLUSTER
        late = late || !await(inbox, collected & 1);
        __syncwarp();
        for (int i = tid; i < COUNT; i += THREADS) use(i, sum_in_order<GRID_K>(received + i, COUNT));
        ++collected;
        if (clerk && !late) expect(inbox, next_bytes);
        cluster_arrive();
#else
        for (int i = tid; i < COUNT; i += THREADS) {
            uint4 v[GRID_K];
            bool all = false;
            for (unsigned spins = 0; !all; ++spins) {
                all = true;
#pragma unroll
                for (int k = 0; k < GRID_K; ++k) v[k] = get_words(from(i, k));
#pragma unroll
                for (int k = 0; k < GRID_K; ++k) all = all && v[k].y == number && v[k].w == number;
                late = late || spins > SPIN_LIMIT;
                all = all || late;
            }
            float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
            for (int k = 0; k < GRID_K; ++k) {
                sum.x += __uint_as_float(v[k].x);
                sum.y += __uint_as_float(v[k].z);
            }
            use(i, sum);
        }
#endif
    };
    constexpr int SUM_BYTES = GRID_K * IN_ROUND * 8, LOGIT_BYTES = GRID_K * WORDS * 8;
    // A round of a warp's sums [column of tiles][16 rows][8 columns][c] to the blocks of the team whose share they are.
    auto spread = [&](int t, [[maybe_unused]] int which, int round, const float(&made)[OUT][ROW_TILES][2][4]) {
        auto send = [&](int tile, int n, int eighth, float2 s) {
            const int pair = tile * 8 + n * 4 + lane % 4, row = eighth * 8 + lane / 4, owner = pair / PAIRS, own_pair = pair % PAIRS;
            const int i = own_pair / PAIRS_TOGETHER * (ROWS * PAIRS_TOGETHER) + row * PAIRS_TOGETHER + own_pair % PAIRS_TOGETHER;
            if (ROUNDS > 1 && i / IN_ROUND != round) return;
#if THROUGH_CLUSTER
            // A barrier whose clerk has given up counts no more: nobody who is late may go on filling it.
            if (!late) send_pair(shared_address(received + rank * IN_ROUND + i - round * IN_ROUND), inbox, owner, s);
#else
            put_pair(sums_at(t, which, team * GRID_K + owner, rank) + i * 2, s, number_at(t));
#endif
        };
        auto each = [&](auto act) {
#pragma unroll
            for (int o = 0; o < OUT; ++o)
                if (has_out(o))
#pragma unroll
                    for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
                        for (int n = 0; n < 2; ++n)
#pragma unroll
                            for (int i = 0; i < 2; ++i)
                                act(first_out + o, n, 2 * m + i, make_float2(made[o][m][n][2 * i], made[o][m][n][2 * i + 1]));
        };
        if constexpr (WARP_K == 1) {
            await_team();
            each(send);
        } else {
            if (round == 0) {
                each([&](int tile, int n, int eighth, float2 s) {
                    parts[(warp_k * OUT_TILES + tile) * WORDS + word_at<ROWS>(n, eighth)] = s;
                });
                __syncthreads();
            }
            await_team();
            for (int w = tid; w < OUT_TILES * WORDS; w += THREADS) {
                const float2 s = sum_in_order<WARP_K>(parts + w, OUT_TILES * WORDS);
                send(w / WORDS, w % WORDS / (WORDS / 2), w / 32 % (ROWS / 8), s);
            }
        }
    };

    // All rounds; use(i, sum) for the words of this block's share. What is done `meanwhile`, the first are under way.
    auto exchange_sums = [&](int t, int which, const float(&made)[OUT][ROW_TILES][2][4], int next_bytes, auto meanwhile, auto use) {
        for (int round = 0; round < ROUNDS; ++round) {
            spread(t, which, round, made);
            if (round == 0) meanwhile();
            collect(number_of<IN_ROUND>(), number_at(t), [&](int i, int k) { return sums_at(t, which, block, k) + (round * IN_ROUND + i) * 2; },
                    round + 1 < ROUNDS ? SUM_BYTES : next_bytes, [&](int i, float2 s) { use(round * IN_ROUND + i, s); });
        }
    };

    // ---- Products
    using Sums = float[OUT][ROW_TILES][2][4];
    // h W_l for this block's part of it.
    auto forward = [&](Sums& made) {
        clear(&made[0][0][0][0], OUT * ROW_TILES * 8);
        for (int s = 0; s < FORWARD_SLOTS; ++s) {
            uint4 words[OUT][2];
            const int there = DEPTH * WARP_K == IN_TILES ? DEPTH : smaller(DEPTH, IN_TILES - depth_at);
            take(words, there - 2 * s);
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                const int i = 2 * s + part;
                if (i < there)
#pragma unroll
                    for (int m = 0; m < ROW_TILES; ++m) {
                        unsigned a[4];
                        load_matrices<false>(a, rows_of<ROWS>(slab + (depth_at + i) * TILE, m));
#pragma unroll
                        for (int o = 0; o < OUT; ++o)
                            if (has_out(o)) {
                                multiply_add(made[o][m][0], a, words[o][part].x, words[o][part].y);
                                multiply_add(made[o][m][1], a, words[o][part].z, words[o][part].w);
                            }
                    }
            }
        }
        order_read_before_write();  // other blocks update these weights once they have all blocks' sums, and what follows from them
        __syncwarp();
    };
    // words[0], words[1]: high and low parts of a tile, less rate * gradient (z^T h, with z^T as operands a); to memory at `to`.
    auto descend = [&](uint4(&words)[2], const unsigned(&zt)[ROW_TILES][4], const unsigned(&h)[ROW_TILES][4], uint4* to) {
        float g[8];
        clear(g, 8);
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) {
            multiply_add(g, zt[m], h[m][0], h[m][1]);
            multiply_add(g + 4, zt[m], h[m][2], h[m][3]);
        }
        subtract(words[0].x, words[1].x, rate * g[0], rate * g[1]);
        subtract(words[0].z, words[1].z, rate * g[2], rate * g[3]);
        subtract(words[0].y, words[1].y, rate * g[4], rate * g[5]);
        subtract(words[0].w, words[1].w, rate * g[6], rate * g[7]);
        __stcg(to, words[0]);
        __stcg(to + LOW, words[1]);
    };
    // dz_l W_l^T with the old W_l for this block's part of it, and the update of that part.
    auto backward = [&](int l, Sums& made) {
        clear(&made[0][0][0][0], OUT * ROW_TILES * 8);
        unsigned h[OUT][ROW_TILES][4];
#pragma unroll
        for (int o = 0; o < OUT; ++o)
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m)
                // A column that is not there: whatever, but nothing that the team may already be sending to.
                load_matrices<true>(h[o][m], rows_of<ROWS>(has_out(o) ? beside + (first_out + o) * TILE : slab, m));
        uint4* at = planes + (size_t(first_tile_of(l)) + size_t(team * OUT_TILES + first_out) * TILES + rank * IN_TILES + depth_at) * 32 + lane;
        for (int s = 0; s < DEPTH; ++s, at += 32) {
            uint4 words[OUT][2];
            const bool there = DEPTH * WARP_K == IN_TILES || depth_at + s < IN_TILES;
            take(words, there ? 2 : 0);
            if (there) {
                unsigned z[ROW_TILES][4], zt[ROW_TILES][4];
                const half* const tile = slab + (depth_at + s) * TILE;
#pragma unroll
                for (int m = 0; m < ROW_TILES; ++m) {
                    load_matrices<false>(z[m], rows_of<ROWS>(tile, m));
                    load_matrices<true>(zt[m], turned_rows<ROWS>(tile, m));
                }
#pragma unroll
                for (int o = 0; o < OUT; ++o)
                    if (has_out(o)) {
                        const uint4 high = words[o][0];
                        const unsigned low_n[2] = {transpose(high.x), transpose(high.y)}, high_n[2] = {transpose(high.z), transpose(high.w)};
#pragma unroll
                        for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
                            for (int n = 0; n < 2; ++n) multiply_add(made[o][m][n], z[m], low_n[n], high_n[n]);
                        descend(words[o], zt, h[o], at + o * (size_t(TILES) * 32));
                    }
            }
        }
#if THROUGH_CLUSTER
        order_read_before_write();  // the first layer's gradient is sent to `beside` by blocks that have these sums
#endif
    };
    // The first layer, tile by tile of its depth: update with the batch of step t, and product with the next one.
    auto first_layer = [&](int t, Sums& made) {
        clear(&made[0][0][0][0], OUT * ROW_TILES * 8);
        unsigned zt[OUT][ROW_TILES][4];
#pragma unroll
        for (int o = 0; o < OUT; ++o)
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m)
                load_matrices<true>(zt[o][m], turned_rows<ROWS>(beside + (has_out(o) ? first_out + o : 0) * TILE, m));
        uint4* at = planes + (size_t(x_first + x_at) * TILES + team * OUT_TILES + first_out) * 32 + lane;
        for (int s = 0; s < X_DEPTH; ++s, at += TILES * 32) {
            uint4 words[OUT][2];
            take(words, x_at + s < x_count ? 2 : 0);
            if (x_at + s < x_count) {
                unsigned x[ROW_TILES][4], next[ROW_TILES][4];
#pragma unroll
                for (int m = 0; m < ROW_TILES; ++m) {
                    load_matrices<true>(x[m], rows_of_x(t, m, x_at + s));
                    load_matrices<false>(next[m], rows_of_x(t + 1, m, x_at + s));
                }
#pragma unroll
                for (int o = 0; o < OUT; ++o)
                    if (has_out(o)) {
                        descend(words[o], zt[o], x, at + o * 32);
#pragma unroll
                        for (int m = 0; m < ROW_TILES; ++m) {
                            multiply_add(made[o][m][0], next[m], words[o][0].x, words[o][0].y);
                            multiply_add(made[o][m][1], next[m], words[o][0].z, words[o][0].w);
                        }
                    }
            }
        }
    };
    // The first product of the launch, without an update before it.
    auto first_product = [&](Sums& made) {
        clear(&made[0][0][0][0], OUT * ROW_TILES * 8);
        const uint4* const at = planes + (size_t(x_first + x_at) * TILES + team * OUT_TILES + first_out) * 32 + lane;
        for (int s = 0; s < smaller(X_DEPTH, x_count - x_at); ++s)
#pragma unroll
            for (int o = 0; o < OUT; ++o)
                if (has_out(o)) {
                    const uint4 words = __ldcg(at + (size_t(s) * TILES + o) * 32);
#pragma unroll
                    for (int m = 0; m < ROW_TILES; ++m) {
                        unsigned a[4];
                        load_matrices<false>(a, rows_of_x(0, m, x_at + s));
                        multiply_add(made[o][m][0], a, words.x, words.y);
                        multiply_add(made[o][m][1], a, words.z, words.w);
                    }
                }
    };

    // ---- Biases
    // Sum of a column of a tile over the batch.
    auto column_sum = [](const half* tile, int col) {
        float sum = 0.0f;
#pragma unroll 8
        for (int row = 0; row < ROWS; ++row) sum += __half2float(tile[2 * word_of_pair<ROWS>(col / 2, row) + col % 2]);
        return sum;
    };
    // The blocks with the same slab share the sums of its columns; their owners get them in `bias_steps`.
    auto sum_slab = [&](int layer) {
        for (int i = tid; i < SUMMED * 16; i += THREADS) {
            const int tile = i / 16 * GRID_N + team;
            if (IN_TILES % GRID_N == 0 || tile < IN_TILES)
                __stcg(bias_steps + (size_t(layer) * TILES + rank * IN_TILES + tile) * 16 + i % 16, column_sum(slab + tile * TILE, i % 16));
        }
    };
    auto update_first_bias = [&] {
        for (int i = tid; i < 2 * PAIRS; i += THREADS) {
            const int col = rank * 2 * PAIRS + i;
            bias[i] -= rate * column_sum(beside + col / 16 * TILE, col % 16);
        }
    };
    auto bias_of = [&](int layer, int i) { return reinterpret_cast<const float2*>(bias)[layer * PAIRS + pair_of(i)]; };
    // One warp: all blocks have written the weights of step t, and their sums for the biases.
    auto await_written = [&](int t) {
        if (warp == WARPS - 1) {
            for (int i = lane; i < BLOCKS; i += 32)
                for (unsigned spins = 0; peek(written + i) != number_at(t) && !late; ++spins) late = spins > SPIN_LIMIT;
            __threadfence();
            __syncwarp();
            for (int i = lane; i < HIDDEN * 2 * PAIRS; i += 32) {
                const int layer = 1 + i / (2 * PAIRS), col = i % (2 * PAIRS);
                bias[layer * 2 * PAIRS + col] -= rate * __ldcg(bias_steps + size_t(layer) * TILES * 16 + own_columns + col);
            }
        }
    };

    // ---- Start
    for (int i = tid; i < LAYERS * 2 * PAIRS; i += THREADS)
        bias[i] = __ldcg(biases + size_t(i / (2 * PAIRS)) * TILES * 16 + own_columns + i % (2 * PAIRS));
    if (tid < 16) last_bias[tid] = __ldcg(biases + size_t(LAYERS) * TILES * 16 + tid);
#if THROUGH_CLUSTER
    if (tid == 0) {
        make_barrier(inbox);
        make_barrier(gradient_inbox);
        publish_barriers();
    }
    cluster_sync();
    if (clerk) {
        expect(inbox, SUM_BYTES);
        expect(gradient_inbox, OUT_TILES * TILE * 2);
    }
    cluster_arrive();  // nothing has been sent yet that anybody could still need
#endif
    __syncthreads();
    fetch_x(0);
    commit_copies();
    wait_copies<0>();
    __syncthreads();
    Sums made;
    first_product(made);
#if PROFILE
    marked = clock64();
#endif
    for (int t = 0; t < steps; ++t) {
        // ---- The first activations, and while they are under way, what the step before left to do
        exchange_sums(
            t, FIRST_LAYER, made, SUM_BYTES,
            [&] {
                if (t > 0) update_first_bias();
                __syncthreads();  // all have left the batch of that step, too
            },
            [&](int i, float2 s) {
                const unsigned word = activation(s, bias_of(0, i));
                masks[i] = word;
                publish(t, 0, i, word);
            });
        MARK(0)
        if (t > 0) await_written(t - 1);
        __syncthreads();
        fetch_x(t + 1);
        start_stream();
        prepare_batches(t);
        MARK(1)

        // ---- Forward
#pragma unroll 1
        for (int l = 1; l < LAYERS; ++l) {
            receive(t, l - 1, rank * IN_TILES, number_of<IN_TILES>(), slab);
            __syncthreads();
            MARK(2)
            forward(made);
            MARK(3)
            exchange_sums(
                t, l - 1, made, l < HIDDEN ? SUM_BYTES : LOGIT_BYTES, [] {},
                [&](int i, float2 s) {
                    const unsigned word = activation(s, bias_of(l, i));
                    if (l < HIDDEN) masks[l * SHARE + i] = word;
                    order_read_before_write();
                    publish(t, l, i, word);
                });
            __syncthreads();  // all have left the slab
            MARK(4)
        }

        // ---- Logits, loss, and the gradient of the last activations, in every team; a warp keeps its tiles of the slab
        Master last[LAST];
        float4* const last_at = reinterpret_cast<float4*>(last_copies) + ((size_t(team) * TILES + rank * IN_TILES + warp * LAST) * 32 + lane) * 2;
        auto has_last = [&](int j) { return IN_TILES % (LAST * WARPS) == 0 || warp * LAST + j < IN_TILES; };
#pragma unroll
        for (int j = 0; j < LAST; ++j)
            if (has_last(j))
#pragma unroll
                for (int i = 0; i < 2; ++i) reinterpret_cast<float4*>(last[j])[i] = last_at[j * 64 + i];
        receive(t, HIDDEN - 1, team * OUT_TILES, number_of<OUT_TILES>(), beside);
        receive(t, HIDDEN, rank * IN_TILES, number_of<IN_TILES>(), slab);
        order_read_before_write();
        __syncthreads();
        MARK(5)
        if (warp < LAST_WARPS) {
            float logits[ROW_TILES][2][4];
            clear(&logits[0][0][0], ROW_TILES * 8);
#pragma unroll
            for (int j = 0; j < LAST; ++j)
                if (has_last(j)) {
                    const uint2 operand[2] = {operand_of(last[j], 0), operand_of(last[j], 1)};
#pragma unroll
                    for (int m = 0; m < ROW_TILES; ++m) {
                        unsigned a[4];
                        load_matrices<false>(a, rows_of<ROWS>(slab + (warp * LAST + j) * TILE, m));
#pragma unroll
                        for (int n = 0; n < 2; ++n) multiply_add(logits[m][n], a, operand[n].x, operand[n].y);
                    }
                }
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
                for (int n = 0; n < 2; ++n)
#pragma unroll
                    for (int i = 0; i < 2; ++i)
                        parts[warp * WORDS + word_at<ROWS>(n, 2 * m + i)] = make_float2(logits[m][n][2 * i], logits[m][n][2 * i + 1]);
        }
        __syncthreads();
        await_team();
        for (int w = tid; w < WORDS; w += THREADS) {
            const float2 s = sum_in_order<LAST_WARPS>(parts + w, WORDS);
#if THROUGH_CLUSTER
            if (late) continue;
#pragma unroll
            for (int k = 0; k < GRID_K; ++k)
                send_pair(shared_address(received + rank * WORDS + w), inbox, rank + k < GRID_K ? rank + k : rank + k - GRID_K, s);
#else
            put_pair(logits_at(t, block) + w * 2, s, number_at(t));
#endif
        }
        MARK(6)
        // A row is in eight lanes, a pair of its columns in each.
        auto word_of_row = [](int i) { return word_of_pair<ROWS>(i % 8, i / 8); };
        collect(number_of<WORDS>(), number_at(t), [&](int i, int k) { return logits_at(t, team * GRID_K + k) + i * 2; }, SUM_BYTES,
                [&](int i, float2 s) { parts[i] = s; });
        order_read_before_write();
        __syncthreads();
        for (int i = tid; i < WORDS; i += THREADS) {
            const int row = i / 8, col = i % 8 * 2, label = label_of[t % 2 * ROWS + row];
            const float2 s = parts[word_of_row(i)], shift = reinterpret_cast<const float2*>(last_bias)[i % 8];
            const float lowest = -3.0e38f;
            float z[2] = {col < CLASSES ? s.x + shift.x : lowest, col + 1 < CLASSES ? s.y + shift.y : lowest}, e[2], sum = 0.0f;
            float largest = z[1] <= z[0] ? z[0] : z[1];
#pragma unroll
            for (int k = 1; k < 8; k *= 2) {
                const float other = __shfl_xor_sync(0xffffffffu, largest, k);
                largest = other <= largest ? largest : other;
            }
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                e[c] = col + c < CLASSES ? __expf(z[c] - largest) : 0.0f;
                sum += e[c];
            }
#pragma unroll
            for (int k = 1; k < 8; k *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, k);
            const float scale = row < BATCH ? __fdividef(1.0f, sum) : 0.0f, one = row < BATCH ? 1.0f : 0.0f;
            words_of(d)[word_of_row(i)] = pack(e[0] * scale - (col == label ? one : 0.0f), e[1] * scale - (col + 1 == label ? one : 0.0f));
            if (label / 2 == i % 8) row_loss[row] = row < BATCH ? __logf(sum) + largest - (label % 2 ? z[1] : z[0]) : 0.0f;
        }
        __syncthreads();
        {
            unsigned dr[ROW_TILES][4], dt[ROW_TILES][4];
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m) {
                load_matrices<false>(dr[m], rows_of<ROWS>(d, m));
                load_matrices<true>(dt[m], turned_rows<ROWS>(d, m));
            }
#pragma unroll
            for (int j = 0; j < LAST; ++j)
                if (has_last(j)) {
                    half* const tile = slab + (warp * LAST + j) * TILE;
                    const uint2 low = operand_of(last[j], 0), high = operand_of(last[j], 1);
                    const unsigned back[2][2] = {{transpose(low.x), transpose(high.x)}, {transpose(low.y), transpose(high.y)}};
                    unsigned z_words[ROW_TILES][4];
                    float g[8];
                    clear(g, 8);
#pragma unroll
                    for (int m = 0; m < ROW_TILES; ++m) {
                        unsigned h[4], ht[4];
                        load_matrices<false>(h, rows_of<ROWS>(tile, m));
                        load_matrices<true>(ht, rows_of<ROWS>(tile, m));
                        multiply_add(g, dt[m], ht[0], ht[1]);
                        multiply_add(g + 4, dt[m], ht[2], ht[3]);
                        float z[2][4];
                        clear(&z[0][0], 8);
#pragma unroll
                        for (int n = 0; n < 2; ++n) multiply_add(z[n], dr[m], back[n][0], back[n][1]);
#pragma unroll
                        for (int i = 0; i < 4; ++i)
                            z_words[m][i] = pack(z[i / 2][i % 2 * 2], z[i / 2][i % 2 * 2 + 1]) & where_positive(h[i]);
                    }
                    __syncwarp();
#pragma unroll
                    for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
                        for (int i = 0; i < 4; ++i) words_of(tile)[word_at<ROWS>(i / 2, 2 * m + i % 2)] = z_words[m][i];
#pragma unroll
                    for (int i = 0; i < 8; ++i) last[j][i] -= rate * g[i];
#pragma unroll
                    for (int i = 0; i < 2; ++i) last_at[j * 64 + i] = reinterpret_cast<const float4*>(last[j])[i];
                }
        }
        if (tid >= THREADS - 16) {
            const int col = tid - (THREADS - 16);
            last_bias[col] -= rate * column_sum(d, col);
        }
        if (block == 0 && warp == 0) {
            float sum = 0.0f;
            for (int row = lane; row < ROWS; row += 32) sum += row_loss[row];
#pragma unroll
            for (int k = 16; k > 0; k /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, k);
            if (lane == 0) loss[(done + t) % slots] = sum / BATCH;
        }
        __syncthreads();
        MARK(7)

        // ---- Backward, W_l between layers l - 1 and l
#pragma unroll 1
        for (int l = HIDDEN; l > 0; --l) {
            if (l < HIDDEN) {
                receive(t, l - 1, team * OUT_TILES, number_of<OUT_TILES>(), beside);
                receive(t, LAYERS + HIDDEN - 1 - l, rank * IN_TILES, number_of<IN_TILES>(), slab);
                __syncthreads();
            }
            MARK(8)
            backward(l, made);
            MARK(9)
            exchange_sums(
                t, 2 * HIDDEN - l, made, SUM_BYTES, [&] { sum_slab(l); },
                [&](int i, float2 s) {
                    const unsigned word = pack(s.x, s.y) & where_positive(masks[(l - 1) * SHARE + i]);
#if THROUGH_CLUSTER
                    if (l == 1) {
                        if (late) return;
#pragma unroll
                        for (int k = 0; k < GRID_K; ++k)
                            send_word(shared_address(words_of(beside) + word_of(i)), gradient_inbox,
                                      rank + k < GRID_K ? rank + k : rank + k - GRID_K, word);
                        return;
                    }
#endif
                    publish(t, LAYERS + HIDDEN - l, i, word);
                });
            __threadfence();  // the new weights, and what becomes of the biases, before anything that follows
            __syncthreads();
            MARK(10)
        }
        if (tid == 0) atomicExch(written + block, number_at(t));

        // ---- The first layer, with this batch and the next
#if THROUGH_CLUSTER
        late = late || !await(gradient_inbox, t & 1);
        if (clerk && !late) expect(gradient_inbox, OUT_TILES * TILE * 2);
#else
        receive(t, PHASES - 1, team * OUT_TILES, number_of<OUT_TILES>(), beside);
#endif
        __syncthreads();
        MARK(11)
        first_layer(t, made);
        MARK(12)
    }

    update_first_bias();
    await_written(steps - 1);
    const bool failure = __syncthreads_or(late) != 0;
    for (int i = tid; i < LAYERS * 2 * PAIRS; i += THREADS)
        __stcg(biases + size_t(i / (2 * PAIRS)) * TILES * 16 + own_columns + i % (2 * PAIRS), bias[i]);
    if (block == 0 && tid < 16) __stcg(biases + size_t(LAYERS) * TILES * 16 + tid, last_bias[tid]);
    if (failure) {
        if (tid == 0) *failed = 1;
    } else if (block == 0 && tid == 0) {
        __stcg(position, done + steps);
    }
#if PROFILE
    if (block == 0 && tid == 0)
        for (int i = 0; i < smaller(slots, 16); ++i) loss[i] = float(cycles[i]) / float(steps);
#endif
#if THROUGH_CLUSTER
    cluster_wait();
    cluster_sync();  // nobody leaves while others may still send to it
#endif
}
