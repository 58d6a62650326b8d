// Stands in for CUDA's cuda_pipeline.h under g++: the C functions for cp.async.
//
// A copy happens at the wait that covers it; until then its destination is poisoned, so that a missing wait shows.
#pragma once

#include "cuda_runtime.h"

inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zero_fill = 0, MNT_SITE) {
    mnt_emulation_copy_async(to, from, bytes, zero_fill, file_, line_);
}
inline void __pipeline_commit() { mnt_emulation_copy_commit(); }
inline void __pipeline_wait_prior(int groups_left) { mnt_emulation_copy_wait(groups_left); }
