// The race and initialisation checker. A checked kernel is compiled with -fsanitize=thread and linked with the hooks in
// checker.cpp, so it sees every load and store; a shadow of each 2 bytes remembers the last write and the last read.
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

// One access by the running fiber. `file` is null where only the program counter is known.
void checker_access(const void* address, size_t bytes, Access access, uint8_t kind, const char* file, int line,
                    uintptr_t program_counter = 0);

}  // namespace emulation
