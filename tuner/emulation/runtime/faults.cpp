// Faults of a running kernel; see faults.h.
//
// A handler reports and then switches to the worker's own stack instead of returning: the faulting fiber is never
// continued. That is safe because faults happen in kernel code, which holds no lock of the runtime.
#include "faults.h"

#include <signal.h>
#include <time.h>
#include <ucontext.h>

#include "memory.h"
#include "report.h"
#include "scheduler.h"

namespace emulation {

uintptr_t interrupted_at(void* context) {
#if defined(__x86_64__)
    return static_cast<uintptr_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
    return static_cast<uintptr_t>(static_cast<ucontext_t*>(context)->uc_mcontext.pc);
#else
    (void)context;
    return 0;
#endif
}

std::string position_of_fiber(uintptr_t pc) {
    const std::string exact = position(pc);
    const Fiber& fiber = *this_worker->current;
    if (!exact.empty()) return ", " + exact;
    return fiber.file ? ", " + position(fiber.file, fiber.line) : "";
}

namespace {

constexpr int kFaultSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
constexpr size_t kSignalStackBytes = 64 << 10;
struct sigaction previous[4];

void report_bad_address(uintptr_t address, uintptr_t pc) {
    const Fiber& fiber = *this_worker->current;
    const Block& block = *fiber.owner();
    const std::string site = position_of_fiber(pc);
    const auto stack = reinterpret_cast<uintptr_t>(fiber.stack),
               shared = reinterpret_cast<uintptr_t>(block.shared_mapping);
    if (const Buffer* buffer = buffer_near(address)) {
        report("out-of-bounds", Severity::ends_launch, "access to %s%s", buffer->describe(address).c_str(),
               site.c_str());
    } else if (address - shared < block.shared_mapping_bytes) {
        report("out-of-bounds", Severity::ends_launch, "access to byte %td of %zu bytes of dynamic shared memory%s",
               static_cast<ptrdiff_t>(address - reinterpret_cast<uintptr_t>(block.dynamic_shared)), block.shared_bytes,
               site.c_str());
    } else if (address - stack < kPageBytes) {
        report("stack-overflow", Severity::ends_launch, "local variables need more than %zu KB per thread%s",
               kStackBytes >> 10, site.c_str());
    } else if (address < kPageBytes) {
        report("null-pointer", Severity::ends_launch, "access to address %zu%s", static_cast<size_t>(address),
               site.c_str());
    } else {
        // Processors give no address for a vector access that is not aligned.
        report("out-of-bounds", Severity::ends_launch, "wild address %#zx, in no buffer%s",
               static_cast<size_t>(address), site.c_str());
    }
}

void restore(int signal) {
    for (size_t i = 0; i < 4; ++i)
        if (kFaultSignals[i] == signal) sigaction(signal, &previous[i], nullptr);
}

void on_fault(int signal, siginfo_t* info, void* context) {
    if (!current_launch || !this_worker || !this_worker->current) {
        restore(signal);  // not a kernel's: returning repeats the fault under the handler that was there before
        return;
    }
    const uintptr_t pc = interrupted_at(context);
    if (signal == SIGFPE)
        report("trap", Severity::ends_launch, "integer division by zero%s", position_of_fiber(pc).c_str());
    else if (signal == SIGILL)
        report("trap", Severity::ends_launch, "illegal instruction%s", position_of_fiber(pc).c_str());
    else
        report_bad_address(reinterpret_cast<uintptr_t>(info->si_addr), pc);
    abandon_fiber();
}

}  // namespace

FaultHandlers::FaultHandlers() {
    struct sigaction action{};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (size_t i = 0; i < 4; ++i) sigaction(kFaultSignals[i], &action, &previous[i]);
}

FaultHandlers::~FaultHandlers() {
    for (size_t i = 0; i < 4; ++i) sigaction(kFaultSignals[i], &previous[i], nullptr);
}

SignalStack::SignalStack() : memory(new char[kSignalStackBytes]) {
    stack_t stack{};
    stack.ss_sp = memory.get();
    stack.ss_size = kSignalStackBytes;
    sigaltstack(&stack, &previous);
}

SignalStack::~SignalStack() {
    previous.ss_flags &= SS_DISABLE;  // what the kernel reports beyond that, it does not take back
    sigaltstack(&previous, nullptr);
}

}  // namespace emulation

using namespace emulation;

extern "C" void mnt_emulation_trap(const char* what, const char* file, int line) {
    report("trap", Severity::ends_launch, "%s at %s", what, position(file, line).c_str());
    abandon_fiber();
}

extern "C" long long mnt_emulation_clock() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}

// ---- the hooks that g++ -fsanitize=alignment,bounds calls

struct SourceLocation {
    const char* file;
    uint32_t line, column;
};
struct TypeMismatch {
    SourceLocation location;
    const void* type;
    unsigned char log_alignment, access;
};

extern "C" void __ubsan_handle_type_mismatch_v1(TypeMismatch* mismatch, uintptr_t address) {
    if (!this_worker || !this_worker->current) return;
    const std::string site = position(mismatch->location.file, static_cast<int>(mismatch->location.line));
    const unsigned alignment = 1u << mismatch->log_alignment;
    if (address < kPageBytes) {
        report("null-pointer", Severity::ends_launch, "access to address %zu at %s", static_cast<size_t>(address),
               site.c_str());
    } else {
        const Buffer* buffer = buffer_near(address);
        report("misaligned", Severity::ends_launch,
               "the access at %s needs %u-byte alignment, but its address is %zu modulo that%s%s", site.c_str(),
               alignment, static_cast<size_t>(address % alignment), buffer ? ", " : "",
               buffer ? buffer->describe(address).c_str() : "");
    }
    abandon_fiber();
}

extern "C" void __ubsan_handle_out_of_bounds(SourceLocation* location, uintptr_t index) {
    if (!this_worker || !this_worker->current) return;
    report("out-of-bounds", Severity::ends_launch, "array index %td at %s", static_cast<ptrdiff_t>(index),
           position(location->file, static_cast<int>(location->line)).c_str());
    abandon_fiber();
}
