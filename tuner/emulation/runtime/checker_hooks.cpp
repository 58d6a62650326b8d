// Where the race checker is called from: fences, atomics and cached accesses of the headers, and the hooks that
// g++ -fsanitize=thread puts before every load and store.
#include "checker.h"
#include "report.h"
#include "scheduler.h"

using namespace emulation;

extern "C" void mnt_emulation_fence() {
    if (current_launch->checked) checker_fence(*this_fiber());
}

extern "C" void mnt_emulation_atomic_access(const void* pointer, int bytes, bool write, const char* file, int line) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    Fiber& fiber = *this_fiber();
    fiber.file = file;
    fiber.line = line;
    if (address % static_cast<unsigned>(bytes)) {
        report("misaligned", Severity::ends_launch, "%d-byte atomic at %s", bytes, position(file, line).c_str());
        abandon_fiber();
    }
    if (!current_launch->checked) return;
    if (write) checker_publish(fiber, address);
    checker_acquire(fiber, address);
    checker_access(pointer, static_cast<size_t>(bytes), write ? Access::write : Access::read, Atomic, file, line);
}

// A load or store that goes to the L2 or is volatile. Two of them do not race (that is how blocks hand over words that
// carry their own flag), but one of them and a plain access do.
static void visible_access(const void* pointer, int bytes, bool write, const char* file, int line, uintptr_t pc) {
    if (!this_worker || !this_worker->current) return;
    Fiber& fiber = *this_fiber();
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    if (write)
        checker_publish(fiber, address);
    else
        checker_acquire(fiber, address);
    checker_access(pointer, static_cast<size_t>(bytes), write ? Access::write : Access::read, Atomic, file, line, pc);
}

extern "C" void mnt_emulation_cached_access(const void* pointer, int bytes, bool write, const char* file, int line) {
    Fiber& fiber = *this_fiber();
    fiber.file = file;
    fiber.line = line;
    if (current_launch->checked) visible_access(pointer, bytes, write, file, line, 0);
}

// ---- the hooks that g++ -fsanitize=thread calls

#define MNT_PC reinterpret_cast<uintptr_t>(__builtin_return_address(0))
#define MNT_HOOKS(BYTES)                                                                                               \
    extern "C" void __tsan_read##BYTES(void* p) { checker_access(p, BYTES, Access::read, Plain, nullptr, 0, MNT_PC); } \
    extern "C" void __tsan_write##BYTES(void* p) {                                                                     \
        checker_access(p, BYTES, Access::write, Plain, nullptr, 0, MNT_PC);                                            \
    }                                                                                                                  \
    extern "C" void __tsan_unaligned_read##BYTES(void* p) {                                                            \
        checker_access(p, BYTES, Access::read, Plain, nullptr, 0, MNT_PC);                                             \
    }                                                                                                                  \
    extern "C" void __tsan_unaligned_write##BYTES(void* p) {                                                           \
        checker_access(p, BYTES, Access::write, Plain, nullptr, 0, MNT_PC);                                            \
    }                                                                                                                  \
    extern "C" void __tsan_volatile_read##BYTES(void* p) { visible_access(p, BYTES, false, nullptr, 0, MNT_PC); }      \
    extern "C" void __tsan_volatile_write##BYTES(void* p) { visible_access(p, BYTES, true, nullptr, 0, MNT_PC); }
MNT_HOOKS(1)
MNT_HOOKS(2)
MNT_HOOKS(4)
MNT_HOOKS(8)
MNT_HOOKS(16)
extern "C" void __tsan_read_range(void* p, size_t bytes) {
    checker_access(p, bytes, Access::read, Plain, nullptr, 0, MNT_PC);
}
extern "C" void __tsan_write_range(void* p, size_t bytes) {
    checker_access(p, bytes, Access::write, Plain, nullptr, 0, MNT_PC);
}
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
