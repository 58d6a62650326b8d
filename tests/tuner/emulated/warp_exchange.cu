// Shuffles, votes and counting barriers.
#include <cuda_fp16.h>
#include <cooperative_groups.h>
namespace groups = cooperative_groups;
extern "C" __global__ void warp_exchange(int* out) {
    const int i = threadIdx.x, n = blockDim.x;
    const unsigned all = 0xffffffffu;
    out[0 * n + i] = __shfl_sync(all, i, 3);
    out[1 * n + i] = __shfl_sync(all, i, 3, 8);
    out[2 * n + i] = __shfl_xor_sync(all, i, 5);
    out[3 * n + i] = __shfl_down_sync(all, i, 4, 16);
    out[4 * n + i] = __shfl_up_sync(all, i, 4, 16);
    out[5 * n + i] = int(__ballot_sync(all, i % 3 == 0));
    out[6 * n + i] = __any_sync(all, i == 40) + 2 * __all_sync(all, i < 32);
    out[7 * n + i] = __syncthreads_count(i % 5 == 0);
    out[8 * n + i] = __syncthreads_and(i < n) + 2 * __syncthreads_and(i != 9) + 4 * __syncthreads_or(i == 9);
    const half2 pair = __shfl_xor_sync(all, __floats2half2_rn(float(i), 0.5f), 1);
    out[9 * n + i] = int(__low2float(pair));
    auto tile = groups::tiled_partition<8>(groups::this_thread_block());
    int sum = i;
    for (int lanes = 4; lanes > 0; lanes /= 2) sum += tile.shfl_xor(sum, lanes);
    out[10 * n + i] = sum;
    if (i % 32 < 8) out[11 * n + i] = __shfl_sync(0xffu, i, 7);
    else out[11 * n + i] = -1;
}
