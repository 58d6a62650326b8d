// What the race checker knows of order: which accesses happened before those of the running thread.
//
// Order is kept by one counter, `now`, which every synchronisation advances. An access happened before the running
// thread's if it is older than
//   - the launch's start or the last grid barrier;
//   - the last __syncthreads of its block, for a thread of the same block;
//   - the last __syncwarp, for a thread of the same warp;
//   - its thread's arrival at the cluster barrier that the running one waited for last;
//   - what its thread has published and the running one has acquired: a __threadfence followed by an atomic (or a
//     volatile or cache-global store) publishes; an atomic (or such a load) of the same address acquires, and the next
//     __syncthreads hands that to the whole block.
// A message (st.async) publishes what its sender has fenced, and an arrival at a memory barrier what its thread has
// done; who sees the phase's end acquires both, and the data of the messages that landed in it. Until then, whatever
// else orders sender and reader, the data are under way.
#pragma once

#include "state.h"

namespace emulation {

extern uint32_t now, ordered_before;

// Messages are writes by their memory barrier: this and its number take the place of the block's.
constexpr uint32_t kMessages = 1u << 31;

// Everything so far happened before everything that follows.
void order_all();
bool happened_before(const Fiber& fiber, uint32_t time, uint32_t block, unsigned thread);
// What `fiber` (or its block, before a barrier) has fenced.
bool has_fenced(const Fiber& fiber);
void publish_into(View& view, const Fiber& fiber);

}  // namespace emulation
