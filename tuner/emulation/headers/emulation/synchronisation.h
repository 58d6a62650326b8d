// Barriers, fences, warp shuffles and votes, and the few functions that end or time a thread.
#pragma once

#include "interface.h"

inline void __syncthreads(MNT_SITE) { mnt_emulation_barrier(MNT_REDUCE_NONE, 0, file_, line_); }
inline int __syncthreads_count(int predicate, MNT_SITE) {
    return mnt_emulation_barrier(MNT_REDUCE_COUNT, predicate, file_, line_);
}
inline int __syncthreads_and(int predicate, MNT_SITE) {
    return mnt_emulation_barrier(MNT_REDUCE_AND, predicate, file_, line_);
}
inline int __syncthreads_or(int predicate, MNT_SITE) {
    return mnt_emulation_barrier(MNT_REDUCE_OR, predicate, file_, line_);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, MNT_SITE) {
    mnt_emulation_collective(mask, MNT_SYNCWARP, nullptr, nullptr, file_, line_);
}

MNT_UNCHECKED inline void __threadfence() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    mnt_emulation_fence();
}
MNT_UNCHECKED inline void __threadfence_system() { __threadfence(); }
MNT_UNCHECKED inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __nanosleep(unsigned) { mnt_emulation_yield(); }
inline long long clock64() { return mnt_emulation_clock(); }
inline int clock() { return static_cast<int>(mnt_emulation_clock()); }
inline void __trap(MNT_SITE) { mnt_emulation_trap("__trap()", file_, line_); }

namespace emulation {
template <class T>
struct Shuffle {
    T given, taken;
    int source;
};
template <class T>
MNT_UNCHECKED void perform_shuffle(void** lanes, unsigned) {
    for (int lane = 0; lane < 32; ++lane) {
        if (!lanes[lane]) continue;
        auto* mine = static_cast<Shuffle<T>*>(lanes[lane]);
        auto* source = static_cast<Shuffle<T>*>(lanes[mine->source & 31]);
        if (source)
            mine->taken = source->given;
        else
            __builtin_memset(static_cast<void*>(&mine->taken), 0xff, sizeof(T));  // a lane outside the mask: poison
    }
}
template <class T>
MNT_UNCHECKED inline T shuffle(unsigned mask, T value, int source, const char* file, int line) {
    Shuffle<T> exchange{value, value, source};
    mnt_emulation_collective(mask, MNT_SHUFFLE, &exchange, perform_shuffle<T>, file, line);
    return exchange.taken;
}

struct Vote {
    int predicate;
    unsigned ballot;
};
MNT_UNCHECKED inline void perform_vote(void** lanes, unsigned) {
    unsigned ballot = 0;
    for (int lane = 0; lane < 32; ++lane)
        if (lanes[lane] && static_cast<Vote*>(lanes[lane])->predicate) ballot |= 1u << lane;
    for (int lane = 0; lane < 32; ++lane)
        if (lanes[lane]) static_cast<Vote*>(lanes[lane])->ballot = ballot;
}
}  // namespace emulation

template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, MNT_SITE) {
    const int lane = static_cast<int>(emulation::lane());
    return emulation::shuffle(mask, value, (lane & -width) | (source & (width - 1)), file_, line_);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, MNT_SITE) {
    const int lane = static_cast<int>(emulation::lane()), source = lane ^ bits;
    return emulation::shuffle(mask, value, (source & -width) > (lane & -width) ? lane : source, file_, line_);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, MNT_SITE) {
    const int lane = static_cast<int>(emulation::lane()), source = lane + static_cast<int>(delta);
    return emulation::shuffle(mask, value, (source & -width) != (lane & -width) ? lane : source, file_, line_);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, MNT_SITE) {
    const int lane = static_cast<int>(emulation::lane()), source = lane - static_cast<int>(delta);
    return emulation::shuffle(mask, value, source < (lane & -width) ? lane : source, file_, line_);
}

MNT_UNCHECKED inline unsigned __ballot_sync(unsigned mask, int predicate, MNT_SITE) {
    emulation::Vote vote{predicate, 0};
    mnt_emulation_collective(mask, MNT_VOTE, &vote, emulation::perform_vote, file_, line_);
    return vote.ballot;
}
inline int __any_sync(unsigned mask, int predicate, MNT_SITE) {
    return __ballot_sync(mask, predicate, file_, line_) != 0;
}
inline int __all_sync(unsigned mask, int predicate, MNT_SITE) {
    return __ballot_sync(mask, !predicate, file_, line_) == 0;
}
