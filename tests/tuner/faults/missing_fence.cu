// Every block sums 64 numbers; the last to finish sums the blocks' sums. FAULT 1: no fence before the counter.
// FAULT 2: no counter, every block adds to the result without an atomic.
extern "C" __global__ void missing_fence(const float* x, float* partial, unsigned* arrived, float* sum) {
    __shared__ float mine[64];
    __shared__ bool last;
    mine[threadIdx.x] = x[blockIdx.x * 64 + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
        float total = 0.0f;
        for (int i = 0; i < 64; ++i) total += mine[i];
        if (FAULT == 2) *sum += total;
        partial[blockIdx.x] = total;
        if (FAULT != 1) __threadfence();
        last = atomicAdd(arrived, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 1 && FAULT != 2) {
        float total = 0.0f;
        for (unsigned block = 0; block < gridDim.x; ++block) total += partial[block];
        *sum = total;
        *arrived = 0;
    }
}
