// The race and initialisation checker: the shadow of memory; see checker.h, and order.h for what orders accesses.
#include "checker.h"

#include <stdio.h>

#include <algorithm>

#include "order.h"
#include "report.h"
#include "scheduler.h"

namespace emulation {
namespace {

// Flags of ShadowRead::kind beyond AccessKind: the reads since the last write were by several threads, or warps.
constexpr uint8_t kManyThreads = 4, kManyWarps = 8;
// A cell that counts as written before the launch.
constexpr uint32_t kWrittenBefore = 1;

// The memory that an access goes to.
struct Target {
    ShadowCell* cells = nullptr;
    size_t offset = 0;
    std::string what;
    bool initialised = false;
};

struct Site {
    const char* file;
    int line;
    uintptr_t program_counter;
    std::string text() const { return file ? position(file, line) : position(program_counter); }
};

const char* verb(Access access) { return access == Access::write ? "write" : "read"; }

// False where the access is none of the checker's business (constants, __device__ variables).
bool find_target(Fiber& fiber, uintptr_t address, size_t bytes, Access access, const Site& site, Target& target) {
    Block& block = *fiber.owner();
    const size_t in_shared = address - reinterpret_cast<uintptr_t>(block.dynamic_shared);
    const size_t in_mapping = address - reinterpret_cast<uintptr_t>(block.shared_mapping);
    if (in_mapping < block.shared_mapping_bytes) {
        if (in_shared >= block.shared_bytes || in_shared + bytes > block.shared_bytes) {
            report("out-of-bounds", Severity::ends_launch,
                   "%zu-byte %s at byte %td of %zu bytes of dynamic shared memory, %s", bytes, verb(access),
                   static_cast<ptrdiff_t>(in_shared), block.shared_bytes, site.text().c_str());
            abandon_fiber();
        }
        target = {block.shared_shadow.data(), in_shared, "shared memory", false};
        return true;
    }
    const size_t static_bytes = current_launch->module->static_shared_bytes;
    const size_t in_static = address - reinterpret_cast<uintptr_t>(this_worker->static_shared);
    if (static_bytes && in_static < static_bytes) {
        target = {block.static_shadow.data(), in_static, "static shared memory", false};
        return true;
    }
    Buffer* buffer = buffer_near(address);
    if (!buffer) {
        // Constants and __device__ variables are the module's; nothing else is a kernel's to write to.
        const Module& module = *current_launch->module;
        if (access == Access::read || (address >= module.base && address < module.end)) return false;
        report("out-of-bounds", Severity::ends_launch, "%zu-byte write to address %#zx, in no buffer, %s", bytes,
               static_cast<size_t>(address), site.text().c_str());
        abandon_fiber();
    }
    const size_t offset = address - reinterpret_cast<uintptr_t>(buffer->data);
    if (offset >= buffer->bytes || offset + bytes > buffer->bytes) {
        report("out-of-bounds", Severity::ends_launch, "%zu-byte %s of %s, %s", bytes, verb(access),
               buffer->describe(address).c_str(), site.text().c_str());
        abandon_fiber();
    }
    target = {buffer->shadow.data(), offset, "buffer " + buffer->name, buffer->initialised};
    return true;
}

void report_race(const Fiber& fiber, Access access, const Target& target, size_t byte, const char* before,
                 unsigned thread, uint32_t block, const Site& site) {
    if (block & kMessages) {
        report("race", Severity::goes_on,
               "%s of %s byte %zu by thread %u of block %u, %s by a message whose memory barrier it has not waited "
               "for, %s",
               verb(access), target.what.c_str(), byte, fiber.rank, fiber.owner()->id, before, site.text().c_str());
        return;
    }
    report("race", Severity::goes_on,
           "%s of %s byte %zu by thread %u of block %u, %s by thread %u of block %u, nothing orders them, %s",
           verb(access), target.what.c_str(), byte, fiber.rank, fiber.owner()->id, before, thread, block,
           site.text().c_str());
}

bool races_with_write(const Fiber& fiber, const ShadowCell& cell, Access access, uint8_t kind) {
    if (cell.write_time <= kWrittenBefore) return false;
    if (kind & cell.write_kind & Atomic) return false;
    const bool same_block = cell.write_block == fiber.owner()->id;
    const bool collective = (kind | cell.write_kind) & Collective;
    if (same_block && cell.write_thread == fiber.rank) {
        // A thread's own accesses are in order, except that WMMA may have given the element to another lane. Two stores
        // of the warp to one place have one layout.
        if (!collective) return false;
        if (access == Access::write && (kind & cell.write_kind & Collective)) return false;
    }
    return !happened_before(fiber, cell.write_time, cell.write_block, cell.write_thread);
}

bool write_races_with_read(const Fiber& fiber, const ShadowRead& read, uint8_t kind) {
    if (read.time == 0 || read.time < ordered_before) return false;
    if (kind & read.kind & Atomic) return false;
    const Block& block = *fiber.owner();
    const bool same_block = read.block == block.id;
    if (same_block && read.thread == fiber.rank && !(read.kind & kManyThreads)) return false;
    const bool many_warps = read.kind & kManyWarps;
    if (same_block && many_warps) return read.time >= block.last_barrier;
    // WMMA loads and stores converge the warp: what its lanes have read before is read.
    const bool collective = (kind | read.kind) & Collective;
    if (collective && same_block && read.thread / 32 == fiber.warp) return false;
    return !happened_before(fiber, read.time, read.block, read.thread);
}

void note_read(const Fiber& fiber, ShadowCell& cell, uint8_t kind) {
    const Block& block = *fiber.owner();
    uint8_t many = 0;
    if (cell.read.time >= ordered_before && cell.read.block != block.id) {
        const ShadowRead& kept = cell.elsewhere;
        const bool known = kept.time < ordered_before || happened_before(fiber, kept.time, kept.block, kept.thread);
        if (kept.time >= ordered_before && kept.block == block.id)
            std::swap(cell.read, cell.elsewhere);
        else if (known || kept.block == cell.read.block)
            cell.elsewhere = cell.read;
        else
            many = kManyThreads | kManyWarps;  // of three blocks
    }
    if (cell.read.time >= ordered_before && cell.read.block == block.id && cell.read.time >= block.last_barrier) {
        many = cell.read.kind & (kManyThreads | kManyWarps);
        if (cell.read.thread != fiber.rank) many |= kManyThreads;
        if (cell.read.thread / 32 != fiber.warp) many |= kManyWarps;
    }
    cell.read = {now, block.id, static_cast<uint16_t>(fiber.rank), static_cast<uint8_t>(kind | many)};
}

// Of a message that has not landed: nothing happens after it.
constexpr uint32_t kUnderWay = UINT32_MAX;

void note_write(const Fiber& fiber, ShadowCell& cell, uint8_t kind) {
    cell.write_time = now;
    cell.write_block = fiber.owner()->id;
    cell.write_thread = static_cast<uint16_t>(fiber.rank);
    cell.write_kind = kind;
    cell.read = cell.elsewhere = {};
}

}  // namespace

void checker_start_launch() {
    order_all();
    for_each_buffer([](Buffer& buffer) {
        buffer.shadow.resize(buffer.bytes / 2 + 1);
        if (buffer.initialised) return;
        for (size_t cell = 0; cell < buffer.bytes / 2; ++cell) {  // what the host has written meanwhile
            uint16_t value;
            memcpy(&value, buffer.data + 2 * cell, 2);
            ShadowCell& shadow = buffer.shadow[cell];
            if (value == 0xffff && shadow.write_time == kWrittenBefore) shadow.write_time = 0;
            if (value != 0xffff && shadow.write_time == 0) shadow.write_time = kWrittenBefore;
        }
    });
}

void checker_start_block(Block& block) {
    block.shared_shadow.assign(block.shared_bytes / 2 + 1, ShadowCell{});
    block.static_shadow.assign(current_launch->module->static_shared_bytes / 2 + 1, ShadowCell{});
    block.last_barrier = ++now;
    block.fenced_barrier = 0;
    block.fence_since_barrier = block.any_acquired = false;
    block.view.clear();
}

void checker_access(const void* pointer, size_t bytes, Access access, uint8_t kind, const char* file, int line,
                    uintptr_t program_counter) {
    Worker* worker = this_worker;
    if (!worker || !worker->current) return;
    Fiber& fiber = *worker->current;
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    if (address - reinterpret_cast<uintptr_t>(fiber.stack) < kStackBytes) return;
    const Site site{file, line, program_counter};
    Target target;
    if (!find_target(fiber, address, bytes, access, site, target)) return;
    if (!(kind & Collective) && (bytes & (bytes - 1)) == 0 && address % bytes)
        report("misaligned", Severity::goes_on, "%zu-byte %s of %s at byte %zu, %s", bytes, verb(access),
               target.what.c_str(), target.offset, site.text().c_str());

    const bool write = access == Access::write;
    for (size_t i = target.offset / 2; i <= (target.offset + bytes - 1) / 2; ++i) {
        ShadowCell& cell = target.cells[i];
        if (!write && cell.write_time == 0 && !target.initialised) {
            report("uninitialised", Severity::goes_on, "read of %s byte %zu, which nobody has written, %s",
                   target.what.c_str(), 2 * i, site.text().c_str());
            cell.write_time = kWrittenBefore;  // one report is enough
        }
        if (races_with_write(fiber, cell, access, kind))
            report_race(fiber, access, target, 2 * i, "written", cell.write_thread, cell.write_block, site);
        else if (write)
            for (const ShadowRead& read : {cell.read, cell.elsewhere})
                if (write_races_with_read(fiber, read, kind)) {
                    report_race(fiber, access, target, 2 * i, "read", read.thread, read.block, site);
                    break;
                }
        if (write)
            note_write(fiber, cell, kind);
        else
            note_read(fiber, cell, kind);
    }
}

void checker_message_sent(Fiber& sender, Block& block, MemoryBarrier& barrier, size_t offset, size_t bytes) {
    const Site site{sender.file, sender.line, 0};
    const Target target{block.shared_shadow.data(), offset, "shared memory of block " + std::to_string(block.id)};
    for (size_t i = offset / 2; i < (offset + bytes) / 2; ++i) {
        ShadowCell& cell = target.cells[i];
        if (races_with_write(sender, cell, Access::write, Plain))
            report_race(sender, Access::write, target, 2 * i, "written", cell.write_thread, cell.write_block, site);
        else
            for (const ShadowRead& read : {cell.read, cell.elsewhere})
                if (write_races_with_read(sender, read, Plain))
                    report_race(sender, Access::write, target, 2 * i, "read", read.thread, read.block, site);
        cell = {kUnderWay, kMessages | barrier.id, 0, Plain, {}, {}};
    }
    if (has_fenced(sender)) publish_into(barrier.gathered, sender);
}

void checker_message_landed(Block& block, const MemoryBarrier& barrier, const Message& message) {
    ++now;
    for (size_t i = message.offset / 2; i < (message.offset + message.bytes) / 2; ++i) {
        ShadowCell& cell = block.shared_shadow[i];
        if (cell.write_time == kUnderWay && cell.write_block == (kMessages | barrier.id)) cell.write_time = now;
    }
}

}  // namespace emulation
