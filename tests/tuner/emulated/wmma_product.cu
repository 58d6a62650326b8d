// d = a b + c for one tile, of every shape, layout and accumulator.
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void wmma_product(const half* a, const half* b, const SUM* c, SUM* d, int leading_a,
                                        int leading_b, int leading_c) {
    wmma::fragment<wmma::matrix_a, TILE_M, TILE_N, 16, half, wmma::LAYOUT_A> fragment_a;
    wmma::fragment<wmma::matrix_b, TILE_M, TILE_N, 16, half, wmma::LAYOUT_B> fragment_b;
    wmma::fragment<wmma::accumulator, TILE_M, TILE_N, 16, SUM> sum;
    wmma::load_matrix_sync(fragment_a, a, leading_a);
    wmma::load_matrix_sync(fragment_b, b, leading_b);
    wmma::load_matrix_sync(sum, c, leading_c, wmma::LAYOUT_C);
    wmma::mma_sync(sum, fragment_a, fragment_b, sum);
    for (int i = 0; i < sum.num_elements; ++i) sum.x[i] = sum.x[i] * SUM(2.0f);
    wmma::store_matrix_sync(d, sum, leading_c, wmma::LAYOUT_C);
}
