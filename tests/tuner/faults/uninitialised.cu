// C = A B for one 16x16 tile, A copied to shared memory first. FAULT 1: its last row is not. 2: the accumulator is not
// cleared. 3: the wrong leading dimension reads between the rows. 4: sums an array that nobody has written.
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void uninitialised(const half* a, const half* b, float* c, const float* scratch) {
    MNT_DYNAMIC_SHARED(raw);
    half* shared = reinterpret_cast<half*>(raw);
    for (int i = threadIdx.x; i < (FAULT == 1 ? 15 : 16) * 16; i += 32) shared[i / 16 * 24 + i % 16] = a[i];
    __syncthreads();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fragment_a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fragment_b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    if (FAULT != 2) wmma::fill_fragment(sum, 0.0f);
    wmma::load_matrix_sync(fragment_a, shared, FAULT == 3 ? 16 : 24);
    wmma::load_matrix_sync(fragment_b, b, 16);
    wmma::mma_sync(sum, fragment_a, fragment_b, sum);
    wmma::store_matrix_sync(c, sum, 16, wmma::mem_row_major);
    if (FAULT == 4 && threadIdx.x == 0) c[0] += scratch[3];
}
