// Which fiber runs next. Fibers of a warp run in turn, then the next warp; the launch's seed reverses or shuffles that.
#pragma once

#include "state.h"

namespace emulation {

// What every fiber starts with: runs the kernel, then hands over to the next fiber for good.
void run_fiber();
// Runs the block's fibers until none is ready: all have ended, or wait for the grid, or have yielded to other blocks.
// Reports threads that can never go on.
void run_block(Block& block);
// Ends the block's __syncthreads if all threads that have not exited have arrived.
void complete_barrier_if_all_arrived(Block& block);
// Puts all fibers that wait in `state` back among the ready ones.
void release_all(Block& block, State state);
void make_ready(Block& block, Fiber& fiber);
// Suspends the running fiber, whose state says what it waits for, until it is made ready again.
void wait_until_ready(Fiber& fiber);
// Leaves the running fiber for good; used after a report that ends the launch.
[[noreturn]] void abandon_fiber();
// "31 threads (first 1) at __syncthreads gemm.cu:42; 1 thread (first 0) running": where a stuck block's threads are.
std::string describe_waiting(const Block& block);
const char* collective_name(int collective);

}  // namespace emulation
