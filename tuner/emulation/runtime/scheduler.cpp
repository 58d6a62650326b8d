// Which fiber runs next, what a stuck block is waiting for, and yielding; see scheduler.h.
#include "scheduler.h"

#include <stdlib.h>

#include <utility>

#include "blocks.h"
#include "cluster.h"
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

// Threads wait, none can run, and not all wait for the grid: nothing will ever wake them.
void report_stuck(const Block& block) {
    const char* kind = "deadlock";
    for (const Fiber* fiber : block.fibers)
        if (fiber->state == State::at_collective) kind = "divergent-warp";
    report(kind, Severity::ends_launch, "block %u cannot go on: %s", block.id, describe_waiting(block).c_str());
}

}  // namespace

void run_fiber() {
    Fiber& fiber = *this_worker->current;
    Block& block = *fiber.owner();
    current_launch->module->entry(current_launch->request->arguments);
    fiber.state = State::done;
    block.exited++;
    block.warps[fiber.warp].exited |= 1u << fiber.lane;
    if (block.arrived) complete_barrier_if_all_arrived(block);
    leave_cluster(fiber);
    switch_to(fiber.context, next_ready(block));
    abort();  // an ended fiber is never continued
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
    if (next == &fiber)
        fiber.state = State::running;
    else
        switch_to(fiber.context, next);
}

void abandon_fiber() {
    Fiber& fiber = *this_worker->current;
    fiber.state = State::done;
    switch_to(fiber.context, nullptr);
    abort();  // an abandoned fiber is never continued
}

void run_block(Block& block) {
    Worker& worker = *this_worker;
    const size_t static_bytes = current_launch->module->static_shared_bytes;
    worker.block = &block;
    if (static_bytes) {
        if (!block.started)
            memset(worker.static_shared, 0xff, static_bytes);
        else if (current_launch->alternates())
            memcpy(worker.static_shared, block.static_shared_copy.data(), static_bytes);
    }
    block.started = true;
    for (Fiber* fiber : block.yielded) make_ready(block, *fiber);
    block.yielded.clear();

    if (Fiber* first = next_ready(block)) switch_to(worker.context, first);
    worker.current = nullptr;
    worker.block = nullptr;
    mnt_emulation_thread = nullptr;
    if (current_launch->timed_out)
        report("timeout", Severity::ends_launch, "still running after %g s; block %u: %s",
               current_launch->request->time_limit_s, block.id, describe_waiting(block).c_str());
    if (current_launch->aborting) return;

    // Who waits for the cluster may yet be released by another of its blocks; see report_if_stuck(Cluster).
    if (block.yielded.empty() && !block.at_cluster_barrier && block.exited + block.at_grid_barrier < block.threads) {
        report_stuck(block);
    } else if (block.at_grid_barrier && block.exited) {
        report("grid-sync", Severity::ends_launch, "block %u: %d threads wait for the grid, but %d have exited",
               block.id, block.at_grid_barrier, block.exited);
    }
    if (block.finished()) {
        check_shared_edges(block);
        check_messages(block);
    }
    if (static_bytes && current_launch->alternates() && !block.finished())
        block.static_shared_copy.assign(worker.static_shared, worker.static_shared + static_bytes);
}

const char* collective_name(int collective) {
    static const char* const names[] = {"a shuffle", "__syncwarp",       "a vote",
                                        "mma_sync",  "load_matrix_sync", "store_matrix_sync",
                                        "a cluster barrier"};
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
            case State::done:
                where = "have exited";
                break;
            case State::at_barrier:
                where = "wait at __syncthreads " + position(fiber->file, fiber->line);
                break;
            case State::at_cluster_barrier:
                where = "wait for the cluster at " + position(fiber->file, fiber->line);
                break;
            case State::at_grid_barrier:
                where = "wait for the grid at " + position(fiber->file, fiber->line);
                break;
            case State::at_collective:
                where = std::string("wait in ") + collective_name(fiber->collective) + " " +
                        position(fiber->file, fiber->line);
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
        all += (all.empty() ? "" : "; ") + std::to_string(group.threads) +
               " threads (first: " + std::to_string(group.first) + ") " + where;
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
