// Stands in for the parts of CUDA's cooperative_groups.h that kernels use: grid, block and warp tiles.
#pragma once

#include "cuda_runtime.h"

namespace cooperative_groups {

struct grid_group {
    void sync(MNT_SITE) const { mnt_emulation_grid_barrier(file_, line_); }
    bool is_valid() const { return true; }
    unsigned long long num_blocks() const {
        const dim3 grid = emulation::grid_size();
        return static_cast<unsigned long long>(grid.x) * grid.y * grid.z;
    }
    unsigned long long block_rank() const {
        const dim3 grid = emulation::grid_size();
        const uint3 block = emulation::block_index();
        return (static_cast<unsigned long long>(block.z) * grid.y + block.y) * grid.x + block.x;
    }
    unsigned long long num_threads() const {
        const dim3 block = emulation::block_size();
        return num_blocks() * block.x * block.y * block.z;
    }
    unsigned long long size() const { return num_threads(); }
    unsigned long long thread_rank() const {
        const dim3 block = emulation::block_size();
        return block_rank() * (block.x * block.y * block.z) + emulation::thread_rank();
    }
};

struct thread_block {
    void sync(MNT_SITE) const { mnt_emulation_barrier(MNT_REDUCE_NONE, 0, file_, line_); }
    unsigned thread_rank() const { return emulation::thread_rank(); }
    unsigned num_threads() const {
        const dim3 block = emulation::block_size();
        return block.x * block.y * block.z;
    }
    unsigned size() const { return num_threads(); }
};

template <unsigned Size>
struct thread_block_tile {
    static_assert(Size >= 1 && Size <= 32 && (Size & (Size - 1)) == 0, "a tile is a power of two up to 32");
    unsigned mask() const {
        return Size == 32 ? 0xffffffffu : ((1u << (Size & 31)) - 1) << (emulation::lane() & ~(Size - 1));
    }
    unsigned thread_rank() const { return emulation::thread_rank() & (Size - 1); }
    unsigned meta_group_rank() const { return emulation::thread_rank() / Size; }
    static constexpr unsigned num_threads() { return Size; }
    static constexpr unsigned size() { return Size; }
    void sync(MNT_SITE) const { __syncwarp(mask(), file_, line_); }
    template <class T>
    T shfl(T value, int source, MNT_SITE) const {
        return __shfl_sync(mask(), value, source, Size, file_, line_);
    }
    template <class T>
    T shfl_xor(T value, int bits, MNT_SITE) const {
        return __shfl_xor_sync(mask(), value, bits, Size, file_, line_);
    }
    template <class T>
    T shfl_down(T value, int delta, MNT_SITE) const {
        return __shfl_down_sync(mask(), value, static_cast<unsigned>(delta), Size, file_, line_);
    }
    template <class T>
    T shfl_up(T value, int delta, MNT_SITE) const {
        return __shfl_up_sync(mask(), value, static_cast<unsigned>(delta), Size, file_, line_);
    }
};

inline grid_group this_grid() { return {}; }
inline thread_block this_thread_block() { return {}; }
template <unsigned Size, class Group>
inline thread_block_tile<Size> tiled_partition(const Group&) {
    return {};
}

}  // namespace cooperative_groups
