// Reverses 128 numbers through shared memory. FAULT 1: nothing waits for the writers. FAULT 2: nothing waits for the
// readers before the second round overwrites what they read.
extern "C" __global__ void missing_barrier(const float* x, float* y) {
    MNT_DYNAMIC_SHARED(raw);
    float* shared = reinterpret_cast<float*>(raw);
    const int i = threadIdx.x;
    for (int round = 0; round < 2; ++round) {
        shared[i] = x[round * 128 + i];
        if (FAULT != 1) __syncthreads();
        y[round * 128 + i] = shared[127 - i];
        if (FAULT != 2) __syncthreads();
    }
}
