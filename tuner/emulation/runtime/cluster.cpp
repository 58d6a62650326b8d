// The barrier of a cluster: each thread arrives, and later waits until all others have; see cluster.h.
#include "cluster.h"

#include "checker.h"
#include "report.h"
#include "scheduler.h"

namespace emulation {

void reset_cluster(Cluster& cluster) {
    cluster.threads = 0;
    cluster.phase = 0;
    cluster.arrived = cluster.exited = cluster.exited_after_arriving = 0;
    for (Block* block : cluster.blocks) {
        block->cluster = &cluster;
        cluster.threads += block->threads;
    }
    if (current_launch->checked) checker_start_cluster(cluster);
}

static void complete_if_all_arrived(Cluster& cluster) {
    if (cluster.arrived == 0 || cluster.arrived + cluster.exited < cluster.threads) return;
    if (cluster.exited)
        report("exit-before-barrier", Severity::goes_on,
               "%d of %d threads of the cluster had exited before its barrier, without arriving at it", cluster.exited,
               cluster.threads);
    cluster.exited += cluster.exited_after_arriving;
    cluster.arrived = cluster.exited_after_arriving = 0;
    cluster.phase++;
    for (Block* block : cluster.blocks) {
        if (!block->at_cluster_barrier) continue;
        block->at_cluster_barrier = 0;
        release_all(*block, State::at_cluster_barrier);
    }
}

void leave_cluster(const Fiber& fiber) {
    Cluster& cluster = *fiber.owner()->cluster;
    if (fiber.cluster_arrivals > cluster.phase)
        cluster.exited_after_arriving++;
    else
        cluster.exited++;
    complete_if_all_arrived(cluster);
}

void report_if_stuck(const Cluster& cluster) {
    if (current_launch->aborting) return;
    bool waiting = false;
    for (const Block* block : cluster.blocks) {
        waiting |= block->at_cluster_barrier > 0;
        if (!block->yielded.empty()) return;
        for (const Warp& warp : block->warps)
            if (warp.ready_count) return;
    }
    if (!waiting) return;
    std::string all;
    for (const Block* block : cluster.blocks)
        all += (all.empty() ? "block " : ". Block ") + std::to_string(block->id) + ": " + describe_waiting(*block);
    report("deadlock", Severity::ends_launch, "the cluster cannot go on: %s", all.c_str());
}

}  // namespace emulation

using namespace emulation;

extern "C" void mnt_emulation_cluster_arrive(const char* file, int line) {
    Fiber& fiber = *this_fiber();
    Cluster& cluster = *fiber.owner()->cluster;
    fiber.file = file;
    fiber.line = line;
    if (fiber.cluster_arrivals != fiber.cluster_waits) {
        report("cluster-barrier", Severity::ends_launch, "arrives again at %s without having waited",
               position(file, line).c_str());
        abandon_fiber();
    }
    if (current_launch->checked) checker_cluster_arrive(fiber);
    fiber.cluster_arrivals++;
    cluster.arrived++;
    for (auto& [offset, barrier] : fiber.owner()->memory_barriers)
        if (barrier.maker == &fiber && barrier.fenced && !barrier.published) barrier.published = fiber.cluster_arrivals;
    complete_if_all_arrived(cluster);
}

extern "C" void mnt_emulation_cluster_wait(const char* file, int line) {
    Fiber& fiber = *this_fiber();
    const Cluster& cluster = *fiber.owner()->cluster;
    fiber.file = file;
    fiber.line = line;
    if (fiber.cluster_arrivals == fiber.cluster_waits) {
        report("cluster-barrier", Severity::ends_launch, "waits at %s without having arrived",
               position(file, line).c_str());
        abandon_fiber();
    }
    if (cluster.phase < fiber.cluster_arrivals) {
        fiber.state = State::at_cluster_barrier;
        fiber.owner()->at_cluster_barrier++;
        wait_until_ready(fiber);
    }
    fiber.cluster_waits++;
    if (current_launch->checked) checker_cluster_wait(fiber);
}
