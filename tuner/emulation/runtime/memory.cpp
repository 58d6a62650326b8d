// Allocation and look-up of guarded buffers; see memory.h.
#include "memory.h"

#include <stdio.h>
#include <sys/mman.h>

#include <algorithm>
#include <mutex>

#include "report.h"

namespace emulation {
namespace {

// Looked up by the signal handler of faulting kernels too: they hold no lock, so it may take this one.
std::mutex mutex;
std::map<uintptr_t, Buffer*> buffers;  // by mapping, which are disjoint
unsigned allocated = 0;

Buffer* find(uintptr_t address) {
    auto after = buffers.upper_bound(address);
    if (after == buffers.begin()) return nullptr;
    Buffer* buffer = std::prev(after)->second;
    return address - reinterpret_cast<uintptr_t>(buffer->mapping) < buffer->mapping_bytes ? buffer : nullptr;
}

}  // namespace

std::string Buffer::describe(uintptr_t address) const {
    const ptrdiff_t byte = static_cast<ptrdiff_t>(address - reinterpret_cast<uintptr_t>(data));
    const ptrdiff_t size = static_cast<ptrdiff_t>(element_bytes);
    const ptrdiff_t element = byte >= 0 ? byte / size : -((-byte + size - 1) / size);
    char text[256];
    snprintf(text, sizeof text, "element %td (byte %td) of buffer %s (%zu elements)", element, byte, name.c_str(),
             bytes / element_bytes);
    return text;
}

Buffer* buffer_near(uintptr_t address) {
    std::lock_guard<std::mutex> lock(mutex);
    return find(address);
}

static char pattern_byte(const char* address, uint16_t pattern) {
    return static_cast<char>(reinterpret_cast<uintptr_t>(address) % 2 ? pattern >> 8 : pattern & 0xff);
}

void fill_edge(char* begin, char* end, uint16_t pattern) {
    for (char* at = begin; at < end; ++at) *at = pattern_byte(at, pattern);
}

char* first_touched(char* begin, char* end, uint16_t pattern) {
    const uint64_t expected = pattern * 0x0001000100010001u;
    for (char* at = begin; at < end;) {
        uint64_t word;
        if (reinterpret_cast<uintptr_t>(at) % 8 == 0 && end - at >= 8) {  // by words: this runs after every launch
            memcpy(&word, at, 8);
            if (word == expected) {
                at += 8;
                continue;
            }
        }
        if (*at != pattern_byte(at, pattern)) return at;
        ++at;
    }
    return nullptr;
}

void for_each_buffer(void (*visit)(Buffer&)) {
    std::lock_guard<std::mutex> lock(mutex);
    for (auto& [address, buffer] : buffers) visit(*buffer);
}

void check_buffer_edges() {
    for_each_buffer([](Buffer& buffer) {
        char* const begin = buffer.mapping + kGuardBytes;
        char* const end = buffer.mapping + buffer.mapping_bytes - kGuardBytes;
        for (auto [from, to] : {std::pair(begin, buffer.data), std::pair(buffer.data + buffer.bytes, end)}) {
            char* touched = first_touched(from, to, buffer.edge_pattern);
            if (!touched) continue;
            report("out-of-bounds", Severity::goes_on, "something was written to %s",
                   buffer.describe(reinterpret_cast<uintptr_t>(touched)).c_str());
            fill_edge(from, to, buffer.edge_pattern);
        }
    });
}

}  // namespace emulation

using emulation::Buffer;

// Returns the data's address, or null where there is no memory. Aligned to 32 bytes, as WMMA asks for.
extern "C" void* mnt_emulation_allocate(size_t bytes, size_t element_bytes, const char* name, int initialised) {
    using namespace emulation;
    const size_t body = round_up(std::max<size_t>(bytes, 1), kPageBytes), total = body + 2 * kGuardBytes;
    void* mapping = mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) return nullptr;
    char* begin = static_cast<char*>(mapping) + kGuardBytes;
    if (mprotect(begin, body, PROT_READ | PROT_WRITE) != 0) {
        munmap(mapping, total);
        return nullptr;
    }
    // At the end of the pages, because running over the end is the common mistake.
    char* data = begin + body - round_up(bytes, kWmmaAlignment);
    std::lock_guard<std::mutex> lock(mutex);
    // 0xFF80 to 0xFFFE; 0xFFFF is the poison of memory that nobody has written.
    const auto pattern = static_cast<uint16_t>(0xff80 | allocated++ % 0x7f);
    memset(data, 0xff, bytes);
    fill_edge(begin, data, pattern);
    fill_edge(data + bytes, begin + body, pattern);
    auto* buffer =
        new Buffer{static_cast<char*>(mapping), total, data, bytes, element_bytes, name, initialised != 0, pattern, {}};
    buffers[reinterpret_cast<uintptr_t>(mapping)] = buffer;
    return data;
}

extern "C" void mnt_emulation_release(void* data) {
    using namespace emulation;
    Buffer* buffer = buffer_near(reinterpret_cast<uintptr_t>(data));
    if (!buffer) return;
    {
        std::lock_guard<std::mutex> lock(mutex);
        buffers.erase(reinterpret_cast<uintptr_t>(buffer->mapping));
    }
    munmap(buffer->mapping, buffer->mapping_bytes);
    delete buffer;
}
