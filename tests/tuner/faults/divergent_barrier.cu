// Copies 64 numbers. FAULT 1: the warps meet at two different barriers. FAULT 2: a thread leaves before the barrier.
// FAULT 3: as 2, but the thread leaves after the others have arrived.
extern "C" __global__ void divergent_barrier(const float* x, float* y) {
    const int i = threadIdx.x;
    if (FAULT == 2 && i == 5) return;
    if (FAULT == 3 && i == 63) return;
    if (FAULT == 1) {
        if (i < 32) __syncthreads();
        else
            __syncthreads();
    } else {
        __syncthreads();
    }
    y[i] = x[i];
}
