// Faults of a running kernel; see faults.h.
//
// A handler reports and then switches to the worker's own stack instead of returning: the faulting fiber is never
// continued. That is safe because faults happen in kernel code, which holds no lock of the runtime.
#include "faults.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "memory.h"
#include "report.h"
#include "scheduler.h"

namespace emulation {
namespace {

constexpr int kFaultSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
constexpr size_t kSignalStackBytes = 64 << 10;
struct sigaction previous[4];

int interrupt_signal() { return SIGRTMIN + 7; }

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

bool in_kernel_code(uintptr_t pc) {
    const Module& module = *current_launch->module;
    return pc >= module.text_begin && pc < module.text_end;
}

// Where the fiber is: the kernel's line, or, inside a runtime function, the line that called it last.
std::string where(uintptr_t pc) {
    const std::string exact = position(pc);
    const Fiber& fiber = *this_worker->current;
    if (!exact.empty()) return ", " + exact;
    return fiber.file ? ", " + position(fiber.file, fiber.line) : "";
}

void report_bad_address(uintptr_t address, uintptr_t pc) {
    const Fiber& fiber = *this_worker->current;
    const Block& block = *fiber.owner();
    const std::string site = where(pc);
    const auto stack = reinterpret_cast<uintptr_t>(fiber.stack), shared = reinterpret_cast<uintptr_t>(block.shared_mapping);
    if (const Buffer* buffer = buffer_near(address)) {
        report("out-of-bounds", Severity::ends_launch, "access to %s%s", buffer->describe(address).c_str(), site.c_str());
    } else if (address - shared < block.shared_mapping_bytes) {
        report("out-of-bounds", Severity::ends_launch, "access to byte %td of %zu bytes of dynamic shared memory%s",
               static_cast<ptrdiff_t>(address - reinterpret_cast<uintptr_t>(block.dynamic_shared)), block.shared_bytes,
               site.c_str());
    } else if (address - stack < kPageBytes) {
        report("stack-overflow", Severity::ends_launch, "local variables need more than %zu KB per thread%s", kStackBytes >> 10,
               site.c_str());
    } else if (address < kPageBytes) {
        report("null-pointer", Severity::ends_launch, "access to address %zu%s", static_cast<size_t>(address), site.c_str());
    } else {
        // Processors give no address for a vector access that is not aligned.
        report("out-of-bounds", Severity::ends_launch, "wild address %#zx, in no buffer%s", static_cast<size_t>(address),
               site.c_str());
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
    if (signal == SIGFPE) report("trap", Severity::ends_launch, "integer division by zero%s", where(pc).c_str());
    else if (signal == SIGILL) report("trap", Severity::ends_launch, "illegal instruction%s", where(pc).c_str());
    else report_bad_address(reinterpret_cast<uintptr_t>(info->si_addr), pc);
    abandon_fiber();
}

// Sent again and again by the time limit, until it finds the worker in kernel code, where a fiber can be abandoned.
// Elsewhere the fiber comes to the scheduler soon, which sees that the launch is aborting.
void on_interrupt(int, siginfo_t*, void* context) {
    if (!current_launch || !this_worker || !this_worker->current) return;
    const uintptr_t pc = interrupted_at(context);
    if (!in_kernel_code(pc)) return;
    if (current_launch->timed_out)
        report("timeout", Severity::ends_launch,
               "still running after %g s%s (a loop that waits for another thread must give it a turn: __nanosleep, an "
               "atomic or __ldcg does)",
               current_launch->request->time_limit_s, where(pc).c_str());
    abandon_fiber();
}

// ---- the time limit: one thread that sleeps while nothing is launched

double seconds_now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct Watch {
    std::mutex mutex;
    std::condition_variable wake;
    bool started = false;
    pid_t process = 0;
    std::atomic<bool> idle{true};
    std::atomic<double> deadline{0};  // 0: no launch
    std::atomic<uint64_t> launches{0};
    std::vector<pthread_t> workers;
    int workers_used = 0;
};
// Never destroyed: its thread may still wait on it while the process ends.
Watch& watch = *new Watch;

void watch_launches() {
    using namespace std::chrono_literals;
    uint64_t seen = 0;
    int aborting_for = 0;
    std::unique_lock<std::mutex> lock(watch.mutex);
    for (;;) {
        if (watch.deadline == 0 && watch.launches == seen) {
            // A launch counts itself before it looks at `idle`, so one of the two notices the other.
            watch.idle = true;
            watch.wake.wait(lock, [&] { return !watch.idle || watch.launches != seen; });
            watch.idle = false;
        }
        seen = watch.launches;
        watch.wake.wait_for(lock, 20ms);
        // The end of a launch takes the mutex, so the launch and its workers live on while it is held.
        if (watch.deadline == 0) continue;
        Launch& launch = *current_launch;
        if (seconds_now() > watch.deadline) launch.timed_out = launch.aborting = true;
        aborting_for = launch.aborting ? aborting_for + 1 : 0;
        if (aborting_for == 0 || (!launch.timed_out && aborting_for < 3)) continue;
        for (int i = 0; i < watch.workers_used; ++i) pthread_kill(watch.workers[static_cast<size_t>(i)], interrupt_signal());
    }
}

void start_watching() {
    // A forked child has no such thread any more.
    if (watch.started && watch.process == getpid()) return;
    if (watch.started) new (&watch.mutex) std::mutex, new (&watch.wake) std::condition_variable;
    watch.started = true;
    watch.idle = true;
    watch.process = getpid();
    struct sigaction action {};
    action.sa_sigaction = on_interrupt;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART;
    sigaction(interrupt_signal(), &action, nullptr);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);  // signals are for the other threads
    std::thread(watch_launches).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

FaultHandlers::FaultHandlers() {
    struct sigaction action {};
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

void register_worker_thread(int index) {
    std::lock_guard<std::mutex> lock(watch.mutex);
    if (watch.workers.size() <= static_cast<size_t>(index)) watch.workers.resize(static_cast<size_t>(index) + 1, pthread_self());
    watch.workers[static_cast<size_t>(index)] = pthread_self();
}

TimeLimit::TimeLimit(double seconds, int workers) {
    start_watching();
    watch.workers_used = workers;
    watch.launches++;
    watch.deadline = seconds_now() + seconds;
    if (watch.idle) {
        std::lock_guard<std::mutex> lock(watch.mutex);
        watch.idle = false;
        watch.wake.notify_one();
    }
}

TimeLimit::~TimeLimit() {
    std::lock_guard<std::mutex> lock(watch.mutex);
    watch.deadline = 0;
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
        report("null-pointer", Severity::ends_launch, "access to address %zu at %s", static_cast<size_t>(address), site.c_str());
    } else {
        const Buffer* buffer = buffer_near(address);
        report("misaligned", Severity::ends_launch, "the access at %s needs %u-byte alignment, but its address is %zu modulo that%s%s",
               site.c_str(), alignment, static_cast<size_t>(address % alignment), buffer ? ", " : "",
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
