// Who touches which memory, and in which order: races between streams and between threads, and accesses beyond arrays.
//
// Kernels are compiled so that each access to memory calls a function here (g++'s -fsanitize=thread, without its
// library). For every 4 bytes of device memory the last accesses are kept. What happens is judged by what must
// happen before what, not by the order in which things happened to run: by vector clocks of streams, events and the host,
// and within a launch by barriers, fences and atomics. Of each launch one fault is told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace emulated {

// For each stream, how much of what it was ever given is known to be done.
using Clock = std::vector<size_t>;
using Known = std::shared_ptr<const Clock>;  // nothing, where it is null
Known merged(const Known& one, const Known& other);
Known with(const Known& known, size_t stream, size_t count);
bool covers(const Known& known, size_t stream, size_t count);

// A piece of work of a stream.
struct Work {
    const char* name = ""; // never freed
    size_t stream = 0;      // its number; those of graphs have numbers of their own
    size_t index = 0;       // which piece of the stream's work it is, from 1
    int device = 0;
    Known after;
    bool is_kernel = false;  // it may touch memory of devices only, and its own parameters
};

const char* lasting(const std::string& name);  // a copy of a name that is never freed

void begin_work(const Work& work);  // the machine is locked from here to end_work
void end_work();
void allow(const void* from, size_t size);  // a kernel's parameters
void set_dynamic_shared(size_t size);        // of the kernel's launch
void begin_block(size_t number);
void touch(const void* from, size_t size, bool writes);  // what work does that is no kernel

// Memory.
enum class Owner : unsigned char { device, pinned, shared };
void watch(const void* from, size_t size, Owner owner, int device);
void mark_global(const void* from, size_t size);  // a variable that the host can find
// The variables of a kernel's shared object: those of a block, but for the case that there are __device__ variables, too.
void watch_module(const void* symbol, bool has_globals);
// Memory that a pool may hand out again: other streams have to wait first for this stream's work up to the index.
void mark_made(const void* from, size_t size, size_t stream, size_t index);
// Memory is free for whoever knows that so much work is done, which has to cover all accesses up to now.
void mark_free(const void* from, size_t size, const Known& known);
void forget_memory(const void* from, size_t size);
void allow_peer(int from, int to, bool allowed);
void deny_peers(bool deny);  // whatever was allowed

void fault(const std::string& text);
extern int standard_error;  // the process's own, which a program may have replaced since

}  // namespace emulated
