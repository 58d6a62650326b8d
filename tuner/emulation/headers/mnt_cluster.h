// Stands in for what PTX offers the blocks of a cluster (sm_90): addresses in each other's shared memory, st.async,
// memory barriers (mbarrier) that count the bytes which arrive, and the cluster's own barrier in two halves. Kernels
// call these where __MNT_EMULATION__ is defined, and inline PTX elsewhere.
//
// A cluster is `Launch.cluster` consecutive blocks. Addresses are numbers, as PTX's: an own one names a byte of the
// dynamic shared memory of whoever uses it, a mapped one also says of which block. Static shared memory has none.
//
// st.async is asynchronous: its destination is poisoned at once, and the data land later, at the latest when a thread
// polls the memory barrier and all that the phase waits for is under way. Seed 0 holds everything back until then,
// seed 1 nothing, others are random in delay and order. So a missing wait shows as a wrong result, and so does a
// message to what is still being read.
#pragma once

#include <cuda_runtime.h>

// cvta to shared: the number of an own place, 0 for the first byte.
inline unsigned mnt_shared_address(const void* pointer, MNT_SITE) {
    return mnt_emulation_shared_address(pointer, file_, line_);
}
// mapa: the same place in the shared memory of block `rank` of the cluster.
inline unsigned mnt_map_shared(unsigned address, unsigned rank, MNT_SITE) {
    return mnt_emulation_map_shared(address, rank, file_, line_);
}

// st.async with complete_tx, of 4 or 8 bytes. Both addresses lie in the same block.
template <class T>
MNT_UNCHECKED inline void mnt_store_async(unsigned place, unsigned barrier, T data, MNT_SITE) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "st.async sends a word or a pair of words");
    mnt_emulation_store_async(place, barrier, &data, sizeof data, file_, line_);
}

// mbarrier.init; `count` arrivals end a phase, once all bytes have come.
inline void mnt_make_barrier(unsigned barrier, unsigned count, MNT_SITE) {
    mnt_emulation_make_barrier(barrier, count, file_, line_);
}
// fence.mbarrier_init: with the cluster barrier after it, other blocks may send to what this thread has made.
inline void mnt_publish_barriers() { mnt_emulation_publish_barriers(); }
// mbarrier.arrive.expect_tx
inline void mnt_expect(unsigned barrier, unsigned bytes, MNT_SITE) {
    mnt_emulation_expect(barrier, bytes, file_, line_);
}
// mbarrier.try_wait.parity: whether the phase of this parity has ended. Gives other threads a turn where it has not.
inline bool mnt_has_completed(unsigned barrier, unsigned parity, MNT_SITE) {
    return mnt_emulation_has_completed(barrier, parity, file_, line_);
}

// barrier.cluster.arrive and .wait, not aligned: each thread of the cluster does one, then the other, in turn.
inline void mnt_cluster_arrive(MNT_SITE) { mnt_emulation_cluster_arrive(file_, line_); }
inline void mnt_cluster_wait(MNT_SITE) { mnt_emulation_cluster_wait(file_, line_); }
// Both, aligned: the threads of a warp come here together.
inline void mnt_cluster_sync(MNT_SITE) {
    mnt_emulation_collective(0xffffffffu, MNT_CLUSTER_BARRIER, nullptr, nullptr, file_, line_);
    mnt_emulation_cluster_arrive(file_, line_);
    mnt_emulation_cluster_wait(file_, line_);
}
