// y = x for n numbers, by way of shared memory. FAULT 1: reads past the end. 2: writes past the end. 3: writes just
// beside the end, where no page boundary helps. 4: overruns its shared memory. 5: overruns a static array.
// 6: reads before the start. 7, 8: writes just before or behind its shared memory.
// 9: overruns the static array by a pointer, where g++ does not know its size.
extern "C" __global__ void out_of_bounds(const float* x, float* y, int n) {
    MNT_DYNAMIC_SHARED(raw);
    __shared__ float box[128];
    float* shared = reinterpret_cast<float*>(raw);
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n || FAULT == 1) shared[threadIdx.x] = x[FAULT == 6 ? i - 32768 : i];
    if (FAULT == 7) shared[-1] = 0.0f;
    if (FAULT == 8) shared[121] = 0.0f;
    if (FAULT == 4) shared[threadIdx.x + 1] = 0.0f;
    box[threadIdx.x + (FAULT == 5)] = 0.0f;
    float* volatile inside = box;
    if (FAULT == 9) inside[256 + threadIdx.x] = 0.0f;
    if (i < n) y[i] = shared[threadIdx.x];
    if (i == n - 1 && FAULT == 2) y[i + 32768] = 0.0f;
    if (i == n - 1 && FAULT == 3) y[n] = 0.0f;
}
