// Swaps neighbours after an asynchronous copy to shared memory. FAULT 1: nothing waits for the copy. FAULT 2: it waits
// for all but the last group, which is the copy's.
#include <cuda_pipeline.h>
extern "C" __global__ void missing_wait(const float4* x, float4* y) {
    MNT_DYNAMIC_SHARED(raw);
    float4* shared = reinterpret_cast<float4*>(raw);
    const int i = threadIdx.x;
    __pipeline_memcpy_async(&shared[i], &x[i], 16);
    __pipeline_commit();
    if (FAULT == 0) __pipeline_wait_prior(0);
    if (FAULT == 2) __pipeline_wait_prior(1);
    __syncthreads();
    y[i] = shared[i ^ 1];
}
