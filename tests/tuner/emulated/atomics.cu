// Every atomic function from many blocks at once.
extern "C" __global__ void atomics(int* a, unsigned* u, float* f, unsigned long long* wide) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(a, 1);
    atomicMax(a + 1, i);
    atomicMin(a + 2, -i);
    atomicOr(u, 1u << i % 32);
    atomicXor(u + 1, 1u << i % 32);
    atomicInc(u + 2, 9);
    while (atomicCAS(u + 3, 0u, 1u) != 0) {}  // a lock around an ordinary sum
    __threadfence();
    f[1] += 1.0f;
    __threadfence();
    atomicExch(u + 3, 0);
    atomicAdd(f, 0.5f);
    atomicAdd(wide, 1ull << 32);
}
