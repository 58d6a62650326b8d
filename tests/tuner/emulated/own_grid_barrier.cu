// Blocks take turns by a barrier of their own: a counter that each block's first thread raises, and spins on.
// SPIN chooses what the loop reads with. Each round every block adds its neighbour's number of the round before.
extern "C" __global__ void own_grid_barrier(unsigned* arrived, int* numbers, int rounds) {
    const unsigned blocks = gridDim.x, block = blockIdx.x;
    for (int round = 0; round < rounds; ++round) {
        const int* from = numbers + round % 2 * blocks;
        int* to = numbers + (round + 1) % 2 * blocks;
        if (threadIdx.x == 0) to[block] = from[block] + __ldcg(from + (block + 1) % blocks);
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(arrived, 1);
            const unsigned wanted = unsigned(round + 1) * blocks;
            if (SPIN == 0) while (__ldcg(arrived) < wanted) {}
            if (SPIN == 1) while (atomicAdd(arrived, 0) < wanted) {}
            if (SPIN == 2) while (*const_cast<volatile unsigned*>(arrived) < wanted) mnt_emulation_yield();
            __threadfence();
        }
        __syncthreads();
    }
}
