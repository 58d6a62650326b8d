// What stops a kernel in the middle: signals (guard pages, traps), the checks that g++ compiles in, the time limit.
#pragma once

#include <signal.h>

#include <memory>

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

// Ends the launch at `seconds` from now by interrupting the workers, and hurries them along once it is aborting.
class TimeLimit {
public:
    TimeLimit(double seconds, int workers);
    ~TimeLimit();
    TimeLimit(const TimeLimit&) = delete;
    TimeLimit& operator=(const TimeLimit&) = delete;
};

// Registers the calling OS thread as worker `index`, for the time limit to interrupt.
void register_worker_thread(int index);

}  // namespace emulation
