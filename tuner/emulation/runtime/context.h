// Switching between stacks: 30 ns by a hand-written switch on x86-64, ucontext (about 400 ns) on every other processor.
#pragma once

#include <stddef.h>

#if !defined(__x86_64__) && !defined(MNT_EMULATION_UCONTEXT)
#define MNT_EMULATION_UCONTEXT 1
#endif
#ifdef MNT_EMULATION_UCONTEXT
#include <ucontext.h>
#else
extern "C" void mnt_switch_stack(void** save_here, void* switch_to);
#endif

namespace emulation {

// A suspended flow of control. It stays on the OS thread that it was made on.
struct Context {
#ifdef MNT_EMULATION_UCONTEXT
    ucontext_t saved;
#else
    void* stack_pointer;
#endif
};

// Makes `context` start at `entry`, which must never return, on the stack that ends at `stack_end`.
void start_context(Context& context, char* stack, char* stack_end, void (*entry)());

inline void switch_context(Context& from, Context& to) {
#ifdef MNT_EMULATION_UCONTEXT
    swapcontext(&from.saved, &to.saved);
#else
    mnt_switch_stack(&from.stack_pointer, to.stack_pointer);
#endif
}

}  // namespace emulation
