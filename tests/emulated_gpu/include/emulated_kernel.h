// What a compiled kernel and the emulated driver (library/driver.cpp) share.
//
// Kernels run one at a time, block after block. The threads of a kernel without barriers run in a plain loop; with
// barriers each thread of the block is a fiber, and a barrier switches to the next one.
#pragma once
#include <cstddef>

struct EmulatedIndex { unsigned x, y, z; };

// What the driver knows of a kernel: `emulated_kernel_NAME` in its shared object.
struct EmulatedKernel {
    void (*run)(void** parameters);  // all blocks of the launch
    unsigned parameter_count;
    const std::size_t* parameter_sizes;
};

extern "C" {
extern EmulatedIndex emulated_thread, emulated_block, emulated_threads, emulated_blocks;
extern char emulated_shared[256 << 10];              // dynamic shared memory
extern unsigned long long emulated_lane[1024];  // for each thread of the block, what shuffles and votes exchange
void emulated_run_block(void (*body)(void*), void* argument);  // all threads of the block, as fibers
void emulated_sync_block();
void emulated_sync_warp(unsigned mask);
extern unsigned emulated_barriers, emulated_warp_barriers[32];  // how many there were
bool emulated_is_on_fiber_stack(const char* address);

// For the checks of memory accesses (library/checks.h).
void emulated_begin_block();
void emulated_fence();
void emulated_atomic(const void* place, std::size_t size);
}
