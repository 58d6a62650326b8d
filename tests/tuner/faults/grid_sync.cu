// y[i] = x[i] + x of the same thread one block further, in two phases. FAULT 1: the grid does not meet between them.
// FAULT 2: block 0 leaves early. FAULT 3: half of block 0 waits for its block instead, the other half for the grid.
#include <cooperative_groups.h>
namespace groups = cooperative_groups;
extern "C" __global__ void grid_sync(const float* x, float* copy, float* y) {
    groups::grid_group grid = groups::this_grid();
    const unsigned long long i = grid.thread_rank(), next = (i + blockDim.x) % grid.size();
    copy[i] = x[i];
    if (FAULT == 2 && blockIdx.x == 0) return;
    if (FAULT == 3 && blockIdx.x == 0 && threadIdx.x < 32) __syncthreads();
    if (FAULT != 1) grid.sync();
    y[i] = x[i] + copy[next];
}
