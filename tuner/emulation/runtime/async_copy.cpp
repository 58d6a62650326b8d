// cp.async: copies are held back until the wait that covers them, and their destination is poisoned until then.
#include "checker.h"
#include "report.h"
#include "scheduler.h"

using namespace emulation;

extern "C" void mnt_emulation_copy_async(void* to, const void* from, size_t bytes, size_t zero_fill, const char* file,
                                         int line) {
    Fiber& fiber = *this_fiber();
    fiber.file = file;
    fiber.line = line;
    const bool known_size = bytes == 4 || bytes == 8 || bytes == 16;
    if (!known_size || reinterpret_cast<uintptr_t>(to) % bytes || reinterpret_cast<uintptr_t>(from) % bytes) {
        report("misaligned", Severity::ends_launch,
               "asynchronous copy of %zu bytes at %s (4, 8 or 16 bytes, aligned to their size, are allowed)", bytes,
               position(file, line).c_str());
        abandon_fiber();
    }
    if (current_launch->checked) {
        checker_access(to, bytes, Access::write, Plain, file, line);
        if (bytes > zero_fill) checker_access(from, bytes - zero_fill, Access::read, Plain, file, line);
    }
    memset(to, 0xff, bytes);
    fiber.copies.push_back(
        {static_cast<char*>(to), static_cast<const char*>(from), bytes, zero_fill, fiber.copy_group});
}

extern "C" void mnt_emulation_copy_commit() { this_fiber()->copy_group++; }

extern "C" void mnt_emulation_copy_wait(int groups_left) {
    Fiber& fiber = *this_fiber();
    size_t finished = 0;
    for (const AsyncCopy& copy : fiber.copies) {
        if (copy.group >= fiber.copy_group - groups_left) break;
        memcpy(copy.to, copy.from, copy.bytes - copy.zero_fill);
        memset(copy.to + copy.bytes - copy.zero_fill, 0, copy.zero_fill);
        ++finished;
    }
    fiber.copies.erase(fiber.copies.begin(), fiber.copies.begin() + static_cast<ptrdiff_t>(finished));
}
