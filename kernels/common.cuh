// What the kernels share: dynamic shared memory, asynchronous copies, tile loads, and ways for blocks to meet.
//
// sm_75 comes first. What newer architectures add sits behind one wrapper each, with a plain fallback:
//   cp.async (sm_80)                 -> copy_async / commit_copies / wait_copies; plain loads and stores below
//   thread-block clusters (sm_90)    -> cluster_sync / cluster_load; kernels fall back to a workspace in global memory
//   dependent launch (sm_90)         -> wait_for_predecessors / let_successors_start; nothing to do below
// The same files compile with g++ for the emulation, which brings its own headers and defines __MNT_EMULATION__.
#pragma once
// Names in capitals are the kernels' macros; template parameters here are in CamelCase so that no macro can replace them.
#include <cuda_fp16.h>
#include <mma.h>
#ifdef __MNT_EMULATION__
#include <cuda_pipeline.h>
#endif

#ifndef MNT_DYNAMIC_SHARED
#define MNT_DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define MNT_HAS_CP_ASYNC 1
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define MNT_HAS_CLUSTERS 1
#define MNT_HAS_DEPENDENT_LAUNCH 1
#endif

namespace mnt {

using namespace nvcuda;

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
__host__ __device__ constexpr int larger(int a, int b) { return a > b ? a : b; }
__host__ __device__ constexpr int smaller(int a, int b) { return a < b ? a : b; }

// Widest vector, in elements, that divides `pitch` and is at most `most`: rows then start aligned to it.
__host__ __device__ constexpr int vector_width(int pitch, int most) {
    return pitch % most == 0 ? most : vector_width(pitch, most / 2);
}

template <int Bytes> struct vector_of;
template <> struct vector_of<2> { using type = unsigned short; };
template <> struct vector_of<4> { using type = unsigned int; };
template <> struct vector_of<8> { using type = uint2; };
template <> struct vector_of<16> { using type = uint4; };

template <int Bytes> __device__ __forceinline__ void copy_vector(void* to, const void* from) {
    using vector = typename vector_of<Bytes>::type;
    *reinterpret_cast<vector*>(to) = *reinterpret_cast<const vector*>(from);
}

// The same to global memory, for what is read again only after much else: the caches may drop it first.
template <int Bytes> __device__ __forceinline__ void store_streaming(void* to, const void* from) {
    using vector = typename vector_of<Bytes>::type;
    __stcs(reinterpret_cast<vector*>(to), *reinterpret_cast<const vector*>(from));
}

template <int Bytes> __device__ __forceinline__ void zero_vector(void* to) {
    using vector = typename vector_of<Bytes>::type;
    *reinterpret_cast<vector*>(to) = vector{};
}

// ---- Asynchronous copies from global to shared memory -------------------------------------------------------------

// Copy Bytes (aligned to Bytes on both sides). It has arrived after wait_copies() and a __syncthreads().
template <int Bytes> __device__ __forceinline__ void copy_async(void* shared, const void* global) {
#if defined(MNT_HAS_CP_ASYNC)
    if constexpr (Bytes == 16) {
        const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
    } else if constexpr (Bytes >= 4) {
        const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(global), "n"(Bytes) : "memory");
    } else {
        copy_vector<Bytes>(shared, global);  // cp.async moves 4, 8 or 16 bytes
    }
#elif defined(__MNT_EMULATION__)
    if constexpr (Bytes >= 4) {
        __pipeline_memcpy_async(shared, global, Bytes);
    } else {
        copy_vector<Bytes>(shared, global);
    }
#else
    copy_vector<Bytes>(shared, global);
#endif
}

__device__ __forceinline__ void commit_copies() {
#if defined(MNT_HAS_CP_ASYNC)
    asm volatile("cp.async.commit_group;" ::: "memory");
#elif defined(__MNT_EMULATION__)
    __pipeline_commit();
#endif
}

// Wait until at most Pending of the groups that this thread committed are still under way.
template <int Pending> __device__ __forceinline__ void wait_copies() {
#if defined(MNT_HAS_CP_ASYNC)
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
#elif defined(__MNT_EMULATION__)
    __pipeline_wait_prior(Pending);
#endif
}

// Copy the TileRows x TileCols tile at (row, col) of a row-major Rows x Cols matrix into shared memory with leading
// dimension Ld, Width elements at a time. What lies outside the matrix becomes zero, so tails need no care later.
// Width divides Cols and TileCols, so a vector is either inside the matrix or outside, never across its edge.
template <int TileRows, int TileCols, int Ld, int Rows, int Cols, int Width, int Threads, typename T>
__device__ __forceinline__ void load_tile(T* tile, const T* matrix, int row, int col) {
    constexpr int per_row = TileCols / Width, count = TileRows * per_row;
    constexpr int bytes = Width * int(sizeof(T));
#pragma unroll
    for (int i0 = 0; i0 < count; i0 += Threads) {
        const int i = i0 + int(threadIdx.x);
        if (count % Threads == 0 || i < count) {
            const int r = i / per_row, c = i % per_row * Width;
            T* to = tile + r * Ld + c;
            const bool inside = (Rows % TileRows == 0 || row + r < Rows) && (Cols % TileCols == 0 || col + c < Cols);
            if (inside) {
                copy_async<bytes>(to, matrix + size_t(row + r) * Cols + (col + c));
            } else {
                zero_vector<bytes>(to);
            }
        }
    }
}

// ---- The kernel before and the kernel after -------------------------------------------------------------------------

// With a dependent launch (Launch.overlap) a kernel's blocks may start while the kernel before it is still finishing. What
// that kernel writes must not be touched before this returns; what the kernels before that one wrote is there already,
// because every kernel here calls both functions in this order.
__device__ __forceinline__ void wait_for_predecessors() {
#ifdef MNT_HAS_DEPENDENT_LAUNCH
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The blocks of the next kernel may start, as soon as all blocks of this one have said so.
__device__ __forceinline__ void let_successors_start() {
#ifdef MNT_HAS_DEPENDENT_LAUNCH
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- Values across blocks -------------------------------------------------------------------------------------------

// True in every thread of the block that arrives last of `blocks` at `arrived`; all that the others wrote to global
// memory before is then visible. The counter is zero again afterwards. An integer counter decides who sums, never in
// which order: the sum runs over block indices, so the same inputs give the same bits. `shared_flag` is shared memory that
// nobody needs any more.
__device__ __forceinline__ bool arrives_last(unsigned* arrived, unsigned blocks, int* shared_flag) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        const bool last = atomicAdd(arrived, 1u) == blocks - 1;
        if (last) *arrived = 0;
        *shared_flag = last;
    }
    __syncthreads();
    const bool last = *shared_flag != 0;
    if (last) __threadfence();
    return last;
}

#ifdef MNT_HAS_CLUSTERS
// All threads of the cluster meet; shared memory written before is visible to all of them after.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Four floats from the same place `local` in the shared memory of block `rank` of this cluster.
__device__ __forceinline__ float4 cluster_load(const float* local, unsigned rank) {
    const unsigned own = static_cast<unsigned>(__cvta_generic_to_shared(local));
    unsigned remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(own), "r"(rank));
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(remote)
                 : "memory");
    return v;
}
#endif

// Four sums that another block wrote: past L1, which is not coherent between SMs.
__device__ __forceinline__ float4 load_partial(const float* p) { return __ldcg(reinterpret_cast<const float4*>(p)); }

__device__ __forceinline__ float4 operator+(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Four consecutive values as floats, whatever the accumulator's type.
__device__ __forceinline__ float4 load4(const float* p) { return *reinterpret_cast<const float4*>(p); }
__device__ __forceinline__ float4 load4(const half* p) {
    const half2* h = reinterpret_cast<const half2*>(p);
    const float2 a = __half22float2(h[0]), b = __half22float2(h[1]);
    return make_float4(a.x, a.y, b.x, b.y);
}

// Store the first `count` of four values as fp16; `count` below 4 only at a row's end.
template <int Width> __device__ __forceinline__ void store4(half* p, float4 v, int count) {
    if constexpr (Width == 4) {
        half2 h[2] = {__floats2half2_rn(v.x, v.y), __floats2half2_rn(v.z, v.w)};
        *reinterpret_cast<uint2*>(p) = *reinterpret_cast<const uint2*>(h);
    } else {
        const float f[4] = {v.x, v.y, v.z, v.w};
        for (int i = 0; i < 4; ++i)
            if (i < count) p[i] = __float2half_rn(f[i]);
    }
}

}  // namespace mnt
