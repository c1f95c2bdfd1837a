// The emulated machine: devices, streams, events, graphs. libcuda, libcudart and libcublas of the emulation share it.
//
// Work that is given to a stream waits in the stream's queue until the host synchronizes with it, which is as late as
// CUDA allows. So a program that forgets to wait gets wrong numbers here each time, not once in a thousand runs.
#pragma once

#include "checks.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace emulated {

using Task = std::function<void()>;

// Numbers that CUDA's runtime and its driver share.
enum Status {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_MERGE = 902,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_UNJOINED = 904,
    CAPTURE_ISOLATION = 905,
    CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
    CAPTURE_WRONG_THREAD = 908,
};
const char* status_name(int status);
const char* status_text(int status);

constexpr int MOST_DEVICES = 16;
int device_count();       // EMULATED_GPUS, 4 unless it says otherwise
int current_device();     // of this thread
int set_current_device(int device);

// Streams, by their handles; 0 and 1 mean the legacy stream of the current device.
int create_stream(void** stream, bool blocking, int priority);
int destroy_stream(void* stream);
int stream_device(void* stream);  // -1 where there is no such stream
bool is_legacy_stream(void* stream);
bool stream_blocks(void* stream);
int stream_priority(void* stream);
// Work for later; captured where the stream is being captured.
int enqueue(void* stream, const char* name, Task task, bool is_kernel = false);
int enqueue_host_call(void* stream, Task task);  // a function of the host, which may take Python's lock
struct Range {
    const void* start;
    size_t size;
    bool writes;
};
int enqueue_library_call(void* stream, const char* name, std::vector<Range> touches, Task task);  // so may this
// Streams do this together: the first one computes when all have come.
int enqueue_collective(void* const* streams, size_t count, const char* name, const std::vector<std::vector<Range>>& touches, Task task);
int synchronize_stream(void* stream);
int synchronize_device(int device);
void finish_all();
int finish_stream(void* stream);  // do what it has, without the host knowing
int query_stream(void* stream);

int create_event(void** event, bool timed);
int destroy_event(void* event);
int record_event(void* event, void* stream);
int wait_event(void* stream, void* event);
int synchronize_event(void* event);
int query_event(void* event);
int elapsed_time(float* milliseconds, void* first, void* second);

enum CaptureMode { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 };
int begin_capture(void* stream, int mode);
int end_capture(void* stream, void** graph);
int capture_status(void* stream);  // 0 none, 1 active, 2 invalidated
int refuse_in_capture();           // for calls that CUDA refuses while a capture goes on, such as to allocate
int instantiate_graph(void** executable, void* graph);
int launch_graph(void* executable, void* stream);
int destroy_graph(void* graph);  // or an executable one

// Memory, by address.
enum class Kind { pageable, pinned, device, managed };
struct Piece {
    size_t size;
    Kind kind;
    int device;
    const char* start;
};
void memory_of(int device, size_t* unused, size_t* total);  // 4 GiB, or EMULATED_GPU_MEMORY
int allocate(void** address, size_t size, Kind kind);
int release(void* address);                     // waits for all devices, as CUDA does
int release_later(void* address, void* stream);
// Gives memory of its own to each array, which no other one gets while work that may use it waits.
int allocate_array(void** address, size_t size, void* stream);
int release_array(void* address, void* stream);
int add_pinned(void* address, size_t size);  // memory that the program allocated
int remove_pinned(void* address);
Piece piece_at(const void* address);
void pieces_around(const void* address, Piece* before, Piece* after);  // of size 0, where there is none

// What the host has called for (record.cpp): by all threads, by the present one, and as a log.
enum Called { LAUNCHES, REPLAYS, COPIES, SETS, ALLOCATIONS, RECORDS, WAITS, READS, SYNCHRONIZATIONS, EVENTS, STREAMS, CALLED };
void count(Called what, const std::string& log = "");

}  // namespace emulated
