// Who touches which memory, and in which order: races between streams and between threads, and accesses beyond arrays.
//
// Kernels are compiled so that each access to memory calls a function here (g++'s -fsanitize=thread, without its
// library). For every 4 bytes of device memory the last accesses are kept. What happens is judged by what must come
// before what, not by the order in which things happened to run: by clocks of streams, events and the host, and within
// a launch by barriers, fences and atomics.
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
    const char* name = "";  // lives for ever
    size_t stream = 0;      // its number; those of graphs have numbers of their own
    size_t index = 0;       // which piece of the stream's work it is, from 1
    int device = 0;
    Known after;
    bool is_kernel = false;  // it may touch memory of devices only, and its own parameters
};

const char* lasting(const std::string& name);  // a copy of a name that lives for ever

void begin_work(const Work& work);  // the machine is locked from here to end_work
void end_work();
void allow(const void* from, size_t size);  // a kernel's parameters
void begin_block(size_t number);
void touch(const void* from, size_t size, bool writes);  // what work does that is no kernel

// Memory.
enum class Owner : unsigned char { device, pinned, shared };
void watch(const void* from, size_t size, Owner owner, int device);
void mark_global(const void* from, size_t size);  // a variable that the host can find
void watch_module(const void* symbol);  // the variables of a kernel's shared object
// Memory may be what a stream has used up to now: another one has to wait for that.
void mark_made(const void* from, size_t size, size_t stream, size_t index);
// From now on memory may be used again by who knows of so much work: all its users have to be among that.
void mark_free(const void* from, size_t size, const Known& known);
void forget_memory(const void* from, size_t size);
void allow_peer(int from, int to, bool allowed);
void deny_peers(bool deny);  // whatever was allowed

void fault(const std::string& text);

}  // namespace emulated
