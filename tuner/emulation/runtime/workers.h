// The OS threads that run blocks. Thread 0 is the caller's; the others are kept from launch to launch.
#pragma once

namespace emulation {

// Runs `work(worker index)` on `count` OS threads, the caller's among them, and returns when all have ended.
void run_on_workers(int count, void (*work)(int));

}  // namespace emulation
