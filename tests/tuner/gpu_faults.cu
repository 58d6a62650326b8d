// A vector sum with one fault of each kind that a GPU reports in its own way; FAULT chooses, 0 is right.
#ifndef FAULT
#define FAULT 0
#endif
#ifndef N
#define N 1000
#endif

extern "C" __global__ void gpu_faults(const float* x, float* y, unsigned* arrived) {
    extern __shared__ float tile[];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = i < N ? x[i] : 0.0f;
    __syncthreads();
    const float twice = 2.0f * tile[threadIdx.x] + 1.0f;
#if FAULT == 1  // hangs
    while (*(volatile unsigned*)arrived == 0) {
    }
#elif FAULT == 2  // illegal address
    y[(1LL << 40) + i] = twice;
#elif FAULT == 3  // writes past the end of y
    if (i < N + 8) y[i] = twice;
#elif FAULT == 4  // one element is NaN
    if (i < N) y[i] = i == 17 ? __int_as_float(0x7fffffff) : twice;
#elif FAULT == 5  // leaves out the tail
    if (i < N - N % 64) y[i] = twice;
#elif FAULT == 6  // leaves its counter counting
    if (i < N) y[i] = twice;
    if (i == 0) *arrived = 1;
#elif FAULT == 7  // traps
    asm volatile("trap;");
#else
    if (i < N) y[i] = twice;
#endif
}
