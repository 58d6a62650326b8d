// The life of a block: its fibers, and its shared memory between pages that cannot be touched.
#pragma once

#include "state.h"

namespace emulation {

// Prepares `block` as block `id` of the launch, all its fibers ready at the kernel's entry.
void start_block(Block& block, uint32_t id);
// Reports what was written beside the dynamic shared memory but within its pages; for when the block has ended.
void check_shared_edges(Block& block);

}  // namespace emulation
