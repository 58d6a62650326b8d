// y = x of the same thread in the other block of a cluster of two, by st.async in two rounds. FAULT takes away:
//   1 the waits for the messages               2 the cluster's meeting between the rounds
//   3 the fence after making memory barriers   4 the meeting after that           5 an arrival of one thread
//   6 a wait of all threads                    7 a block, which ends instead of meeting the other
// or adds or changes:
//   9 a message that nobody waits for         10 a message to a block that has ended
//  11 a message to what no memory barrier is  12 a write over a memory barrier   13 a rank beyond the cluster
//  14 a place beyond shared memory            15 a thread that waits for its block, not its cluster
//  16 a phase that ends before somebody has seen the end of the one before       17 a second arrival in a phase
//  18 a memory barrier of another block than the place's                         19 a read after the arrival
//  20 lanes of a warp at different barriers   21 more bytes expected than can be counted
#include <mnt_cluster.h>
extern "C" __global__ void cluster_message(const float* x, float* y) {
    MNT_DYNAMIC_SHARED(raw);
    float* inbox = reinterpret_cast<float*>(raw);
    const int i = threadIdx.x, threads = blockDim.x, rank = blockIdx.x;
    const unsigned other = 1 - rank, bytes = threads * 4;
    const unsigned barrier = mnt_shared_address(inbox + threads), counter = FAULT == 11 ? barrier - 8 : barrier;
    const unsigned place = mnt_shared_address(inbox + i) + (FAULT == 14 ? bytes + 8 : 0);
    if (i == 0) {
        mnt_make_barrier(barrier, 1);
        if (FAULT != 3) mnt_publish_barriers();
        if (FAULT == 16) mnt_expect(barrier, 0), mnt_expect(barrier, 0);
        mnt_expect(barrier, FAULT == 21 ? 1u << 20 : bytes);
        if (FAULT == 17) mnt_expect(barrier, bytes);
        if (FAULT == 12) inbox[threads] = 1.0f;
    }
    if (FAULT == 20 && i % 2)
        mnt_cluster_sync();
    else if (FAULT != 4)
        mnt_cluster_sync();
    if ((FAULT == 7 || FAULT == 10) && rank == 1) return;
    if (FAULT == 10) __nanosleep(1);
    float sum = 0.0f;
    for (int round = 0; round < 2; ++round) {
        const unsigned to = FAULT == 13 ? 2 : other;
        mnt_store_async(mnt_map_shared(place, FAULT == 7 ? rank : to),
                        mnt_map_shared(counter, FAULT == 18 || FAULT == 7 ? rank : to),
                        x[rank * threads + i] * (round + 1));
        if (FAULT != 1)
            while (!mnt_has_completed(barrier, round & 1)) {}
        if (FAULT == 19 && round == 0) mnt_cluster_arrive();
        sum += inbox[i];
        if (round == 1) break;
        if (i == 0) mnt_expect(barrier, bytes);
        if (FAULT == 15 && i == 0) __syncthreads();
        if (FAULT == 2) continue;
        if (FAULT != 19 && (FAULT != 5 || rank || i)) mnt_cluster_arrive();
        if (FAULT != 6) mnt_cluster_wait();
    }
    y[rank * threads + i] = sum / 3;
    mnt_cluster_sync();
    if (FAULT == 9) mnt_store_async(mnt_map_shared(place, rank), mnt_map_shared(barrier, rank), sum);
}
