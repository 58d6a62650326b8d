// The stack switch itself, and how a fresh stack is laid out for it.
#include "context.h"

#include <stdint.h>

#ifndef MNT_EMULATION_UCONTEXT
// Only what the System V ABI makes the callee keep has to be saved: the compiler treats the switch as a call.
asm(R"(
.text
.globl mnt_switch_stack
.hidden mnt_switch_stack
.type mnt_switch_stack,@function
mnt_switch_stack:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    pop %rcx
    jmp *%rcx
.size mnt_switch_stack,.-mnt_switch_stack
)");
#endif

namespace emulation {

void start_context(Context& context, char* stack, char* stack_end, void (*entry)()) {
#ifdef MNT_EMULATION_UCONTEXT
    getcontext(&context.saved);
    context.saved.uc_stack.ss_sp = stack;
    context.saved.uc_stack.ss_size = static_cast<size_t>(stack_end - stack);
    context.saved.uc_link = nullptr;
    makecontext(&context.saved, entry, 0);
#else
    (void)stack;
    void** top = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(stack_end) & ~uintptr_t{63});
    *--top = nullptr;  // entry's return address: keeps the stack aligned as after a call
    *--top = reinterpret_cast<void*>(entry);
    for (int saved_register = 0; saved_register < 6; ++saved_register) *--top = nullptr;
    context.stack_pointer = top;
#endif
}

}  // namespace emulation
