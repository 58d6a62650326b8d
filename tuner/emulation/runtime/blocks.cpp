// Starting a block: stacks for its fibers, guarded shared memory; see blocks.h.
#include "blocks.h"

#include <sys/mman.h>

#include <utility>

#include "checker.h"
#include "memory.h"
#include "report.h"
#include "scheduler.h"

namespace emulation {
namespace {

Fiber* new_fiber() {
    Worker& worker = *this_worker;
    if (worker.fibers_used == worker.fibers.size()) {
        void* stack =
            mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stack == MAP_FAILED || mprotect(stack, kPageBytes, PROT_NONE) != 0) {
            if (stack != MAP_FAILED) munmap(stack, kStackBytes);
            report("launch", Severity::ends_launch, "no memory for the stacks of more than %zu threads at once",
                   worker.fibers.size());
            return nullptr;
        }
        Fiber* fiber = new Fiber();
        fiber->stack = static_cast<char*>(stack);
        worker.fibers.push_back(fiber);
    }
    return worker.fibers[worker.fibers_used++];
}

void start_fiber(Fiber& fiber, Block& block, unsigned rank) {
    const dim3 size = block.size;
    fiber.index = {rank % size.x, rank / size.x % size.y, rank / (size.x * size.y)};
    fiber.rank = rank;
    fiber.lane = rank % 32;
    fiber.warp = rank / 32;
    fiber.block = &block;
    fiber.polls = 0;
    fiber.file = nullptr;
    fiber.line = 0;
    fiber.copies.clear();
    fiber.copy_group = 0;
    fiber.cluster_arrivals = fiber.cluster_waits = 0;
    if (current_launch->checked) {
        fiber.acquired.clear();
        fiber.fenced.clear();
    }
    // Stacks lie at equal distances; different tops keep them out of each other's cache sets.
    const size_t colour = rank * 5 % 64 * 64;
    start_context(fiber.context, fiber.stack + kPageBytes, fiber.stack + kStackBytes - 256 - colour, run_fiber);
    fiber.state = State::at_barrier;  // start_block makes all ready at once
}

bool map_shared_memory(Block& block, size_t bytes) {
    const size_t needed = round_up(bytes, kPageBytes) + 2 * kGuardBytes;
    if (block.shared_mapping_bytes != needed) {
        if (block.shared_mapping) munmap(block.shared_mapping, block.shared_mapping_bytes);
        void* mapping = mmap(nullptr, needed, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapping == MAP_FAILED) {
            block.shared_mapping = nullptr;
            block.shared_mapping_bytes = 0;
            report("launch", Severity::ends_launch, "no memory for %zu bytes of shared memory", bytes);
            return false;
        }
        block.shared_mapping = static_cast<char*>(mapping);
        block.shared_mapping_bytes = needed;
        mprotect(block.shared_mapping + kGuardBytes, needed - 2 * kGuardBytes, PROT_READ | PROT_WRITE);
    }
    memset(block.shared_mapping + kGuardBytes, 0xff, needed - 2 * kGuardBytes);  // poison, and edges to check later
    block.shared_bytes = bytes;
    char* end = block.shared_mapping + needed - kGuardBytes;
    block.dynamic_shared = reinterpret_cast<unsigned char*>(end - round_up(bytes, kWmmaAlignment));
    return true;
}

}  // namespace

Worker::~Worker() {
    for (Fiber* fiber : fibers) {
        munmap(fiber->stack, kStackBytes);
        delete fiber;
    }
    for (Block* block : blocks) {
        if (block->shared_mapping) munmap(block->shared_mapping, block->shared_mapping_bytes);
        delete block;
    }
    for (Cluster* cluster : clusters) delete cluster;
}

void start_block(Block& block, uint32_t id) {
    const Launch& launch = *current_launch;
    block.id = id;
    block.index = {id % launch.grid.x, id / launch.grid.x % launch.grid.y, id / (launch.grid.x * launch.grid.y)};
    block.size = launch.block;
    block.grid = launch.grid;
    block.threads = static_cast<int>(launch.block.x * launch.block.y * launch.block.z);
    block.arrived = block.exited = block.at_grid_barrier = block.at_cluster_barrier = 0;
    block.memory_barriers.clear();
    block.started = false;
    block.barrier_true = 0;
    block.warp_queue.clear();
    block.warp_queue_head = 0;
    block.current_warp = -1;
    block.yielded.clear();
    block.warps.assign((static_cast<size_t>(block.threads) + 31) / 32, Warp{});
    block.fibers.clear();
    if (!map_shared_memory(block, launch.request->shared_bytes)) return;
    if (launch.checked) checker_start_block(block);
    for (unsigned rank = 0; rank < static_cast<unsigned>(block.threads); ++rank) {
        Fiber* fiber = new_fiber();
        if (!fiber) return;
        start_fiber(*fiber, block, rank);
        block.fibers.push_back(fiber);
        block.warps[rank / 32].live |= 1u << rank % 32;
    }
    release_all(block, State::at_barrier);
}

void check_shared_edges(Block& block) {
    char* const shared = reinterpret_cast<char*>(block.dynamic_shared);
    char* const begin = block.shared_mapping + kGuardBytes;
    char* const end = block.shared_mapping + block.shared_mapping_bytes - kGuardBytes;
    for (auto [from, to] : {std::pair(begin, shared), std::pair(shared + block.shared_bytes, end)}) {
        const char* touched = first_touched(from, to, 0xffff);
        if (!touched) continue;
        report("out-of-bounds", Severity::goes_on,
               "block %u has written to byte %td of %zu bytes of dynamic shared memory", block.id, touched - shared,
               block.shared_bytes);
        memset(from, 0xff, static_cast<size_t>(to - from));
    }
}

}  // namespace emulation
