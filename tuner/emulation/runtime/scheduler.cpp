// Fibers, the ready queues of a block, and the blocks themselves; see scheduler.h.
#include "scheduler.h"

#include <stdlib.h>
#include <sys/mman.h>

#include <utility>

#include "checker.h"
#include "memory.h"
#include "report.h"

extern "C" {
__thread MntThread* mnt_emulation_thread __attribute__((tls_model("initial-exec"))) = nullptr;
}

namespace emulation {

__thread Worker* this_worker __attribute__((tls_model("initial-exec"))) = nullptr;
Launch* current_launch = nullptr;

namespace {

// Continues in `next`, or in the worker's own loop where it is null.
inline void switch_to(Context& from, Fiber* next) {
    Worker& worker = *this_worker;
    worker.current = next;
    mnt_emulation_thread = next;
    if (next) next->state = State::running;
    switch_context(from, next ? next->context : worker.context);
}

inline bool shuffled() { return current_launch->seed >= 2; }

Fiber* next_ready(Block& block) {
    if (current_launch->aborting.load(std::memory_order_relaxed)) return nullptr;
    std::vector<unsigned>& queue = block.warp_queue;
    for (;;) {
        if (block.current_warp < 0) {
            if (block.warp_queue_head >= queue.size()) {
                queue.clear();
                block.warp_queue_head = 0;
                return nullptr;
            }
            if (shuffled()) {
                const size_t other = this_worker->next_random() % (queue.size() - block.warp_queue_head);
                std::swap(queue[block.warp_queue_head], queue[block.warp_queue_head + other]);
            }
            block.current_warp = static_cast<int>(queue[block.warp_queue_head++]);
        }
        Warp& warp = block.warps[static_cast<size_t>(block.current_warp)];
        if (warp.ready_count == 0) {
            warp.queued = false;
            block.current_warp = -1;
            continue;
        }
        if (shuffled()) {
            if (block.warp_queue_head < queue.size() && this_worker->next_random() % 8 == 0) {  // leave the warp midway
                queue.push_back(static_cast<unsigned>(block.current_warp));
                block.current_warp = -1;
                continue;
            }
            const unsigned other = static_cast<unsigned>(this_worker->next_random() % warp.ready_count);
            std::swap(warp.ready[warp.ready_head % 32], warp.ready[(warp.ready_head + other) % 32]);
        }
        const unsigned lane = warp.ready[warp.ready_head++ % 32];
        --warp.ready_count;
        return block.fibers[static_cast<size_t>(block.current_warp) * 32 + lane];
    }
}

void fiber_body() {
    Fiber& fiber = *this_worker->current;
    Block& block = *fiber.owner();
    current_launch->module->entry(current_launch->request->arguments);
    fiber.state = State::done;
    block.exited++;
    block.warps[fiber.warp].exited |= 1u << fiber.lane;
    if (block.arrived) complete_barrier_if_all_arrived(block);
    switch_to(fiber.context, next_ready(block));
    abort();  // an ended fiber is never continued
}

Fiber* new_fiber() {
    Worker& worker = *this_worker;
    if (worker.fibers_used == worker.fibers.size()) {
        void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
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
    if (current_launch->checked) {
        fiber.acquired.clear();
        fiber.fenced.clear();
    }
    // Stacks lie at equal distances; different tops keep them out of each other's cache sets.
    const size_t colour = rank * 5 % 64 * 64;
    start_context(fiber.context, fiber.stack + kPageBytes, fiber.stack + kStackBytes - 256 - colour, fiber_body);
    fiber.state = State::at_barrier;  // released below, all at once
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

// Writes beside the block's shared memory that stayed within its pages, found when the block has ended.
void check_shared_edges(Block& block) {
    char* const shared = reinterpret_cast<char*>(block.dynamic_shared);
    char* const begin = block.shared_mapping + kGuardBytes;
    char* const end = block.shared_mapping + block.shared_mapping_bytes - kGuardBytes;
    for (auto [from, to] : {std::pair(begin, shared), std::pair(shared + block.shared_bytes, end)}) {
        const char* touched = first_touched(from, to, 0xffff);
        if (!touched) continue;
        report("out-of-bounds", Severity::goes_on, "block %u has written to byte %td of %zu bytes of dynamic shared memory",
               block.id, touched - shared, block.shared_bytes);
        memset(from, 0xff, static_cast<size_t>(to - from));
    }
}

// Threads wait, none can run, and not all wait for the grid: nothing will ever wake them.
void report_stuck(const Block& block) {
    const char* kind = "deadlock";
    for (const Fiber* fiber : block.fibers)
        if (fiber->state == State::at_collective) kind = "divergent-warp";
    report(kind, Severity::ends_launch, "block %u cannot go on: %s", block.id, describe_waiting(block).c_str());
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
}

void make_ready(Block& block, Fiber& fiber) {
    Warp& warp = block.warps[fiber.warp];
    fiber.state = State::ready;
    warp.ready[(warp.ready_head + warp.ready_count++) % 32] = static_cast<uint8_t>(fiber.lane);
    if (!warp.queued) {
        warp.queued = true;
        block.warp_queue.push_back(fiber.warp);
    }
}

void release_all(Block& block, State state) {
    const size_t count = block.fibers.size();
    for (size_t i = 0; i < count; ++i) {
        Fiber& fiber = *block.fibers[current_launch->seed == 1 ? count - 1 - i : i];
        if (fiber.state == state) make_ready(block, fiber);
    }
}

void wait_until_ready(Fiber& fiber) {
    Fiber* next = next_ready(*fiber.owner());
    if (next == &fiber) fiber.state = State::running;
    else switch_to(fiber.context, next);
}

void abandon_fiber() {
    Fiber& fiber = *this_worker->current;
    fiber.state = State::done;
    switch_to(fiber.context, nullptr);
    abort();  // an abandoned fiber is never continued
}

void start_block(Block& block, uint32_t id) {
    const Launch& launch = *current_launch;
    block.id = id;
    block.index = {id % launch.grid.x, id / launch.grid.x % launch.grid.y, id / (launch.grid.x * launch.grid.y)};
    block.size = launch.block;
    block.grid = launch.grid;
    block.threads = static_cast<int>(launch.block.x * launch.block.y * launch.block.z);
    block.arrived = block.exited = block.at_grid_barrier = 0;
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

void run_block(Block& block) {
    Worker& worker = *this_worker;
    const size_t static_bytes = current_launch->module->static_shared_bytes;
    worker.block = &block;
    if (static_bytes) {
        if (!block.started) memset(worker.static_shared, 0xff, static_bytes);
        else if (current_launch->cooperative) memcpy(worker.static_shared, block.static_shared_copy.data(), static_bytes);
    }
    block.started = true;
    for (Fiber* fiber : block.yielded) make_ready(block, *fiber);
    block.yielded.clear();

    if (Fiber* first = next_ready(block)) switch_to(worker.context, first);
    worker.current = nullptr;
    worker.block = nullptr;
    mnt_emulation_thread = nullptr;
    if (current_launch->timed_out)
        report("timeout", Severity::ends_launch, "still running after %g s; block %u: %s", current_launch->request->time_limit_s,
               block.id, describe_waiting(block).c_str());
    if (current_launch->aborting) return;

    if (block.yielded.empty() && block.exited + block.at_grid_barrier < block.threads) {
        report_stuck(block);
    } else if (block.at_grid_barrier && block.exited) {
        report("grid-sync", Severity::ends_launch, "block %u: %d threads wait for the grid, but %d have exited", block.id,
               block.at_grid_barrier, block.exited);
    }
    if (block.finished()) check_shared_edges(block);
    if (static_bytes && current_launch->cooperative && !block.finished())
        block.static_shared_copy.assign(worker.static_shared, worker.static_shared + static_bytes);
}

const char* collective_name(int collective) {
    static const char* const names[] = {"a shuffle",        "__syncwarp", "a vote", "mma_sync", "load_matrix_sync",
                                        "store_matrix_sync"};
    return names[collective];
}

std::string describe_waiting(const Block& block) {
    struct Group {
        int threads;
        unsigned first;
    };
    std::map<std::string, Group> groups;
    for (const Fiber* fiber : block.fibers) {
        std::string where;
        switch (fiber->state) {
            case State::done: where = "have exited"; break;
            case State::at_barrier: where = "wait at __syncthreads " + position(fiber->file, fiber->line); break;
            case State::at_grid_barrier: where = "wait for the grid at " + position(fiber->file, fiber->line); break;
            case State::at_collective:
                where = std::string("wait in ") + collective_name(fiber->collective) + " " + position(fiber->file, fiber->line);
                break;
            default:
                where = "run or spin";
                if (fiber->file) where += ", last seen at " + position(fiber->file, fiber->line);
                break;
        }
        groups.emplace(where, Group{0, fiber->rank}).first->second.threads++;
    }
    std::string all;
    for (const auto& [where, group] : groups)
        all += (all.empty() ? "" : "; ") + std::to_string(group.threads) + " threads (first: " +
               std::to_string(group.first) + ") " + where;
    return all;
}

}  // namespace emulation

extern "C" void mnt_emulation_yield() {
    using namespace emulation;
    Fiber& fiber = *this_fiber();
    fiber.state = State::yielded;
    fiber.owner()->yielded.push_back(&fiber);
    wait_until_ready(fiber);
}
