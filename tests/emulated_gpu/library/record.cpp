// What the host has called for: counts and a log; and the functions that tests call (machine.py).
#include "machine.h"

#include <atomic>
#include <mutex>

namespace emulated {

namespace {
std::atomic<long> counts[CALLED];
thread_local long counts_of_thread[CALLED];
std::mutex log_mutex;
std::string* log = nullptr;
}  // namespace

void count(Called what, const std::string& line) {
    ++counts[what];
    ++counts_of_thread[what];
    if (line.empty()) return;
    std::lock_guard<std::mutex> guard(log_mutex);
    if (log) *log += line + "\n";
}

}  // namespace emulated

// ---- what tests call (machine.py)

using namespace emulated;

extern "C" {

void emulated_counts(long* found, int of_thread) {
    for (int i = 0; i < CALLED; ++i) found[i] = of_thread ? counts_of_thread[i] : counts[i].load();
}
// A log of calls, a line each; it is read piece by piece.
void emulated_begin_log() {
    std::lock_guard<std::mutex> guard(log_mutex);
    delete log;
    log = new std::string;
}
void emulated_end_log() {
    std::lock_guard<std::mutex> guard(log_mutex);
    delete log;
    log = nullptr;
}
int emulated_allocate(void** address, size_t size, void* stream) {
    count(ALLOCATIONS, "allocate " + std::to_string(current_device()) + " " + std::to_string(size));
    return allocate_array(address, size, stream);
}
int emulated_release(void* address, void* stream) { return release_array(address, stream); }
int emulated_finish(void* stream) { return finish_stream(stream); }
// Does all that streams have, but for what is being captured.
void emulated_finish_all() { finish_all(); }
// What a library does with memory, by a function of the host.
int emulated_call(void* stream, const char* name, void (*call)(void*), void* with, const Range* touches, size_t count_of_touches) {
    count(LAUNCHES, "launch " + std::to_string(stream_device(stream)) + " " + name);
    return enqueue_library_call(stream, lasting(name), {touches, touches + count_of_touches}, [=] { call(with); });
}

// What NCCL does with one stream of each rank; touches of the first rank come first.
int emulated_collective(void* const* streams, size_t ranks, const char* name, void (*call)(void*), void* with, const Range* touches,
                        const size_t* counts_of_touches) {
    std::vector<std::vector<Range>> all;
    for (size_t i = 0; i < ranks; ++i) {
        count(LAUNCHES, "launch " + std::to_string(stream_device(streams[i])) + " " + name);
        all.emplace_back(touches, touches + counts_of_touches[i]);
        touches += counts_of_touches[i];
    }
    return enqueue_collective(streams, ranks, lasting(name), all, [=] { call(with); });
}
void emulated_deny_peers(int deny) { deny_peers(deny); }
int emulated_stream_device(void* stream) { return stream_device(stream); }
const char* emulated_read_log() {
    static std::string text;
    std::lock_guard<std::mutex> guard(log_mutex);
    text = log ? *log : "";
    if (log) log->clear();
    return text.c_str();
}

}  // extern "C"
