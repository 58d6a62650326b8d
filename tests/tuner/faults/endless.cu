// Block 0 waits for block 1's flag. FAULT 1: block 1 never raises it. FAULT 2: a loop that waits for nobody and never
// ends. FAULT 3: as 2, in one thread while the others wait at a barrier.
extern "C" __global__ void endless(volatile int* flag, float* y) {
    if (FAULT == 2)
        while (*flag == 0) {}
    if (FAULT == 3 && threadIdx.x == 3)
        while (*flag == 0) {}
    if (FAULT == 3) __syncthreads();
    if (blockIdx.x == 1) {
        if (threadIdx.x == 0 && FAULT != 1) {
            __threadfence();
            *flag = 1;
        }
    } else {
        while (*flag == 0) __nanosleep(20);
        y[threadIdx.x] = 1.0f;
    }
}
