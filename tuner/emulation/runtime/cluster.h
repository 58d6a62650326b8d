// A cluster of blocks: its barrier in two halves, and when it can go on no more.
#pragma once

#include "state.h"

namespace emulation {

// For blocks that have been started, at the begin of their run.
void reset_cluster(Cluster& cluster);
// The running fiber has ended: the cluster's barrier waits for it no more, but its absence is a fault.
void leave_cluster(const Fiber& fiber);
// Reports threads that wait for the cluster while none of its threads can run.
void report_if_stuck(const Cluster& cluster);

// memory_barriers.cpp: reports messages that are under way to a block that has ended.
void check_messages(const Block& block);

}  // namespace emulation
