// y = 100 / x. FAULT 1: __trap(). 2: a failed assertion. 3: division by zero. 4: a null pointer. 5: endless recursion.
#include <assert.h>
__noinline__ __device__ int deep(int depth, volatile int* y) {
    volatile int space[64];
    space[depth % 64] = depth;
    return depth < 0 ? *y : deep(depth + 1, y) + space[(depth + 1) % 64];
}
extern "C" __global__ void trap(const int* x, int* y, int* nothing) {
    const int i = threadIdx.x;
    if (FAULT == 1 && i == 7) __trap();
    if (FAULT == 2) assert(i != 7);
    if (FAULT == 4) y = nothing;
    y[i] = FAULT == 5 ? deep(0, y) : 100 / (FAULT == 3 ? x[i] - x[i] : x[i]);
}
