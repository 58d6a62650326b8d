// axpy: y = a x + y for n numbers in fp32.
//
//   A block serves THREADS * PER_THREAD vectors of VECTOR numbers. Neighbouring threads read neighbouring vectors:
//
//   block 0: | t0 t1 ... | t0 t1 ... |  block 1: | t0 t1 ... | ...        (PER_THREAD = 2)
//
// Tunables: THREADS PER_THREAD VECTOR, macros with defaults, so that the file compiles alone.
#include <cuda_runtime.h>

#ifndef THREADS
#define THREADS 128
#endif
#ifndef PER_THREAD
#define PER_THREAD 1
#endif
#ifndef VECTOR
#define VECTOR 4
#endif

static_assert(VECTOR == 1 || VECTOR == 4, "a vector is a float or a float4");

extern "C" __global__ void __launch_bounds__(THREADS) axpy(const float* x, float* y, float a, int n) {
    for (int i = 0; i < PER_THREAD; ++i) {
        const int at = ((blockIdx.x * PER_THREAD + i) * THREADS + threadIdx.x) * VECTOR;
        if (VECTOR == 4 && at + 4 <= n) {
            const float4 p = *reinterpret_cast<const float4*>(x + at);
            float4 q = *reinterpret_cast<const float4*>(y + at);
            q = make_float4(a * p.x + q.x, a * p.y + q.y, a * p.z + q.z, a * p.w + q.w);
            *reinterpret_cast<float4*>(y + at) = q;
        } else {  // single numbers, and the tail that is no whole vector
            for (int j = at; j < at + VECTOR && j < n; ++j) y[j] = a * x[j] + y[j];
        }
    }
}
