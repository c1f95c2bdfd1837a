// Blocks whose threads wait for each other: each thread is a fiber with a stack of its own.
#include "../include/emulated_kernel.h"
#include "checks.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

extern "C" {
EmulatedIndex emulated_thread, emulated_block, emulated_threads, emulated_blocks;
alignas(4096) char emulated_shared[256 << 10];  // whole pages, for the checks
unsigned long long emulated_lane[1024];
unsigned emulated_barriers, emulated_warp_barriers[32];
}

namespace {

constexpr unsigned MOST_THREADS = 1024;
constexpr size_t STACK = 128 << 10;
enum class State : unsigned char { ready, at_block_barrier, at_warp_barrier, done };

#if defined(__x86_64__)
using Context = void*;  // the stack pointer; the registers that a call preserves are on the stack
extern "C" void emulated_switch(Context* from, Context to);
asm(R"(
    .text
    .globl emulated_switch
    .hidden emulated_switch
    .type emulated_switch, @function
emulated_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size emulated_switch, .-emulated_switch
)");
void prepare(Context& context, char* stack, void (*entry)()) {
    auto* top = reinterpret_cast<uintptr_t*>(stack + STACK);
    *--top = 0;  // in place of a return address, so that the stack is aligned as at a call
    *--top = reinterpret_cast<uintptr_t>(entry);
    for (int i = 0; i < 6; ++i) *--top = 0;
    context = top;
}
void change(Context& from, Context& to) { emulated_switch(&from, to); }
#else
using Context = ucontext_t;
void prepare(Context& context, char* stack, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = STACK;
    makecontext(&context, entry, 0);
}
void change(Context& from, Context& to) { swapcontext(&from, &to); }
#endif

struct Fiber {
    Context context;
    State state;
    unsigned mask;  // the lanes that it waits for at a warp barrier
    EmulatedIndex index;
};

std::vector<Fiber> fibers;
char* stacks = nullptr;
Context scheduler;
Fiber* running = nullptr;
void (*body)(void*) = nullptr;
void* argument = nullptr;

void give_up(const char* what) {
    dprintf(emulated::standard_error, "emulated GPU: %s\n", what);
    std::abort();
}

void wait_as(State state) {
    if (!running) give_up("a barrier in a kernel that was taken for one without barriers");
    running->state = state;
    change(running->context, scheduler);
}

void run_fiber() {
    body(argument);
    running->state = State::done;
    change(running->context, scheduler);
}

bool release_block(unsigned count) {
    for (unsigned i = 0; i < count; ++i)
        if (fibers[i].state != State::done && fibers[i].state != State::at_block_barrier) return false;
    for (unsigned i = 0; i < count; ++i)
        if (fibers[i].state == State::at_block_barrier) fibers[i].state = State::ready;
    ++emulated_barriers;
    return true;
}

// A warp goes on when all lanes that are waited for wait, or have ended.
bool release_warp(unsigned first, unsigned count) {
    unsigned waiting = 0, ended = 0, wanted = 0;
    for (unsigned lane = 0; lane < 32; ++lane) {
        if (first + lane >= count || fibers[first + lane].state == State::done) ended |= 1u << lane;
        else if (fibers[first + lane].state == State::at_warp_barrier) {
            waiting |= 1u << lane;
            wanted |= fibers[first + lane].mask;
        }
    }
    if (!waiting || (wanted & ~(waiting | ended))) return false;
    for (unsigned lane = 0; lane < 32; ++lane)
        if (waiting >> lane & 1) fibers[first + lane].state = State::ready;
    ++emulated_warp_barriers[first / 32];
    return true;
}

bool release_any(unsigned count) {
    if (release_block(count)) return true;
    bool released = false;
    for (unsigned first = 0; first < count; first += 32) released |= release_warp(first, count);
    return released;
}

bool all_done(unsigned count) {
    for (unsigned i = 0; i < count; ++i)
        if (fibers[i].state != State::done) return false;
    return true;
}

void make_stacks() {
    void* room = mmap(nullptr, STACK * MOST_THREADS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) give_up("no memory for the stacks of a block");
    stacks = static_cast<char*>(room);
    fibers.resize(MOST_THREADS);
}

}  // namespace

extern "C" bool emulated_is_on_fiber_stack(const char* address) { return stacks && address >= stacks && address < stacks + STACK * MOST_THREADS; }
extern "C" void emulated_sync_block() { wait_as(State::at_block_barrier); }
extern "C" void emulated_sync_warp(unsigned mask) {
    if (running) running->mask = mask;
    wait_as(State::at_warp_barrier);
}

extern "C" void emulated_run_block(void (*kernel)(void*), void* with) {
    const EmulatedIndex size = emulated_threads;
    const unsigned count = size.x * size.y * size.z;
    if (!stacks) make_stacks();
    body = kernel;
    argument = with;
    for (unsigned i = 0; i < count; ++i) {
        fibers[i].state = State::ready;
        fibers[i].index = {i % size.x, i / size.x % size.y, i / size.x / size.y};
        prepare(fibers[i].context, stacks + STACK * i, run_fiber);
    }
    while (true) {
        for (unsigned i = 0; i < count; ++i) {
            if (fibers[i].state != State::ready) continue;
            running = &fibers[i];
            emulated_thread = running->index;
            change(scheduler, running->context);
        }
        running = nullptr;
        if (all_done(count)) return;
        if (!release_any(count)) give_up("threads of a block wait for each other at different barriers");
    }
}
