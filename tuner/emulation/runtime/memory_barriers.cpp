// Memory barriers, and the messages (st.async) that they count; the addresses of both. See headers/mnt_cluster.h.
#include <utility>

#include "checker.h"
#include "cluster.h"
#include "report.h"
#include "scheduler.h"

using namespace emulation;

namespace {

// An address is an offset in dynamic shared memory, and, where it has been mapped, the block's rank plus 1 above it.
constexpr unsigned kRankShift = 24, kOffsetMask = (1u << kRankShift) - 1;
constexpr size_t kBarrierBytes = 8;
constexpr int64_t kMostBytesDue = (1 << 20) - 1;  // of an mbarrier's tx-count, on either side of 0
// What a memory barrier's own 8 bytes hold here, so that it is noticed when something else is written there.
constexpr uint64_t kContents = 0xff6d62617272ff00;

Fiber& at(const char* file, int line) {
    Fiber& fiber = *this_fiber();
    fiber.file = file;
    fiber.line = line;
    return fiber;
}

[[noreturn]] void fail(const char* kind, const Fiber& fiber, const std::string& what) {
    report(kind, Severity::ends_launch, "%s at %s", what.c_str(), position(fiber.file, fiber.line).c_str());
    abandon_fiber();
}

struct Place {
    Block* block;
    size_t offset;
    bool mapped;
};

Place locate(const Fiber& fiber, unsigned address, size_t bytes, const char* what) {
    const unsigned tag = address >> kRankShift;
    Place place{fiber.owner(), address & kOffsetMask, tag != 0};
    if (tag > place.block->cluster->blocks.size()) fail("out-of-bounds", fiber, std::string(what) + ": a wild address");
    if (tag) place.block = place.block->cluster->blocks[tag - 1];
    if (place.offset + bytes > place.block->shared_bytes)
        fail("out-of-bounds", fiber,
             std::string(what) + " at byte " + std::to_string(place.offset) + " of " +
                 std::to_string(place.block->shared_bytes) + " bytes of dynamic shared memory");
    if (place.offset % bytes)
        fail("misaligned", fiber,
             std::string(what) + " of " + std::to_string(bytes) + " bytes at byte " + std::to_string(place.offset));
    return place;
}

std::string name_of(const Block& block, const MemoryBarrier& barrier) {
    return "the memory barrier at byte " + std::to_string(barrier.offset) + " of block " + std::to_string(block.id);
}

MemoryBarrier& barrier_at(const Fiber& fiber, const Place& place) {
    const auto found = place.block->memory_barriers.find(place.offset);
    if (found == place.block->memory_barriers.end())
        fail("memory-barrier", fiber,
             "none has been made at byte " + std::to_string(place.offset) + " of block " +
                 std::to_string(place.block->id) + ", used");
    uint64_t contents;
    memcpy(&contents, place.block->dynamic_shared + place.offset, sizeof contents);
    if (contents != kContents)
        fail("memory-barrier", fiber, name_of(*place.block, found->second) + " has been written over, used");
    return found->second;
}

MemoryBarrier& own_barrier(const Fiber& fiber, unsigned address) {
    const Place place = locate(fiber, address, kBarrierBytes, "memory barrier");
    if (place.mapped) fail("memory-barrier", fiber, "one's own is needed, not a mapped address,");
    return barrier_at(fiber, place);
}

void change_bytes_due(const Block& block, MemoryBarrier& barrier, int64_t change) {
    barrier.bytes_due += change;
    if (barrier.bytes_due >= -kMostBytesDue && barrier.bytes_due <= kMostBytesDue) return;
    report("memory-barrier", Severity::ends_launch, "%lld bytes are due at %s (%lld is the most, on either side of 0)",
           static_cast<long long>(barrier.bytes_due), name_of(block, barrier).c_str(),
           static_cast<long long>(kMostBytesDue));
    abandon_fiber();
}

void complete_if_nothing_due(const Block& block, MemoryBarrier& barrier) {
    if (barrier.pending || barrier.bytes_due) return;
    if (barrier.phase && !barrier.observed)
        report("memory-barrier", Severity::goes_on, "phases %u and %u of %s ended, and nobody had seen the first",
               barrier.phase - 1, barrier.phase, name_of(block, barrier).c_str());
    barrier.phase++;
    barrier.observed = false;
    barrier.pending = barrier.count;
    if (current_launch->checked) checker_phase_ended(barrier);
}

// Whether a later message is on its way to the same place: what is there then, nobody can say.
bool overtaken(const MemoryBarrier& barrier, const Message& message) {
    if (static_cast<int64_t>(barrier.bytes_under_way) <= barrier.bytes_due) return false;
    for (const Message& other : barrier.under_way)
        if (other.offset < message.offset + message.bytes && message.offset < other.offset + other.bytes) return true;
    return false;
}

void land(Block& block, MemoryBarrier& barrier, size_t which) {
    std::swap(barrier.under_way[which], which ? barrier.under_way.back() : barrier.under_way.front());
    const Message message = which ? barrier.under_way.back() : barrier.under_way.front();
    which ? barrier.under_way.pop_back() : barrier.under_way.pop_front();
    const bool keep = overtaken(barrier, message);
    barrier.bytes_under_way -= message.bytes;
    if (!keep) memcpy(block.dynamic_shared + message.offset, message.data, message.bytes);
    if (current_launch->checked) checker_message_landed(block, barrier, message);
    change_bytes_due(block, barrier, -static_cast<int64_t>(message.bytes));
    complete_if_nothing_due(block, barrier);
}

// Lands some of what is under way. polled: somebody looks whether the phase has ended.
void deliver(Block& block, MemoryBarrier& barrier, bool polled) {
    const int seed = current_launch->seed;
    Worker& worker = *this_worker;
    const auto next = [&] { return seed < 2 ? 0 : worker.next_random() % barrier.under_way.size(); };
    while (seed > 0 && !barrier.under_way.empty() && (seed == 1 || worker.next_random() % 4 == 0))
        land(block, barrier, next());
    if (!polled || barrier.pending || (seed > 1 && worker.next_random() % 2)) return;
    if (static_cast<int64_t>(barrier.bytes_under_way) < barrier.bytes_due) return;
    for (const uint32_t phase = barrier.phase; !barrier.under_way.empty() && barrier.phase == phase;)
        land(block, barrier, next());
}

}  // namespace

void emulation::check_messages(const Block& block) {
    for (const auto& [offset, barrier] : block.memory_barriers)
        if (!barrier.under_way.empty())
            report("exited-block", Severity::goes_on, "%zu bytes were still under way to %s, which has ended",
                   barrier.bytes_under_way, name_of(block, barrier).c_str());
}

extern "C" unsigned mnt_emulation_shared_address(const void* pointer, const char* file, int line) {
    const Fiber& fiber = at(file, line);
    const Block& block = *fiber.owner();
    const size_t offset = static_cast<const unsigned char*>(pointer) - block.dynamic_shared;
    if (offset > block.shared_bytes) fail("out-of-bounds", fiber, "address of what is not dynamic shared memory,");
    return static_cast<unsigned>(offset);
}

extern "C" unsigned mnt_emulation_map_shared(unsigned address, unsigned rank, const char* file, int line) {
    const Fiber& fiber = at(file, line);
    const size_t blocks = fiber.owner()->cluster->blocks.size();
    if (rank >= blocks)
        fail("out-of-bounds", fiber,
             "block " + std::to_string(rank) + " of a cluster of " + std::to_string(blocks) + " is addressed");
    return (rank + 1) << kRankShift | (address & kOffsetMask);
}

extern "C" void mnt_emulation_store_async(unsigned address, unsigned barrier_address, const void* data, int bytes,
                                          const char* file, int line) {
    Fiber& fiber = at(file, line);
    const Place to = locate(fiber, address, static_cast<size_t>(bytes), "st.async");
    const Place counted = locate(fiber, barrier_address, kBarrierBytes, "memory barrier");
    Block& block = *to.block;
    if (counted.block != &block)
        fail("memory-barrier", fiber, "st.async to block " + std::to_string(block.id) + ", counted by block " +
                                          std::to_string(counted.block->id) + ",");
    if (block.finished())
        fail("exited-block", fiber, "st.async to block " + std::to_string(block.id) + ", which has ended,");
    MemoryBarrier& barrier = barrier_at(fiber, counted);
    if (&block != fiber.owner() && (!barrier.published || fiber.cluster_waits < barrier.published))
        fail("memory-barrier", fiber,
             name_of(block, barrier) + " may not be there yet for others (fence.mbarrier_init, cluster barrier), used");
    if (current_launch->checked) checker_message_sent(fiber, block, barrier, to.offset, static_cast<size_t>(bytes));
    memset(block.dynamic_shared + to.offset, 0xff, static_cast<size_t>(bytes));
    Message message{to.offset, static_cast<size_t>(bytes), {}};
    memcpy(message.data, data, message.bytes);
    barrier.under_way.push_back(message);
    barrier.bytes_under_way += message.bytes;
    deliver(block, barrier, false);
}

extern "C" void mnt_emulation_make_barrier(unsigned address, unsigned count, const char* file, int line) {
    const Fiber& fiber = at(file, line);
    const Place place = locate(fiber, address, kBarrierBytes, "memory barrier");
    Block& block = *place.block;
    if (place.mapped || block.memory_barriers.count(place.offset))
        fail("memory-barrier", fiber, place.mapped ? "made in another block" : "made where there is one already");
    void* const memory = block.dynamic_shared + place.offset;
    if (current_launch->checked) checker_access(memory, kBarrierBytes, Access::write, Plain, file, line);
    memcpy(memory, &kContents, sizeof kContents);
    MemoryBarrier& barrier = block.memory_barriers[place.offset];
    barrier.id = current_launch->memory_barriers++;
    barrier.offset = place.offset;
    barrier.maker = &fiber;
    barrier.count = barrier.pending = count;
}

extern "C" void mnt_emulation_publish_barriers() {
    const Fiber& fiber = *this_fiber();
    for (auto& [offset, barrier] : fiber.owner()->memory_barriers)
        if (barrier.maker == &fiber) barrier.fenced = true;
}

extern "C" void mnt_emulation_expect(unsigned address, unsigned bytes, const char* file, int line) {
    Fiber& fiber = at(file, line);
    MemoryBarrier& barrier = own_barrier(fiber, address);
    Block& block = *fiber.owner();
    if (current_launch->checked) {
        checker_access(block.dynamic_shared + barrier.offset, kBarrierBytes, Access::write, Atomic, file, line);
        checker_arrived(fiber, barrier);
    }
    if (!barrier.pending)
        fail("memory-barrier", fiber, "more than " + std::to_string(barrier.count) + " arrive in a phase of " +
                                          name_of(block, barrier));
    change_bytes_due(block, barrier, bytes);
    barrier.pending--;
    complete_if_nothing_due(block, barrier);
}

extern "C" bool mnt_emulation_has_completed(unsigned address, unsigned parity, const char* file, int line) {
    Fiber& fiber = at(file, line);
    MemoryBarrier& barrier = own_barrier(fiber, address);
    Block& block = *fiber.owner();
    if (current_launch->checked)
        checker_access(block.dynamic_shared + barrier.offset, kBarrierBytes, Access::read, Atomic, file, line);
    deliver(block, barrier, true);
    const uint32_t before = barrier.phase;
    if ((before & 1) == parity) mnt_emulation_yield();
    if (barrier.phase - before > 1)
        fail("memory-barrier", fiber,
             "two phases of " + name_of(block, barrier) + " ended while the first was waited for");
    if ((barrier.phase & 1) == parity) return false;
    barrier.observed = true;
    if (current_launch->checked) checker_observed(fiber, barrier);
    return true;
}
