// Each thread takes its neighbour's number. FAULT 1: half of the lanes never come to the shuffle. FAULT 2: they come to
// another one. FAULT 3: the mask leaves out the caller.
extern "C" __global__ void partial_shuffle(const int* x, int* y) {
    const int i = threadIdx.x;
    int taken = 0;
    const unsigned mask = FAULT == 3 ? 0x0000ffffu : 0xffffffffu;
    if (FAULT != 1 && FAULT != 2) {
        taken = __shfl_xor_sync(mask, x[i], 1);
    } else if (i < 16) {
        taken = __shfl_xor_sync(mask, x[i], 1);
    } else if (FAULT == 2) {
        taken = __shfl_xor_sync(mask, x[i], 1);
    }
    __syncthreads();
    y[i] = taken;
}
