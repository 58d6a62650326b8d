// A launch from start to end: the module, the blocks' order, the workers' loops, and the barrier of the whole grid.
#include <elf.h>
#include <link.h>
#include <sched.h>
#include <stdlib.h>

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "blocks.h"
#include "checker.h"
#include "cluster.h"
#include "faults.h"
#include "memory.h"
#include "report.h"
#include "scheduler.h"
#include "time_limit.h"
#include "workers.h"

namespace emulation {
namespace {

constexpr uint32_t kMaxBlockThreads = 1024, kMaxClusterBlocks = 16;

std::mutex one_launch_at_a_time;

// ---- where a kernel's code and static shared memory lie

struct ModuleSearch {
    Module& module;
    uintptr_t entry, marker;
};

int describe_module(dl_phdr_info* info, size_t, void* data) {
    auto& search = *static_cast<ModuleSearch*>(data);
    Module& module = search.module;
    uintptr_t end = 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto& segment = info->dlpi_phdr[i];
        const uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
        if (segment.p_type != PT_LOAD) continue;
        end = std::max<uintptr_t>(end, begin + segment.p_memsz);
        if (!(segment.p_flags & PF_X) || search.entry - begin >= segment.p_memsz) continue;
        module.text_begin = begin;
        module.text_end = begin + segment.p_memsz;
    }
    if (!module.text_begin) return 0;
    module.base = info->dlpi_addr;
    module.end = end;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto& segment = info->dlpi_phdr[i];
        if (segment.p_type != PT_TLS) continue;
        module.marker_offset = static_cast<ptrdiff_t>(search.marker - reinterpret_cast<uintptr_t>(info->dlpi_tls_data));
        module.static_shared_bytes = segment.p_memsz > 1 ? segment.p_memsz : 0;  // 1: the marker alone
    }
    return 1;
}

// ---- workers

// Of the OS thread, and freed with it. Reached through `this_worker`, which costs no function call.
thread_local std::unique_ptr<Worker> owned_worker;
thread_local std::unique_ptr<SignalStack> signal_stack;

Worker& prepare_worker(int index) {
    if (!owned_worker) {
        owned_worker = std::make_unique<Worker>();
        signal_stack = std::make_unique<SignalStack>();
        this_worker = owned_worker.get();
    }
    Worker& worker = *this_worker;
    const Module& module = *current_launch->module;
    worker.fibers_used = 0;
    worker.random = 88172645463325252ull ^ (static_cast<uint64_t>(current_launch->seed) + 1) * 0x9e3779b97f4a7c15ull ^
                    static_cast<uint64_t>(index);
    worker.static_shared =
        module.static_shared_bytes ? static_cast<char*>(module.static_shared()) - module.marker_offset : nullptr;
    return worker;
}

Block& nth_block(Worker& worker, size_t n) {
    while (worker.blocks.size() <= n) worker.blocks.push_back(new Block());
    return *worker.blocks[n];
}

// The nth cluster of this worker, whose blocks begin at place `first` of the launch's order.
Cluster& start_cluster(Worker& worker, size_t n, uint32_t first) {
    const Launch& launch = *current_launch;
    while (worker.clusters.size() <= n) worker.clusters.push_back(new Cluster());
    Cluster& cluster = *worker.clusters[n];
    cluster.blocks.assign(launch.cluster, nullptr);
    for (uint32_t i = 0; i < launch.cluster; ++i) {
        Block& block = nth_block(worker, n * launch.cluster + i);
        start_block(block, launch.order[first + i]);
        cluster.blocks[block.id % launch.cluster] = &block;
    }
    reset_cluster(cluster);
    return cluster;
}

// Block after block, or cluster after cluster, as workers become free.
void work_independently(int index) {
    Worker& worker = prepare_worker(index);
    Launch& launch = *current_launch;
    while (!launch.aborting) {
        const uint32_t next = launch.next++;
        if (next >= launch.clusters) break;
        worker.fibers_used = 0;
        Cluster& cluster = start_cluster(worker, 0, next * launch.cluster);
        while (!launch.aborting) {
            bool finished = true;
            for (uint32_t i = 0; i < launch.cluster && !launch.aborting; ++i) {
                Block& block = *worker.blocks[i];
                if (!block.finished()) run_block(block);
                finished &= block.finished();
            }
            if (finished) break;
            report_if_stuck(cluster);
            sched_yield();  // all that can run only spin: another worker's block may be what they wait for
        }
    }
}

// ---- the grid

struct GridBarrier {
    std::mutex mutex;
    std::condition_variable open;
    int arrived = 0, waiting = 0, finished = 0;
    uint64_t round = 0;
    bool go_on = false;
};
GridBarrier& grid_barrier = *new GridBarrier;

// A worker arrives when all its blocks wait for the grid or have finished. False: the launch is over.
bool pass_grid_barrier(int waiting, int finished) {
    GridBarrier& barrier = grid_barrier;
    std::unique_lock<std::mutex> lock(barrier.mutex);
    const uint64_t round = barrier.round;
    barrier.waiting += waiting;
    barrier.finished += finished;
    if (++barrier.arrived == current_launch->workers) {
        barrier.go_on = barrier.waiting > 0 && !current_launch->aborting;
        if (barrier.go_on && barrier.finished > 0) {
            barrier.go_on = false;
            report("grid-sync", Severity::ends_launch, "%d blocks wait for the grid, but %d have ended",
                   barrier.waiting, barrier.finished);
        }
        barrier.arrived = barrier.waiting = barrier.finished = 0;
        if (current_launch->checked) checker_grid_barrier();
        barrier.round++;
        barrier.open.notify_all();
    } else {
        barrier.open.wait(lock, [&] { return barrier.round != round; });
    }
    return barrier.go_on;
}

// All blocks alive at once, each worker alternating between its own.
void work_cooperatively(int index) {
    Worker& worker = prepare_worker(index);
    Launch& launch = *current_launch;
    size_t clusters = 0;
    for (uint32_t i = static_cast<uint32_t>(index); i < launch.clusters; i += static_cast<uint32_t>(launch.workers))
        start_cluster(worker, clusters++, i * launch.cluster);
    const std::vector<Block*> mine(worker.blocks.begin(),
                                   worker.blocks.begin() + static_cast<ptrdiff_t>(clusters * launch.cluster));
    for (;;) {
        int waiting = 0, finished = 0;
        for (Block* block : mine) {
            if (launch.aborting) break;
            if (!block->finished() && block->at_grid_barrier < block->threads) run_block(*block);
            if (block->finished())
                ++finished;
            else if (block->at_grid_barrier == block->threads)
                ++waiting;
        }
        if (!launch.aborting && static_cast<size_t>(waiting + finished) < mine.size()) {
            for (size_t i = 0; i < clusters; ++i) report_if_stuck(*worker.clusters[i]);
            sched_yield();
            continue;
        }
        if (!pass_grid_barrier(waiting, finished)) return;
        for (Block* block : mine) {
            block->at_grid_barrier = 0;
            release_all(*block, State::at_grid_barrier);
        }
    }
}

// Seed 0 runs blocks in order, 1 in reverse, any other in an order of its own, cluster by cluster.
void order_blocks(Launch& launch) {
    std::vector<uint32_t>& order = launch.order;
    order.resize(launch.blocks);
    for (uint32_t i = 0; i < launch.blocks; ++i) order[i] = launch.seed == 1 ? launch.blocks - 1 - i : i;
    if (launch.seed < 2) return;
    uint64_t random = static_cast<uint64_t>(launch.seed) * 0x9e3779b97f4a7c15ull + 1;
    const auto below = [&](uint32_t count) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        return random % count;
    };
    const uint32_t size = launch.cluster;
    for (uint32_t i = launch.clusters; i > 1; --i) {
        const uint64_t other = below(i);
        for (uint32_t k = 0; k < size; ++k) std::swap(order[(i - 1) * size + k], order[other * size + k]);
    }
    for (uint32_t first = 0; first < launch.blocks && size > 1; first += size)
        for (uint32_t i = size; i > 1; --i) std::swap(order[first + i - 1], order[first + below(i)]);
}

bool allowed(const Launch& launch) {
    const uint64_t threads = static_cast<uint64_t>(launch.block.x) * launch.block.y * launch.block.z;
    const uint64_t blocks = static_cast<uint64_t>(launch.grid.x) * launch.grid.y * launch.grid.z;
    if (threads == 0 || threads > kMaxBlockThreads)
        report("launch", Severity::ends_launch, "%llu threads per block (1 to %u are allowed)",
               static_cast<unsigned long long>(threads), kMaxBlockThreads);
    if (blocks == 0 || blocks > 0x7fffffffu)
        report("launch", Severity::ends_launch, "%llu blocks", static_cast<unsigned long long>(blocks));
    if (launch.request->shared_bytes > kMaxSharedBytes)
        report("launch", Severity::ends_launch, "%llu bytes of shared memory (no GPU offers more than %llu)",
               static_cast<unsigned long long>(launch.request->shared_bytes),
               static_cast<unsigned long long>(kMaxSharedBytes));
    if (launch.cluster < 1 || launch.cluster > kMaxClusterBlocks || launch.grid.x % launch.cluster)
        report("launch", Severity::ends_launch,
               "clusters of %u blocks in a grid of %u (1 to %u, which divide it, are allowed)", launch.cluster,
               launch.grid.x, kMaxClusterBlocks);
    return !launch.aborting;
}

void run(Launch& launch) {
    launch.blocks = launch.grid.x * launch.grid.y * launch.grid.z;
    launch.clusters = launch.blocks / launch.cluster;
    launch.workers =
        launch.checked ? 1 : std::max(1, std::min(launch.request->threads, static_cast<int>(launch.clusters)));
    order_blocks(launch);
    if (launch.checked) checker_start_launch();
    register_worker_thread(0);
    FaultHandlers handlers;
    {
        TimeLimit limit(launch.request->time_limit_s, launch.workers);
        run_on_workers(launch.workers, launch.cooperative ? work_cooperatively : work_independently);
    }
    if (launch.timed_out && !any_reports())  // stopped in the scheduler, not in the middle of kernel code
        report("timeout", Severity::ends_launch, "still running after %g s; threads spin or wait for each other",
               launch.request->time_limit_s);
    check_buffer_edges();
}

}  // namespace
}  // namespace emulation

using namespace emulation;

extern "C" Module* mnt_emulation_open(void (*entry)(void**), void* (*static_shared)(), const char* name) {
    auto* module = new Module{entry, static_shared, name, 0, 0, 0, 0, 0, 0};
    ModuleSearch search{*module, reinterpret_cast<uintptr_t>(entry), reinterpret_cast<uintptr_t>(static_shared())};
    dl_iterate_phdr(describe_module, &search);
    return module;
}

// Runs the launch and returns when it has ended. True: `request->reports` says what went wrong.
extern "C" int mnt_emulation_launch(LaunchRequest* request) {
    std::lock_guard<std::mutex> lock(one_launch_at_a_time);
    Launch launch;
    launch.request = request;
    launch.module = request->module;
    launch.grid = dim3(request->grid[0], request->grid[1], request->grid[2]);
    launch.block = dim3(request->block[0], request->block[1], request->block[2]);
    launch.cluster = static_cast<uint32_t>(request->cluster);
    launch.seed = request->seed;
    launch.cooperative = request->cooperative;
    launch.precise = request->precise;
    launch.checked = request->checked;
    clear_reports();
    current_launch = &launch;
    if (allowed(launch)) run(launch);
    current_launch = nullptr;
    request->reports = any_reports() ? take_reports() : nullptr;
    return request->reports != nullptr;
}

extern "C" void mnt_emulation_free_text(char* text) { free(text); }
