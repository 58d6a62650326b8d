// Copies rows of `pitch` halves, 8 at a time. FAULT 1: with a pitch that is no multiple of 8, by 16-byte loads.
// FAULT 2: a WMMA load from an address that is not a multiple of 32 bytes. FAULT 3: an atomic across words.
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void misaligned(const half* x, half* y, int pitch) {
    const int at = threadIdx.x * (FAULT == 1 ? pitch : 8);
    *reinterpret_cast<uint4*>(y + threadIdx.x * 8) = *reinterpret_cast<const uint4*>(x + at);
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fragment;
    wmma::load_matrix_sync(fragment, FAULT == 2 ? x + 8 : x, 16);
    if (FAULT == 3) atomicAdd(reinterpret_cast<int*>(y + 1), 1);
}
