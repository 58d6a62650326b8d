// The interface between a kernel that was compiled by g++ and the emulation's runtime: CUDA's keywords and vector
// types, the thread that is running, and the functions that runtime/*.cpp implement.
//
// A CUDA thread is a fiber. The function-like built-ins (barriers, shuffles, WMMA) end in `mnt_emulation_*` calls,
// which may suspend the fiber until the others have arrived.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define __MNT_EMULATION__ 1

#define __global__ __attribute__((used))
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
// The launch says how many consecutive blocks are a cluster.
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__
// Static shared memory: one copy per OS thread, which runs one block at a time (a cooperative launch swaps the copies).
#define __shared__ thread_local
// `extern __shared__` has no meaning for g++, so kernels declare their dynamic shared memory through this macro.
#define MNT_DYNAMIC_SHARED(name) unsigned char* const name = mnt_emulation_thread->block->dynamic_shared

// The shims themselves must not be seen by the race checker; only the kernel's own loads and stores.
#define MNT_UNCHECKED __attribute__((no_sanitize_thread))
// Default arguments take the caller's position, so reports name the line of the kernel.
#define MNT_SITE const char *file_ = __builtin_FILE(), int line_ = __builtin_LINE()

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return {x, y, z}; }
};

struct MntBlock {
    uint3 index;
    dim3 size, grid;
    unsigned char* dynamic_shared;
};

struct MntThread {
    uint3 index;
    unsigned lane;
    unsigned polls;  // loads that could be a spin loop's, see mnt_emulation_poll
    MntBlock* block;
};

enum MntCollective {
    MNT_SHUFFLE,
    MNT_SYNCWARP,
    MNT_VOTE,
    MNT_MMA,
    MNT_FRAGMENT_LOAD,
    MNT_FRAGMENT_STORE,
    MNT_CLUSTER_BARRIER
};
enum MntReduction { MNT_REDUCE_NONE, MNT_REDUCE_COUNT, MNT_REDUCE_AND, MNT_REDUCE_OR };

// A fragment's view of memory: `size` elements in runs of `inner` contiguous ones, runs `leading` elements apart. A
// lane holds `count` consecutive elements. `transposed`: the accumulator is kept row by row, but memory is
// column-major.
struct MntTile {
    int element_bytes, inner, size, count;
    bool transposed;
};

struct MntMma {
    const void *a, *b, *c;
    void* d;
    int m, n;
    bool a_row_major, b_row_major, c_half, d_half;
};

// What one lane brings to a collective; `perform` runs once, when the last lane has arrived. `lanes[i]` is null where
// lane i takes no part.
typedef void (*MntPerform)(void** lanes, unsigned mask);

extern "C" {
extern __thread MntThread* mnt_emulation_thread __attribute__((tls_model("initial-exec")));

int mnt_emulation_barrier(int reduction, int predicate, const char* file, int line);
void mnt_emulation_grid_barrier(const char* file, int line);
void mnt_emulation_collective(unsigned mask, int kind, void* lane, MntPerform perform, const char* file, int line);
void mnt_emulation_mma(void** lanes, unsigned mask);
void mnt_emulation_fragment_load(void* x, const void* memory, unsigned leading, const MntTile* tile, const char* file,
                                 int line);
void mnt_emulation_fragment_store(const void* x, void* memory, unsigned leading, const MntTile* tile, const char* file,
                                  int line);
void mnt_emulation_copy_async(void* to, const void* from, size_t bytes, size_t zero_fill, const char* file, int line);
void mnt_emulation_copy_commit();
void mnt_emulation_copy_wait(int groups_left);
// Clusters; mnt_cluster.h says what each of these is.
unsigned mnt_emulation_shared_address(const void* pointer, const char* file, int line);
unsigned mnt_emulation_map_shared(unsigned address, unsigned rank, const char* file, int line);
void mnt_emulation_store_async(unsigned place, unsigned barrier, const void* data, int bytes, const char* file,
                               int line);
void mnt_emulation_make_barrier(unsigned barrier, unsigned count, const char* file, int line);
void mnt_emulation_publish_barriers();
void mnt_emulation_expect(unsigned barrier, unsigned bytes, const char* file, int line);
bool mnt_emulation_has_completed(unsigned barrier, unsigned parity, const char* file, int line);
void mnt_emulation_cluster_arrive(const char* file, int line);
void mnt_emulation_cluster_wait(const char* file, int line);
void mnt_emulation_trap(const char* what, const char* file, int line) __attribute__((noreturn));
long long mnt_emulation_clock();

// Lets every other thread that can run do so first. A loop that waits for another thread must call it (or use
// __nanosleep, an atomic, or __ldcg, which do).
void mnt_emulation_yield();

// For the race checker (cheap in a build that is not checked).
void mnt_emulation_fence();
void mnt_emulation_atomic_access(const void* address, int bytes, bool write, const char* file, int line);
void mnt_emulation_cached_access(const void* address, int bytes, bool write, const char* file, int line);
}

// Called by every load that a spin loop could be made of. Yielding at each would be slow, never would hang.
MNT_UNCHECKED inline void mnt_emulation_poll() {
    if (++mnt_emulation_thread->polls % 64 == 0) mnt_emulation_yield();
}

namespace emulation {
MNT_UNCHECKED inline uint3 thread_index() { return mnt_emulation_thread->index; }
MNT_UNCHECKED inline uint3 block_index() { return mnt_emulation_thread->block->index; }
MNT_UNCHECKED inline dim3 block_size() { return mnt_emulation_thread->block->size; }
MNT_UNCHECKED inline dim3 grid_size() { return mnt_emulation_thread->block->grid; }
MNT_UNCHECKED inline unsigned lane() { return mnt_emulation_thread->lane; }
MNT_UNCHECKED inline unsigned thread_rank() {
    const uint3 t = thread_index();
    const dim3 b = block_size();
    return (t.z * b.y + t.y) * b.x + t.x;
}
}  // namespace emulation

#ifndef MNT_EMULATION_RUNTIME
#define threadIdx (emulation::thread_index())
#define blockIdx (emulation::block_index())
#define blockDim (emulation::block_size())
#define gridDim (emulation::grid_size())
constexpr int warpSize = 32;
#endif
