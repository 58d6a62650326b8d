// The pool of OS threads; see workers.h.
#include "workers.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "time_limit.h"

namespace emulation {
namespace {

// Launches follow each other within microseconds, so a worker looks a while before it sleeps.
constexpr int kLooksBeforeSleep = 2000;

struct Pool {
    std::mutex mutex;
    std::condition_variable work_is_there, work_is_done;
    std::atomic<uint64_t> round{0};
    void (*work)(int) = nullptr;
    int wanted = 0, running = 0, threads = 0;
    pid_t process = getpid();
};
// Never destroyed: the detached threads wait on it while the process ends.
Pool* pool = new Pool;

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

void serve(Pool& mine, int index, uint64_t seen) {
    register_worker_thread(index);
    for (;;) {
        for (int looks = 0; looks < kLooksBeforeSleep && mine.round == seen; ++looks) relax();
        {
            std::unique_lock<std::mutex> lock(mine.mutex);
            mine.work_is_there.wait(lock, [&] { return mine.round != seen; });
            seen = mine.round;
            if (index >= mine.wanted) continue;
        }
        mine.work(index);
        std::lock_guard<std::mutex> lock(mine.mutex);
        if (--mine.running == 0) mine.work_is_done.notify_all();
    }
}

}  // namespace

void run_on_workers(int count, void (*work)(int)) {
    if (count == 1) return work(0);
    if (pool->process != getpid()) pool = new Pool;  // a forked child has none of the threads
    Pool& mine = *pool;
    {
        std::lock_guard<std::mutex> lock(mine.mutex);
        while (mine.threads < count - 1) std::thread(serve, std::ref(mine), ++mine.threads, mine.round.load()).detach();
        mine.work = work;
        mine.wanted = count;
        mine.running = count - 1;
        mine.round++;
    }
    mine.work_is_there.notify_all();
    work(0);
    std::unique_lock<std::mutex> lock(mine.mutex);
    mine.work_is_done.wait(lock, [&] { return mine.running == 0; });
}

}  // namespace emulation
