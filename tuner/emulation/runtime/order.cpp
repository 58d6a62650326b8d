// Order between accesses, for the race checker; see order.h.
#include "order.h"

#include <algorithm>
#include <unordered_map>

#include "checker.h"

namespace emulation {

uint32_t now = 2, ordered_before = 2;

namespace {

std::unordered_map<uintptr_t, View> published;  // by the address of the atomic

void merge(View& into, const View& from) {
    for (const auto& [block, theirs] : from) {
        Published& ours = into[block];
        ours.block_time = std::max(ours.block_time, theirs.block_time);
        for (const auto& [thread, time] : theirs.thread_time) {
            uint32_t& known = ours.thread_time[thread];
            known = std::max(known, time);
        }
    }
}

bool view_covers(const View& view, uint32_t time, uint32_t block, unsigned thread) {
    const auto found = view.find(block);
    if (found == view.end()) return false;
    if (time < found->second.block_time) return true;
    const auto of_thread = found->second.thread_time.find(thread);
    return of_thread != found->second.thread_time.end() && time < of_thread->second;
}

// Arrivals count thread by thread: what a thread does between the halves of the barrier is not ordered by it.
bool before_cluster_barrier(const Fiber& fiber, uint32_t time, uint32_t block, unsigned thread) {
    const Block& own = *fiber.owner();
    const size_t rank = block - own.cluster->blocks[0]->id;
    if (!fiber.cluster_waits || rank >= own.cluster->blocks.size()) return false;
    return time < own.cluster->arrival[(fiber.cluster_waits - 1) % 3][rank * static_cast<size_t>(own.threads) + thread];
}

}  // namespace

bool happened_before(const Fiber& fiber, uint32_t time, uint32_t block, unsigned thread) {
    if (time < ordered_before) return true;
    const Block& own = *fiber.owner();
    if (block == own.id && time < own.last_barrier) return true;
    if (block == own.id && thread / 32 == fiber.warp && time < own.warps[fiber.warp].last_sync) return true;
    if (before_cluster_barrier(fiber, time, block, thread)) return true;
    return view_covers(fiber.acquired, time, block, thread) || view_covers(own.view, time, block, thread);
}

bool has_fenced(const Fiber& fiber) { return !fiber.fenced.empty() || fiber.owner()->fenced_barrier != 0; }

void publish_into(View& view, const Fiber& fiber) {
    const Block& block = *fiber.owner();
    merge(view, fiber.fenced);
    if (block.fenced_barrier) {
        merge(view, block.view);
        Published& own = view[block.id];
        own.block_time = std::max(own.block_time, block.fenced_barrier);
    }
}

void checker_block_barrier(Block& block) {
    block.last_barrier = ++now;
    if (block.fence_since_barrier) block.fenced_barrier = block.last_barrier;
    block.fence_since_barrier = false;
    if (!block.any_acquired) return;
    for (Fiber* fiber : block.fibers) {
        merge(block.view, fiber->acquired);
        fiber->acquired.clear();
    }
    block.any_acquired = false;
}

void checker_warp_barrier(Block& block, unsigned warp, unsigned lanes) {
    block.warps[warp].last_sync = ++now;
    if (!block.any_acquired) return;
    View all;
    for (unsigned lane = 0; lane < 32; ++lane)
        if (lanes >> lane & 1) merge(all, block.fibers[warp * 32 + lane]->acquired);
    for (unsigned lane = 0; lane < 32; ++lane)
        if (lanes >> lane & 1) block.fibers[warp * 32 + lane]->acquired = all;
}

void order_all() {
    ordered_before = ++now;
    published.clear();
}

void checker_grid_barrier() { order_all(); }

void checker_start_cluster(Cluster& cluster) {
    for (int i = 0; i < 3; ++i) {
        cluster.arrival[i].assign(static_cast<size_t>(cluster.threads), 0);
        cluster.first_arrival[i].assign(cluster.blocks.size(), 0);
        cluster.seen[i].clear();
    }
}

void checker_cluster_arrive(Fiber& fiber) {
    Block& block = *fiber.owner();
    Cluster& cluster = *block.cluster;
    const uint32_t slot = fiber.cluster_arrivals % 3;
    if (cluster.arrived == 0) {
        cluster.seen[slot].clear();
        cluster.first_arrival[slot].assign(cluster.blocks.size(), 0);
    }
    const size_t rank = block.id - cluster.blocks[0]->id;
    ++now;
    cluster.arrival[slot][rank * static_cast<size_t>(block.threads) + fiber.rank] = now;
    if (!cluster.first_arrival[slot][rank]) {
        cluster.first_arrival[slot][rank] = now;
        merge(cluster.seen[slot], block.view);
    }
    merge(cluster.seen[slot], fiber.acquired);
}

void checker_cluster_wait(Fiber& fiber) {
    const View& seen = fiber.owner()->cluster->seen[(fiber.cluster_waits - 1) % 3];
    if (seen.empty()) return;
    merge(fiber.acquired, seen);
    fiber.owner()->any_acquired = true;
}

void checker_arrived(Fiber& fiber, MemoryBarrier& barrier) {
    barrier.gathered[fiber.owner()->id].thread_time[fiber.rank] = ++now;
}

void checker_phase_ended(MemoryBarrier& barrier) {
    barrier.ended = ++now;
    barrier.visible = std::move(barrier.gathered);
    barrier.gathered.clear();
}

void checker_observed(Fiber& fiber, const MemoryBarrier& barrier) {
    if (!barrier.phase) return;
    merge(fiber.acquired, barrier.visible);
    uint32_t& known = fiber.acquired[kMessages | barrier.id].block_time;
    known = std::max(known, barrier.ended);
    fiber.owner()->any_acquired = true;
}

void checker_fence(Fiber& fiber) {
    Block& block = *fiber.owner();
    merge(fiber.fenced, block.view);
    merge(fiber.fenced, fiber.acquired);
    const Cluster& cluster = *block.cluster;
    if (fiber.cluster_waits)
        for (size_t rank = 0; rank < cluster.blocks.size(); ++rank) {
            uint32_t& known = fiber.fenced[cluster.blocks[rank]->id].block_time;
            known = std::max(known, cluster.first_arrival[(fiber.cluster_waits - 1) % 3][rank]);
        }
    Published& own = fiber.fenced[block.id];
    own.block_time = block.last_barrier;
    own.thread_time[fiber.rank] = ++now;
    block.fence_since_barrier = true;
}

void checker_publish(Fiber& fiber, uintptr_t address) {
    if (has_fenced(fiber)) publish_into(published[address], fiber);
}

void checker_acquire(Fiber& fiber, uintptr_t address) {
    const auto found = published.find(address);
    if (found == published.end()) return;
    merge(fiber.acquired, found->second);
    fiber.owner()->any_acquired = true;
}

}  // namespace emulation
