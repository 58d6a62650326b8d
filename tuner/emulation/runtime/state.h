// The data of a running launch, shared by all parts of the runtime: fibers, warps, blocks, workers, the launch.
//
// A CUDA thread is a fiber. A block's fibers live on one worker (an OS thread) and run one at a time until they wait.
// An ordinary launch takes block after block (or cluster after cluster); a cooperative one keeps all blocks alive and
// alternates between them.
#pragma once

#include <stdint.h>
#include <string.h>

#include <atomic>
#include <deque>
#include <map>
#include <string>
#include <vector>

#define MNT_EMULATION_RUNTIME 1
#include "../headers/emulation/interface.h"
#include "context.h"

namespace emulation {

enum class State : uint8_t {
    ready,
    running,
    at_collective,
    at_barrier,
    at_cluster_barrier,
    at_grid_barrier,
    yielded,
    done
};

// ---- what the race checker knows (checker.cpp); times come from one counter that every synchronisation advances

// What one block has made visible to others: all that it did before `block_time`, and more of single threads.
struct Published {
    uint32_t block_time = 0;
    std::map<unsigned, uint32_t> thread_time;
};
using View = std::map<uint32_t, Published>;  // by block

// The last write of 2 bytes of memory, and the last read by one block; `elsewhere`, by a block before it that it may not
// have heard of (one block's asynchronous copy may be on its way while another still reads).
struct ShadowRead {
    uint32_t time, block;
    uint16_t thread;
    uint8_t kind;
};
struct ShadowCell {
    uint32_t write_time, write_block;
    uint16_t write_thread;
    uint8_t write_kind;
    ShadowRead read, elsewhere;
};

// ---- threads, warps, blocks

struct AsyncCopy {
    char* to;
    const char* from;
    size_t bytes, zero_fill;
    int group;
};

// st.async: data on their way to a place in the shared memory of the block whose memory barrier counts them.
struct Message {
    size_t offset, bytes;
    char data[8];
};

struct Fiber;
// An mbarrier. A phase ends when nobody has still to arrive and as many bytes have landed as were expected.
struct MemoryBarrier {
    uint32_t id;  // among those of the launch
    size_t offset;
    const Fiber* maker;
    bool fenced;              // fence.mbarrier_init by its maker
    uint32_t published;       // phases of the cluster's barrier after which others may use it; 0: not yet
    uint32_t count, pending;  // arrivals of a phase, and those still to come
    int64_t bytes_due;        // expected, less what has landed
    uint32_t phase;
    bool observed;  // somebody has seen the end of the last phase
    std::deque<Message> under_way;
    size_t bytes_under_way;
    // Race checker: when the last phase ended, what its end makes visible, and what the next one's will.
    uint32_t ended;
    View visible, gathered;
};

struct Block;
struct Cluster;
struct Fiber : MntThread {
    Context context;
    State state;
    unsigned warp, rank;
    char* stack;
    // Where and in what the fiber waits.
    const char* file;
    int line;
    int collective;
    unsigned mask;
    void* lane_data;
    std::vector<AsyncCopy> copies;
    int copy_group;
    uint32_t cluster_arrivals, cluster_waits;
    View acquired, fenced;

    Block* owner() const;
};

struct Warp {
    unsigned live, waiting, exited;
    uint8_t ready[32];  // ring of lanes
    unsigned ready_head, ready_count;
    bool queued;
    uint32_t last_sync;
};

struct Block : MntBlock {
    uint32_t id;
    int threads, arrived, exited, at_grid_barrier, at_cluster_barrier;
    bool started;
    std::vector<Fiber*> fibers;
    std::vector<Warp> warps;
    std::vector<unsigned> warp_queue;
    size_t warp_queue_head;
    int current_warp;
    std::vector<Fiber*> yielded;
    // __syncthreads: where the first arrived, and the running and the finished reduction.
    const char* barrier_file;
    int barrier_line;
    Fiber* barrier_first;
    int barrier_reduction, barrier_true, barrier_result;
    // Dynamic shared memory ends at a page that cannot be touched.
    size_t shared_bytes;
    char* shared_mapping;
    size_t shared_mapping_bytes;
    std::vector<char> static_shared_copy;
    Cluster* cluster;
    std::map<size_t, MemoryBarrier> memory_barriers;  // by offset in dynamic shared memory
    // Race checker.
    std::vector<ShadowCell> shared_shadow, static_shadow;
    uint32_t last_barrier, fenced_barrier;
    bool fence_since_barrier, any_acquired;
    View view;

    bool finished() const { return exited == threads; }
};

// Consecutive blocks that run together, on one worker, and use each other's shared memory.
struct Cluster {
    std::vector<Block*> blocks;  // by rank
    int threads;
    uint32_t phase;  // of its barrier: how often all have met
    int arrived, exited, exited_after_arriving;
    // Race checker, by phase modulo 3 (threads that have yet to wait for a phase, and threads a phase ahead): when each
    // thread arrived, the first one of each block, and what else all had seen by then.
    std::vector<uint32_t> arrival[3], first_arrival[3];
    View seen[3];
};

inline Block* Fiber::owner() const { return static_cast<Block*>(block); }

// ---- modules, launches, workers

// A kernel's loaded library.
struct Module {
    void (*entry)(void**);
    void* (*static_shared)();
    std::string name;
    uintptr_t base, end, text_begin, text_end;
    // __shared__ variables lie in the library's thread-local segment; 0 bytes where it has none but the marker.
    size_t static_shared_bytes;
    ptrdiff_t marker_offset;
};

// Mirrored field by field by tuner/emulation/library.py.
struct LaunchRequest {
    Module* module;
    void** arguments;
    uint64_t shared_bytes;
    double time_limit_s;
    char* reports;  // out: one per line, to be freed with mnt_emulation_free_text; null where all went well
    uint32_t grid[3], block[3];
    int32_t cooperative, threads, seed, precise, checked, cluster;
};

struct Launch {
    const LaunchRequest* request;
    Module* module;
    dim3 grid, block;
    uint32_t blocks, cluster, clusters;
    int workers, seed;
    bool cooperative, precise, checked;
    std::vector<uint32_t> order;  // of blocks, cluster by cluster
    std::atomic<uint32_t> next{0}, memory_barriers{0};
    std::atomic<bool> aborting{false}, timed_out{false};

    bool alternates() const { return cooperative || cluster > 1; }
};

struct Worker {
    Context context;
    Fiber* current;
    Block* block;
    uint64_t random;
    std::vector<Fiber*> fibers;
    size_t fibers_used;
    std::vector<Block*> blocks;
    std::vector<Cluster*> clusters;
    char* static_shared;

    ~Worker();

    uint64_t next_random() {
        random ^= random << 13;
        random ^= random >> 7;
        return random ^= random << 17;
    }
};

constexpr size_t kStackBytes = 128 << 10;
constexpr size_t kGuardBytes = 1 << 20;  // address space only: a stray index should not reach a neighbour
constexpr size_t kPageBytes = 4096;
constexpr size_t kWmmaAlignment = 32;
constexpr uint64_t kMaxSharedBytes = 227 << 10;  // the most that any GPU offers a block

inline size_t round_up(size_t bytes, size_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

extern __thread Worker* this_worker __attribute__((tls_model("initial-exec")));
extern Launch* current_launch;

inline Fiber* this_fiber() { return static_cast<Fiber*>(mnt_emulation_thread); }

}  // namespace emulation
