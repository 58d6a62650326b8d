// Conversions between half, float and double, and half arithmetic, element by element.
#include <cuda_fp16.h>
extern "C" __global__ void half_conversions(const half* h, float* widened, const float* f, half* narrowed,
                                            const double* d, half* from_double, half* results, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    widened[i] = __half2float(h[i]);
    narrowed[i] = __float2half_rn(f[i]);
    from_double[i] = __double2half(d[i]);
    const half2 pair = __floats2half2_rn(f[i], -f[i]), other = __half2half2(h[i]);
    const float2 wide = __half22float2(__hfma2(pair, other, __hadd2(pair, other)));
    results[4 * i] = h[i] + narrowed[i];
    results[4 * i + 1] = h[i] * narrowed[i];
    results[4 * i + 2] = __float2half(wide.x);
    results[4 * i + 3] = __float2half(wide.y);
}
