// The race and initialisation checker. A checked kernel is compiled with -fsanitize=thread and linked with
// checker_hooks.cpp, so it sees every load and store; a shadow of each 2 bytes remembers the last write and the last
// read.
#pragma once

#include "memory.h"
#include "state.h"

namespace emulation {

enum class Access { read, write };
// Plain: one thread's own. Atomic: does not race with another atomic. Collective: a WMMA load or store, where no thread
// may assume which elements are its own.
enum AccessKind : uint8_t { Plain = 0, Atomic = 1, Collective = 2 };

void checker_start_launch();
void checker_start_block(Block& block);
void checker_block_barrier(Block& block);
void checker_warp_barrier(Block& block, unsigned warp, unsigned lanes);
void checker_grid_barrier();
void checker_start_cluster(Cluster& cluster);
// Before the fiber counts as arrived, and after it has waited.
void checker_cluster_arrive(Fiber& fiber);
void checker_cluster_wait(Fiber& fiber);

// A __threadfence by `fiber`: what it has done and seen may be published from now on.
void checker_fence(Fiber& fiber);
// `fiber` stores to `address`, and thereby publishes what it (or its block, before a barrier) has fenced.
void checker_publish(Fiber& fiber, uintptr_t address);
// `fiber` loads from `address`, and thereby sees what was published through it.
void checker_acquire(Fiber& fiber, uintptr_t address);

// One access by the running fiber. `file` is null where only the program counter is known.
void checker_access(const void* address, size_t bytes, Access access, uint8_t kind, const char* file, int line,
                    uintptr_t program_counter = 0);

// Memory barriers: a thread arrives, a phase ends, a thread sees that it has ended.
void checker_arrived(Fiber& fiber, MemoryBarrier& barrier);
void checker_phase_ended(MemoryBarrier& barrier);
void checker_observed(Fiber& fiber, const MemoryBarrier& barrier);
// A message is a write by its sender from when it is sent, and by nobody who is known until its phase has been seen.
void checker_message_sent(Fiber& sender, Block& to, MemoryBarrier& barrier, size_t offset, size_t bytes);
void checker_message_landed(Block& to, const MemoryBarrier& barrier, const Message& message);

}  // namespace emulation
