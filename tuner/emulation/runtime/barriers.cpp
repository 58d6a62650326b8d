// Barriers of a block and of the grid, and warp collectives. The last thread to arrive does the work for all.
#include "checker.h"
#include "report.h"
#include "scheduler.h"

using namespace emulation;

void emulation::complete_barrier_if_all_arrived(Block& block) {
    if (block.arrived + block.exited < block.threads) return;
    if (block.exited)
        report("exit-before-barrier", Severity::goes_on, "%d of %d threads had exited before __syncthreads at %s",
               block.exited, block.threads, position(block.barrier_file, block.barrier_line).c_str());
    block.barrier_result = block.barrier_true;
    if (block.barrier_reduction == MNT_REDUCE_AND) block.barrier_result = block.barrier_true == block.arrived;
    if (block.barrier_reduction == MNT_REDUCE_OR) block.barrier_result = block.barrier_true != 0;
    block.arrived = 0;
    block.barrier_true = 0;
    if (current_launch->checked) checker_block_barrier(block);
    release_all(block, State::at_barrier);
}

namespace {

// All lanes must be in the same operation of the same line with the same mask.
bool lanes_agree(const Block& block, const Fiber& fiber, unsigned lanes) {
    for (unsigned lane = 0; lane < 32; ++lane) {
        if (!(lanes >> lane & 1)) continue;
        const Fiber& other = *block.fibers[fiber.warp * 32 + lane];
        if (other.collective == fiber.collective && other.mask == fiber.mask && other.line == fiber.line) continue;
        report("divergent-warp", Severity::ends_launch,
               "lane %u is in %s at %s with mask %08x, lane %u in %s at %s with mask %08x", fiber.lane,
               collective_name(fiber.collective), position(fiber.file, fiber.line).c_str(), fiber.mask, lane,
               collective_name(other.collective), position(other.file, other.line).c_str(), other.mask);
        return false;
    }
    return true;
}

}  // namespace

extern "C" int mnt_emulation_barrier(int reduction, int predicate, const char* file, int line) {
    Fiber& fiber = *this_fiber();
    Block& block = *fiber.owner();
    fiber.file = file;
    fiber.line = line;
    fiber.state = State::at_barrier;
    if (block.arrived == 0) {
        block.barrier_file = file;
        block.barrier_line = line;
        block.barrier_first = &fiber;
    } else if (block.barrier_line != line || (block.barrier_file != file && strcmp(block.barrier_file, file) != 0)) {
        report("divergent-barrier", Severity::goes_on,
               "thread %u waits at the __syncthreads of %s, thread %u at that of %s", block.barrier_first->rank,
               position(block.barrier_file, block.barrier_line).c_str(), fiber.rank, position(file, line).c_str());
    }
    block.barrier_reduction = reduction;
    block.barrier_true += predicate != 0;
    block.arrived++;
    complete_barrier_if_all_arrived(block);
    wait_until_ready(fiber);
    return block.barrier_result;
}

extern "C" void mnt_emulation_grid_barrier(const char* file, int line) {
    Fiber& fiber = *this_fiber();
    if (!current_launch->cooperative) {
        report("grid-sync", Severity::ends_launch, "grid barrier at %s in a launch that is not cooperative",
               position(file, line).c_str());
        abandon_fiber();
    }
    fiber.file = file;
    fiber.line = line;
    fiber.state = State::at_grid_barrier;
    fiber.owner()->at_grid_barrier++;
    wait_until_ready(fiber);
}

extern "C" void mnt_emulation_collective(unsigned mask, int kind, void* lane_data, MntPerform perform, const char* file,
                                         int line) {
    Fiber& fiber = *this_fiber();
    Block& block = *fiber.owner();
    Warp& warp = block.warps[fiber.warp];
    if (!(mask >> fiber.lane & 1))
        report("divergent-warp", Severity::goes_on, "%s at %s: mask %08x lacks the calling lane %u",
               collective_name(kind), position(file, line).c_str(), mask, fiber.lane);
    mask &= warp.live;
    fiber.mask = mask;
    fiber.collective = kind;
    fiber.lane_data = lane_data;
    fiber.file = file;
    fiber.line = line;
    fiber.state = State::at_collective;
    warp.waiting |= 1u << fiber.lane;

    const unsigned lanes = mask & ~warp.exited;
    if ((warp.waiting & mask) == lanes) {
        if (!lanes_agree(block, fiber, lanes)) abandon_fiber();
        if (mask & warp.exited)
            report("divergent-warp", Severity::goes_on, "%s at %s: mask %08x names lanes that have exited (%08x)",
                   collective_name(kind), position(file, line).c_str(), mask, warp.exited);
        if (kind == MNT_MMA && lanes != 0xffffffffu) {
            report("divergent-warp", Severity::ends_launch, "mma_sync at %s without a full warp (lanes %08x only)",
                   position(file, line).c_str(), lanes);
            abandon_fiber();
        }
        Fiber* const* first = &block.fibers[fiber.warp * 32];
        if (perform) {
            void* data[32];
            for (unsigned lane = 0; lane < 32; ++lane)
                data[lane] = lanes >> lane & 1 ? first[lane]->lane_data : nullptr;
            perform(data, lanes);
        }
        if (kind == MNT_SYNCWARP && current_launch->checked) checker_warp_barrier(block, fiber.warp, lanes);
        warp.waiting &= ~mask;
        const bool reversed = current_launch->seed == 1;
        for (unsigned i = 0; i < 32; ++i) {
            const unsigned lane = reversed ? 31 - i : i;
            if ((lanes >> lane & 1) && lane != fiber.lane) make_ready(block, *first[lane]);
        }
        if (current_launch->seed == 0) {  // the last lane just goes on
            fiber.state = State::running;
            return;
        }
        make_ready(block, fiber);
    }
    wait_until_ready(fiber);
}
