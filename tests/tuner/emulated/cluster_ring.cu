// Blocks of a cluster pass numbers to the next rank, `rounds` times, by st.async; y[block][i] is what thread i of a block
// holds at the end: x of the block `rounds` ranks before, and the number of rounds.
#include <mnt_cluster.h>
extern "C" __global__ void cluster_ring(const float* x, float2* y, int rounds, int size) {
    MNT_DYNAMIC_SHARED(raw);
    float2* inbox = reinterpret_cast<float2*>(raw);
    const int i = threadIdx.x, threads = blockDim.x, rank = blockIdx.x % size;
    const unsigned place = mnt_shared_address(inbox + i), barrier = mnt_shared_address(inbox + threads);
    if (i == 0) {
        mnt_make_barrier(barrier, 1);
        mnt_publish_barriers();
    }
    mnt_cluster_sync();
    float2 mine = make_float2(x[blockIdx.x * threads + i], 0.0f);
    for (int round = 0; round < rounds; ++round) {
        const unsigned next = unsigned(rank + 1) % unsigned(size);
        if (i == 0) mnt_expect(barrier, unsigned(threads) * 8);
        mnt_store_async(mnt_map_shared(place, next), mnt_map_shared(barrier, next), make_float2(mine.x, mine.y + 1));
        while (!mnt_has_completed(barrier, unsigned(round) & 1)) {}
        mine = inbox[i];
        mnt_cluster_arrive();
        mnt_cluster_wait();
    }
    y[blockIdx.x * threads + i] = mine;
}
