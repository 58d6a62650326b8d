// What stops a kernel in the middle: signals (guard pages, traps), and the checks that g++ compiles in.
#pragma once

#include <signal.h>
#include <stdint.h>

#include <memory>
#include <string>

namespace emulation {

// Installs the signal handlers for the time of a launch; faults outside of kernels still go to whoever had them before.
class FaultHandlers {
public:
    FaultHandlers();
    ~FaultHandlers();
    FaultHandlers(const FaultHandlers&) = delete;
    FaultHandlers& operator=(const FaultHandlers&) = delete;
};

// A stack of its own for the calling OS thread's signal handlers, since a fiber's may have overflowed.
class SignalStack {
public:
    SignalStack();
    ~SignalStack();
    SignalStack(const SignalStack&) = delete;
    SignalStack& operator=(const SignalStack&) = delete;

private:
    stack_t previous;
    std::unique_ptr<char[]> memory;
};

// The program counter at which a signal came, from the handler's context; 0 on processors where that is not known.
uintptr_t interrupted_at(void* signal_context);
// ", gemm.cu:42": the kernel's line, or, inside a runtime function, the line that called it; empty where unknown.
std::string position_of_fiber(uintptr_t program_counter);

}  // namespace emulation
