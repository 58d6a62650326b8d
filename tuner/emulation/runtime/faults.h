// What stops a kernel in the middle: signals (guard pages, traps), the checks that g++ compiles in, the time limit.
#pragma once

namespace emulation {

// Installs the signal handlers for the time of a launch; faults outside of kernels still go to whoever had them before.
class FaultHandlers {
public:
    FaultHandlers();
    ~FaultHandlers();
    FaultHandlers(const FaultHandlers&) = delete;
    FaultHandlers& operator=(const FaultHandlers&) = delete;
};

// Gives the calling OS thread a stack of its own for signal handlers, since a fiber's may have overflowed.
void prepare_signal_stack();

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
