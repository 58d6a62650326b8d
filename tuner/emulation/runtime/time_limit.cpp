// The time limit of launches; see time_limit.h.
#include "time_limit.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "faults.h"
#include "report.h"
#include "scheduler.h"

namespace emulation {
namespace {

int interrupt_signal() { return SIGRTMIN + 7; }

bool in_kernel_code(uintptr_t pc) {
    const Module& module = *current_launch->module;
    return pc >= module.text_begin && pc < module.text_end;
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
               current_launch->request->time_limit_s, position_of_fiber(pc).c_str());
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
        for (int i = 0; i < watch.workers_used; ++i)
            pthread_kill(watch.workers[static_cast<size_t>(i)], interrupt_signal());
    }
}

void start_watching() {
    // A forked child has no such thread any more.
    if (watch.started && watch.process == getpid()) return;
    if (watch.started) new (&watch.mutex) std::mutex, new (&watch.wake) std::condition_variable;
    watch.started = true;
    watch.idle = true;
    watch.process = getpid();
    struct sigaction action{};
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

void register_worker_thread(int index) {
    std::lock_guard<std::mutex> lock(watch.mutex);
    if (watch.workers.size() <= static_cast<size_t>(index))
        watch.workers.resize(static_cast<size_t>(index) + 1, pthread_self());
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
