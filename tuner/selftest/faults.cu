// faults: y = 2 x + 1 for n numbers in fp32 by way of shared memory, right or with the fault that FAULT names.
//
//   block: | t0 t1 ... t63 |   thread t brings the number of thread 63 - t to shared memory: tile[63 - t] = x
//          |--- barrier ---|
//          | t0 t1 ... t63 |   y = 2 tile[t] + 1
//
// Macros with defaults, so that the file compiles alone: FAULT (a name of `Fault`) and N (the n numbers). faults.py says
// what each fault is there for.
#if !defined(__CUDACC_RTC__)
#include <stdio.h>
#endif

#ifndef MNT_DYNAMIC_SHARED
#define MNT_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#endif
#ifndef FAULT
#define FAULT none
#endif
#ifndef N
#define N 1000
#endif

enum class Fault {
    none,
    large_shared,
    hang,
    out_of_bounds,
    illegal_address,
    trap,
    nan,
    outlier,
    partial,
    stale,
    read_outside,
    changed_input,
    counter,
    race,
    order,
    shared_limit,
    threads_limit,
    cooperative_limit,
    compile_error,
    printf_flood,
    slow,
};

constexpr Fault fault = Fault::FAULT;

static_assert(fault != Fault::compile_error, "this fault is one for the compiler");

// Long enough to be a hang for every time limit, yet not for ever: should nobody be left to kill the process, the GPU
// comes free by itself, after some minutes.
constexpr long long HANG_CYCLES = 1LL << 38;

// How late the second half of a block is in a race.
constexpr long long LATE_CYCLES = 20000;

// A few milliseconds on a GPU: steps of a xorshift generator, each of which waits for the one before it.
constexpr int SLOW_STEPS = 200 * 1000;

extern "C" __global__ void faults(float* x, float* y, unsigned* arrived) {
    MNT_DYNAMIC_SHARED(raw);
    float* tile = reinterpret_cast<float*>(raw);
    const int t = threadIdx.x, last = blockDim.x - 1;
    const int first = blockIdx.x * blockDim.x, i = first + t;

    if (fault == Fault::hang) {
        const long long start = clock64();
        unsigned turns = 0;
        while (*(volatile unsigned*)arrived == 0 && (++turns % 1024 != 0 || clock64() - start < HANG_CYCLES)) {
        }
    }
    if (fault == Fault::race) {
        tile[t] = 0.0f;  // so that what is read too early is never right by chance
        __syncthreads();
        const long long start = clock64();
        while (t > last / 2 && clock64() - start < LATE_CYCLES) {
        }
    }

    const int mirrored = first + last - t;
    tile[last - t] = mirrored < N ? x[mirrored] : 0.0f;
    if (fault != Fault::race) __syncthreads();
    float result = 2.0f * tile[t] + 1.0f;

    if (fault == Fault::trap && i == 17) __trap();
    if (fault == Fault::nan && i == 17) result = __int_as_float(0x7fffffff);
    if (fault == Fault::outlier && i == 17) result += 1.5e-4f;
    if (fault == Fault::stale && i < N) result = fmaxf(result, y[i]);
    if (fault == Fault::read_outside && i < N) result += 0.0f * x[i + 64];
    if (fault == Fault::changed_input && i == 0) x[N - 1] += 1.0f;
    if (fault == Fault::counter && i == 0) *arrived = 1;
    if (fault == Fault::printf_flood && i < 1000) printf("y[%d] = %f, as nobody needs to know\n", i, result);
    if (fault == Fault::illegal_address) y[i - (1LL << 40)] = result;
    if (fault == Fault::order) {  // a warp's place in the queue shows in the last bits; whoever is last clears up
        const unsigned warps = gridDim.x * blockDim.x / 32;
        const unsigned place = __shfl_sync(0xffffffffu, t % 32 == 0 ? atomicAdd(arrived, 1u) : 0u, 0);
        result = __int_as_float(__float_as_int(result) + place % 4);
        if (t % 32 == 0 && place == warps - 1) *arrived = 0;
    }
    if (fault == Fault::slow && i == 0) {
        unsigned state = 1 + __float_as_int(result) % 1024u;
        for (int step = 0; step < SLOW_STEPS; ++step) {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
        }
        if (state == 0) result = 0.0f;  // it never is, which the compiler does not know
    }

    const int written = fault == Fault::partial ? N - N % 64 : fault == Fault::out_of_bounds ? N + 8 : N;
    if (i < written) y[i] = result;
}
