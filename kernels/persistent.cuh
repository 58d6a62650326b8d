// What a kernel needs whose blocks all stay on the GPU and send each other words, without a barrier between them.
//
// Two ways:
//   through L2 (any GPU, a cooperative launch): 4 bytes of data travel in one 8-byte store with a number beside them, and the
//     reader polls until the number is the one that it waits for. The number says which step; places alternate, so that
//     nobody overwrites what a slower block has not read.
//   within a cluster (sm_90): st.async into another block's shared memory; a memory barrier there counts the bytes.
// Nobody waits forever: after SPIN_LIMIT polls of L2, or CYCLE_LIMIT cycles at a memory barrier, a wait is given up.
#pragma once
#include "warp_matrix.cuh"
#ifdef __MNT_EMULATION__
#include <mnt_cluster.h>
#endif

#ifndef SPIN_LIMIT
#define SPIN_LIMIT (1u << 22)  // about two seconds on a GPU
#endif
#ifndef CYCLE_LIMIT  // of a wait for a memory barrier, whose polls may each take long
#ifdef __MNT_EMULATION__
#define CYCLE_LIMIT 1000000000000ll  // nanoseconds, in which little happens: the launch's own limit comes first
#else
#define CYCLE_LIMIT 4000000000ll
#endif
#endif

namespace mnt {

template <int Value> struct number_of { static constexpr int value = Value; };

// ---- Through L2 -------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void put_word(uint2* place, unsigned data, unsigned number) {
#ifdef __MNT_EMULATION__
    // A vector is one access on a GPU, but several on a CPU: here data and number must not come apart.
    atomicExch(reinterpret_cast<unsigned long long*>(place), (static_cast<unsigned long long>(number) << 32) | data);
#else
    asm volatile("st.volatile.global.v2.u32 [%0], {%1, %2};" ::"l"(place), "r"(data), "r"(number) : "memory");
#endif
}

// Two words and their numbers: x and z, y and w.
__device__ __forceinline__ uint4 get_words(const uint2* place) {
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

// A word that another block may be writing.
__device__ __forceinline__ unsigned peek(const unsigned* place) {
#ifdef __MNT_EMULATION__
    return __ldcg(place);
#else
    return *static_cast<const volatile unsigned*>(place);
#endif
}

// Between reading what another block will overwrite and the message that lets it, and between that message and overwriting.
// A load whose value has been used has been performed, and no store is made before its time: a GPU needs no fence for that.
// The emulation's race checker follows fences only.
__device__ __forceinline__ void order_read_before_write() {
#ifdef __MNT_EMULATION__
    __threadfence();
#endif
}

// use(i, first word, second word) for each pair of words i < Count that the block's threads share out among themselves, once
// both carry `number`. A few pairs a thread are polled together, in one trip to L2; of many the first one alone, as until it is
// there the others would only be traffic. False where a word did not come in time.
template <int Count, int Threads, typename Use>
__device__ __forceinline__ bool take_words(const uint2* from, unsigned number, bool late, Use use) {
    constexpr int TURNS = ceil_div(Count, Threads), FIRST = TURNS <= 4 ? TURNS : 1, AT_ONCE = smaller(larger(TURNS - FIRST, 1), 8);
    auto take = [&](auto size, int first_turn) {
        constexpr int SIZE = decltype(size)::value;
        uint4 v[SIZE];
        bool all = false;
        for (unsigned spins = 0; !all; ++spins) {
            all = true;
#pragma unroll
            for (int k = 0; k < SIZE; ++k) {
                const int i = (first_turn + k) * Threads + int(threadIdx.x);
                if (i < Count) v[k] = get_words(from + 2 * i);
            }
#pragma unroll
            for (int k = 0; k < SIZE; ++k)
                if ((first_turn + k) * Threads + int(threadIdx.x) < Count) all = all && v[k].y == number && v[k].w == number;
            late = late || spins > SPIN_LIMIT;
            all = all || late;
        }
#pragma unroll
        for (int k = 0; k < SIZE; ++k) {
            const int i = (first_turn + k) * Threads + int(threadIdx.x);
            if (i < Count) use(i, v[k].x, v[k].z);
        }
    };
    take(number_of<FIRST>(), 0);
    for (int turn = FIRST; turn < TURNS; turn += AT_ONCE) take(number_of<AT_ONCE>(), turn);
    return !late;
}

// ---- Within a cluster -------------------------------------------------------------------------------------------------

#if defined(MNT_HAS_CLUSTERS) || defined(__MNT_EMULATION__)
#ifdef __MNT_EMULATION__
__device__ __forceinline__ void cluster_sync() { mnt_cluster_sync(); }
#endif

__device__ __forceinline__ unsigned shared_address(const void* p) {
#ifdef __MNT_EMULATION__
    return mnt_shared_address(p);
#else
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
#endif
}

__device__ __forceinline__ unsigned address_in(unsigned own, unsigned rank) {
#ifdef __MNT_EMULATION__
    return mnt_map_shared(own, rank);
#else
    unsigned remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(own), "r"(rank));
    return remote;
#endif
}

// To `place` in the shared memory of block `rank`, whose memory barrier at `barrier` counts the bytes. Addresses are this block's own.
__device__ __forceinline__ void send_word(unsigned place, unsigned barrier, unsigned rank, unsigned data) {
#ifdef __MNT_EMULATION__
    mnt_store_async(address_in(place, rank), address_in(barrier, rank), data);
#else
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(address_in(place, rank)), "r"(data),
                 "r"(address_in(barrier, rank))
                 : "memory");
#endif
}
__device__ __forceinline__ void send_pair(unsigned place, unsigned barrier, unsigned rank, float2 data) {
#ifdef __MNT_EMULATION__
    mnt_store_async(address_in(place, rank), address_in(barrier, rank), data);
#else
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(address_in(place, rank)),
                 "f"(data.x), "f"(data.y), "r"(address_in(barrier, rank))
                 : "memory");
#endif
}

// One turn of waiting for the phase `parity` of a memory barrier. Without .acquire.cluster, which would empty L1 each time:
// what arrives here is shared memory, and its own barrier counts it.
__device__ __forceinline__ bool has_arrived(unsigned barrier, unsigned parity) {
#ifdef __MNT_EMULATION__
    return mnt_has_completed(barrier, parity);
#else
    unsigned done;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done != 0;
#endif
}

// False where the phase did not come within CYCLE_LIMIT.
__device__ __forceinline__ bool await(unsigned barrier, unsigned parity) {
    if (has_arrived(barrier, parity)) return true;
    const long long since = clock64();
    while (!has_arrived(barrier, parity))
        if (clock64() - since > CYCLE_LIMIT) return false;
    return true;
}

__device__ __forceinline__ void make_barrier(unsigned barrier) {
#ifdef __MNT_EMULATION__
    mnt_make_barrier(barrier, 1);
#else
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barrier) : "memory");
#endif
}
__device__ __forceinline__ void publish_barriers() {
#ifdef __MNT_EMULATION__
    mnt_publish_barriers();
#else
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// This phase ends when so many bytes have arrived.
__device__ __forceinline__ void expect(unsigned barrier, unsigned bytes) {
#ifdef __MNT_EMULATION__
    mnt_expect(barrier, bytes);
#else
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}

// The two halves of a cluster's barrier: all threads say that they have come so far, and later wait until all others have.
__device__ __forceinline__ void cluster_arrive() {
#ifdef __MNT_EMULATION__
    mnt_cluster_arrive();
#else
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#ifdef __MNT_EMULATION__
    mnt_cluster_wait();
#else
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}
#endif

// ---- Activations, tile by tile ----------------------------------------------------------------------------------------
//
// A tile is 16 columns of a batch padded to Rows rows, as 8x8 matrices of 128 bytes each: a warp writes 128 contiguous bytes,
// and ldmatrix meets no bank conflict. A word is a pair of columns of one row.

__device__ __forceinline__ unsigned* words_of(half* tile) { return reinterpret_cast<unsigned*>(tile); }

// The word of a product's sums in row 8 * eighth + lane / 4, columns 8 n + lane % 4 * 2 and the next.
template <int Rows> __device__ __forceinline__ int word_at(int n, int eighth) {
    return (n * (Rows / 8) + eighth) * 32 + int(threadIdx.x % 32);
}
// The word of pair p (0 to 7) in a row.
template <int Rows> __device__ __forceinline__ int word_of_pair(int p, int row) {
    return (p / 4 * (Rows / 8) + row / 8) * 32 + row % 8 * 4 + p % 4;
}

// 16 rows of a tile, the m-th, for load_matrices: as operand a, or transposed as two operands b (columns 8 n and on, of the
// tile's own columns); or, from turned_rows, transposed as operand a.
template <int Rows> __device__ __forceinline__ const half* rows_of(const half* tile, int m) {
    const int lane = int(threadIdx.x % 32);
    return tile + lane / 16 * (Rows * 8) + lane / 8 % 2 * 64 + lane % 8 * 8 + m * 128;
}
template <int Rows> __device__ __forceinline__ const half* turned_rows(const half* tile, int m) {
    const int lane = int(threadIdx.x % 32);
    return tile + lane / 8 % 2 * (Rows * 8) + lane / 16 * 64 + lane % 8 * 8 + m * 128;
}

__device__ __forceinline__ void clear(float* sums, int count) {
    for (int i = 0; i < count; ++i) sums[i] = 0.0f;
}

// relu(s + shift) as fp16.
__device__ __forceinline__ unsigned activation(float2 s, float2 shift) {
    // Not fmaxf, which would turn a NaN into 0 and hide it.
    const float x = s.x + shift.x, y = s.y + shift.y;
    return pack(x < 0.0f ? 0.0f : x, y < 0.0f ? 0.0f : y);
}

}  // namespace mnt
