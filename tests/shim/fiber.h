// Fibers: stacks that the launching thread runs on in turn. One is entered through the C library's
// contexts, which take a system call, and from then on resumed by _longjmp, which takes 10 ns.
#pragma once
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <vector>

namespace shim {
namespace {

constexpr size_t STACK_BYTES = 128 << 10, STACKS_AT_ONCE = 64;

struct Fiber {
    jmp_buf resume;
    char* stack;
    bool fresh;  // it has to be entered by its first function
};

jmp_buf scheduler;
Fiber* entering;
std::vector<Fiber*> all_fibers, free_fibers;

// Leave a fiber; it goes on from here when it is resumed.
__attribute__((noinline)) void leave(Fiber* self) {
    if (!_setjmp(self->resume)) _longjmp(scheduler, 1);
}

// Run a fiber until it leaves. A fresh one begins with `first`, which never returns; it finds its
// fiber in `entering`.
__attribute__((noinline)) void enter(Fiber* fiber, void (*first)()) {
    if (_setjmp(scheduler)) return;
    if (!fiber->fresh) _longjmp(fiber->resume, 1);
    fiber->fresh = false;
    entering = fiber;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = fiber->stack;
    context.uc_stack.ss_size = STACK_BYTES;
    context.uc_link = nullptr;
    makecontext(&context, first, 0);
    setcontext(&context);
}

// Take a fiber that nothing runs in; null when there is no memory for more.
Fiber* free_fiber() {
    if (free_fibers.empty()) {
        void* const stacks = mmap(nullptr, STACK_BYTES * STACKS_AT_ONCE, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stacks == MAP_FAILED) return nullptr;
        for (size_t k = STACKS_AT_ONCE; k-- > 0;) {
            Fiber* const fiber = new Fiber;
            fiber->stack = static_cast<char*>(stacks) + k * STACK_BYTES;
            fiber->fresh = true;
            all_fibers.push_back(fiber);
            free_fibers.push_back(fiber);
        }
    }
    Fiber* const fiber = free_fibers.back();
    free_fibers.pop_back();
    return fiber;
}

// After a failure: what still waits will never go on, so that every fiber begins anew.
void take_fibers_back() {
    free_fibers = all_fibers;
    for (Fiber* fiber : all_fibers) fiber->fresh = true;
}

}  // namespace
}  // namespace shim
