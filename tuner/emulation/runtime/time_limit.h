// Stops launches that do not end by themselves.
#pragma once

namespace emulation {

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
