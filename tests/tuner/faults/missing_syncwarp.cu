// Swaps neighbours within a warp through static shared memory. FAULT 1: no __syncwarp between write and read.
extern "C" __global__ void missing_syncwarp(const float* x, float* y) {
    __shared__ float shared[64];
    const int i = threadIdx.x;
    shared[i] = x[i];
    if (FAULT != 1) __syncwarp();
    y[i] = shared[i ^ 1];
}
