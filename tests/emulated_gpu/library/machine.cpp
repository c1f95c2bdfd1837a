// Devices, streams, events, graphs and memory of the emulated machine; machine.h describes them.
#include "machine.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>

namespace emulated {

namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t LONGEST_QUEUE = 4096;  // a real GPU works on, too, while the host gives it more

struct Stream;
struct Capture;

// Held while anything of the machine changes, and while kernels run: one at a time, so atomics can be plain code.
class Lock {
public:
    void lock() { mutex.lock(); ++depth; }
    void unlock() { --depth; mutex.unlock(); }
    void call_without(const Task& task) {
        const int held = depth;
        for (int i = 0; i < held; ++i) unlock();
        task();
        for (int i = 0; i < held; ++i) lock();
    }

private:
    std::recursive_mutex mutex;
    int depth = 0;
};

// The first `count` items of a stream's queue, or of a chain of a capture.
struct Marker {
    std::shared_ptr<Stream> stream;
    std::shared_ptr<Capture> capture;
    size_t chain = 0;
    size_t count = 0;
};

struct Item {
    Task task;
    std::vector<Marker> after;
    bool on_host = false;
};

struct Stream : std::enable_shared_from_this<Stream> {
    int device;
    bool blocking;
    int priority = 0;
    std::deque<Item> queue;
    size_t given = 0, done = 0;
    bool in_host_call = false;
    std::shared_ptr<Capture> capture;
    size_t chain = 0;  // of the capture
};

// A graph, too: what was captured, one chain of items for each stream that took part.
struct Capture {
    int mode;
    std::thread::id thread;
    Stream* origin;
    std::vector<std::vector<Item>> chains;
    std::vector<std::shared_ptr<Stream>> streams;
    bool invalidated = false;
};

struct Event {
    bool timed;
    int device;
    bool recorded = false;
    Marker marker;
    std::shared_ptr<Clock::time_point> time;
};

struct Machine {
    Lock lock;
    int devices = 4;
    size_t memory = size_t(4) << 30;  // of each device
    bool eager = false;
    std::map<void*, std::shared_ptr<Stream>> streams;
    std::vector<std::shared_ptr<Stream>> legacy;
    std::map<void*, Event> events;
    std::map<void*, std::shared_ptr<Capture>> graphs;
    std::set<std::shared_ptr<Capture>> captures;  // under way
    std::map<const char*, Piece> pieces;
    size_t allocated[MOST_DEVICES] = {};
    size_t handles = 0x1000;
    int queries = 0;  // without any other call between them


    Machine() {
        if (const char* count = std::getenv("EMULATED_GPUS")) devices = std::max(1, std::min(MOST_DEVICES, std::atoi(count)));
        if (const char* bytes = std::getenv("EMULATED_GPU_MEMORY")) memory = std::strtoull(bytes, nullptr, 10);
        eager = std::getenv("EMULATED_GPU_EAGER") != nullptr;
        for (int device = 0; device < devices; ++device) legacy.push_back(make_stream(device, true));
    }
    std::shared_ptr<Stream> make_stream(int device, bool blocking) {
        auto stream = std::make_shared<Stream>();
        stream->device = device;
        stream->blocking = blocking;
        return stream;
    }
    void* handle() { return reinterpret_cast<void*>(handles += 64); }
};

Machine& machine() {
    static Machine* the_machine = new Machine;  // never destroyed: Python's objects outlive static ones
    return *the_machine;
}
using Guard = std::lock_guard<Lock>;
thread_local int current = 0;

std::shared_ptr<Stream> find(void* handle) {
    if (is_legacy_stream(handle)) return machine().legacy[current];
    auto found = machine().streams.find(handle);
    return found == machine().streams.end() ? nullptr : found->second;
}
bool is_legacy(const Stream& stream) { return machine().legacy[stream.device].get() == &stream; }

// ---- queues

void drain(Stream& stream, size_t count);

// Without the lock: a function of the host takes Python's, which another thread may hold while it waits for this one.
void call_host(const Task& task) { machine().lock.call_without(task); }

// Do the first `count` items of all that the stream was ever given.
void drain(Stream& stream, size_t count) {
    while (stream.done < count) {
        if (stream.in_host_call) {
            machine().lock.call_without([] { std::this_thread::yield(); });
            continue;
        }
        Item item = std::move(stream.queue.front());
        stream.queue.pop_front();
        for (const Marker& marker : item.after) drain(*marker.stream, marker.count);
        stream.in_host_call = item.on_host;
        if (item.on_host) call_host(item.task);
        else if (item.task) item.task();
        stream.in_host_call = false;
        ++stream.done;
    }
}

Marker end_of(Stream& stream) { return {stream.shared_from_this(), nullptr, 0, stream.given}; }

// The legacy stream waits for the blocking streams of its device, and they for it.
void add_implicit_order(Stream& stream, Item& item) {
    auto wait_for = [&](Stream& other) {
        if (other.done < other.given) item.after.push_back(end_of(other));
    };
    if (is_legacy(stream)) {
        for (auto& [handle, other] : machine().streams)
            if (other->device == stream.device && other->blocking) wait_for(*other);
    } else if (stream.blocking) {
        wait_for(*machine().legacy[stream.device]);
    }
}

int fail(Capture& capture, int status) {
    capture.invalidated = true;
    return status;
}

// A loop that only asks whether something is done has to end.
int not_ready(Stream& stream) {
    if (++machine().queries > 2) drain(stream, stream.done + 1);
    return NOT_READY;
}

int give(Stream& stream, Item item) {
    machine().queries = 0;
    if (stream.capture) {
        if (stream.capture->invalidated) return CAPTURE_INVALIDATED;
        stream.capture->chains[stream.chain].push_back(std::move(item));
        return OK;
    }
    if (is_legacy(stream))
        for (auto& capture : machine().captures)
            for (auto& captured : capture->streams)
                if (captured->blocking && captured->device == stream.device) return fail(*capture, CAPTURE_IMPLICIT);
    add_implicit_order(stream, item);
    stream.queue.push_back(std::move(item));
    ++stream.given;
    if (machine().eager || stream.queue.size() > LONGEST_QUEUE) drain(stream, stream.given);
    return OK;
}

}  // namespace

// ---- devices

int device_count() { return machine().devices; }
int current_device() { return current; }
int set_current_device(int device) {
    if (device < 0 || device >= machine().devices) return INVALID_DEVICE;
    current = device;
    return OK;
}

const char* status_name(int status) {
    switch (status) {
        case OK: return "cudaSuccess";
        case INVALID_VALUE: return "cudaErrorInvalidValue";
        case OUT_OF_MEMORY: return "cudaErrorMemoryAllocation";
        case INVALID_DEVICE: return "cudaErrorInvalidDevice";
        case INVALID_IMAGE: return "cudaErrorInvalidKernelImage";
        case INVALID_HANDLE: return "cudaErrorInvalidResourceHandle";
        case NOT_FOUND: return "cudaErrorSymbolNotFound";
        case NOT_READY: return "cudaErrorNotReady";
        case CAPTURE_UNSUPPORTED: return "cudaErrorStreamCaptureUnsupported";
        case CAPTURE_INVALIDATED: return "cudaErrorStreamCaptureInvalidated";
        case CAPTURE_MERGE: return "cudaErrorStreamCaptureMerge";
        case CAPTURE_UNMATCHED: return "cudaErrorStreamCaptureUnmatched";
        case CAPTURE_UNJOINED: return "cudaErrorStreamCaptureUnjoined";
        case CAPTURE_ISOLATION: return "cudaErrorStreamCaptureIsolation";
        case CAPTURE_IMPLICIT: return "cudaErrorStreamCaptureImplicit";
        case CAPTURED_EVENT: return "cudaErrorCapturedEvent";
        case CAPTURE_WRONG_THREAD: return "cudaErrorStreamCaptureWrongThread";
        case 801: return "cudaErrorNotSupported";
        default: return "cudaErrorUnknown";
    }
}
const char* status_text(int status) {
    switch (status) {
        case OK: return "no error";
        case CAPTURE_UNSUPPORTED: return "operation not permitted when stream is capturing";
        case CAPTURE_INVALIDATED: return "operation failed due to a previous error during capture";
        case CAPTURE_UNJOINED: return "capturing stream has unjoined work";
        case CAPTURE_ISOLATION: return "dependency created on uncaptured work in another stream";
        case CAPTURE_IMPLICIT: return "operation would make the legacy stream depend on a capturing blocking stream";
        case CAPTURED_EVENT: return "operation not permitted on an event last recorded in a capturing stream";
        case CAPTURE_WRONG_THREAD: return "attempt to terminate a thread-local capture sequence from another thread";
        case 801: return "not supported by the emulated GPU";
        default: return "refused by the emulated GPU";
    }
}

// ---- streams

int create_stream(void** stream, bool blocking, int priority) {
    Guard guard(machine().lock);
    *stream = machine().handle();
    machine().streams[*stream] = machine().make_stream(current, blocking);
    machine().streams[*stream]->priority = priority;
    return OK;
}
int destroy_stream(void* handle) {
    Guard guard(machine().lock);
    auto stream = find(handle);
    if (!stream || is_legacy(*stream)) return INVALID_HANDLE;
    if (stream->capture) fail(*stream->capture, OK);
    else drain(*stream, stream->given);
    machine().streams.erase(handle);
    return OK;
}
int stream_device(void* handle) {
    Guard guard(machine().lock);
    auto stream = find(handle);
    return stream ? stream->device : -1;
}
bool is_legacy_stream(void* handle) { return reinterpret_cast<size_t>(handle) <= 2; }
bool stream_blocks(void* handle) {
    Guard guard(machine().lock);
    auto stream = find(handle);
    return stream && stream->blocking;
}
int stream_priority(void* handle) {
    Guard guard(machine().lock);
    auto stream = find(handle);
    return stream ? stream->priority : 0;
}
int enqueue(void* handle, Task task) {
    Guard guard(machine().lock);
    auto stream = find(handle);
    return stream ? give(*stream, {std::move(task), {}, false}) : INVALID_HANDLE;
}
int enqueue_host_call(void* handle, Task task) {
    Guard guard(machine().lock);
    auto stream = find(handle);
    return stream ? give(*stream, {std::move(task), {}, true}) : INVALID_HANDLE;
}
int synchronize_stream(void* handle) {
    Guard guard(machine().lock);
    auto stream = find(handle);
    if (!stream) return INVALID_HANDLE;
    if (stream->capture) return fail(*stream->capture, CAPTURE_UNSUPPORTED);
    if (is_legacy(*stream)) {  // it waits for the blocking streams, too
        if (int status = give(*stream, {})) return status;
    }
    drain(*stream, stream->given);
    return OK;
}
int synchronize_device(int device) {
    Guard guard(machine().lock);
    for (auto& capture : machine().captures)
        for (auto& captured : capture->streams)
            if (captured->device == device) return fail(*capture, CAPTURE_UNSUPPORTED);
    std::vector<std::shared_ptr<Stream>> all{machine().legacy[device]};
    for (auto& [handle, stream] : machine().streams)
        if (stream->device == device) all.push_back(stream);
    for (auto& stream : all) drain(*stream, stream->given);
    return OK;
}
int query_stream(void* handle) {
    Guard guard(machine().lock);
    auto stream = find(handle);
    if (!stream) return INVALID_HANDLE;
    if (stream->capture) return fail(*stream->capture, CAPTURE_UNSUPPORTED);
    if (stream->done == stream->given) return OK;
    return not_ready(*stream);
}

// ---- events

int create_event(void** event, bool timed) {
    Guard guard(machine().lock);
    *event = machine().handle();
    machine().events[*event] = {timed, current};
    return OK;
}
int destroy_event(void* event) {
    Guard guard(machine().lock);
    return machine().events.erase(event) ? OK : INVALID_HANDLE;
}
int record_event(void* handle, void* stream_handle) {
    Guard guard(machine().lock);
    auto found = machine().events.find(handle);
    auto stream = find(stream_handle);
    if (found == machine().events.end() || !stream) return INVALID_HANDLE;
    Event& event = found->second;
    if (event.device != stream->device) return INVALID_HANDLE;
    if (stream->capture) {
        if (stream->capture->invalidated) return CAPTURE_INVALIDATED;
        event.marker = {nullptr, stream->capture, stream->chain, stream->capture->chains[stream->chain].size()};
        event.recorded = true;
        return OK;
    }
    auto time = std::make_shared<Clock::time_point>();
    event.time = time;
    Item item;
    if (event.timed) item.task = [time] { *time = Clock::now(); };
    if (int status = give(*stream, std::move(item))) return status;
    event.marker = end_of(*stream);
    event.recorded = true;
    return OK;
}
int wait_event(void* stream_handle, void* handle) {
    Guard guard(machine().lock);
    auto found = machine().events.find(handle);
    auto stream = find(stream_handle);
    if (found == machine().events.end() || !stream) return INVALID_HANDLE;
    const Event& event = found->second;
    if (!event.recorded) return OK;
    const auto& capture = event.marker.capture;
    if (!capture) {
        if (stream->capture) return fail(*stream->capture, CAPTURE_ISOLATION);
        if (event.marker.stream->done >= event.marker.count) return OK;
        Item item;
        item.after.push_back(event.marker);
        return give(*stream, std::move(item));
    }
    if (!machine().captures.count(capture)) return stream->capture ? fail(*stream->capture, CAPTURED_EVENT) : CAPTURED_EVENT;
    if (stream->capture && stream->capture != capture) return fail(*stream->capture, CAPTURE_MERGE);
    if (!stream->capture) {  // the stream joins
        if (is_legacy(*stream)) return fail(*capture, CAPTURE_IMPLICIT);
        stream->capture = capture;
        stream->chain = capture->chains.size();
        capture->chains.emplace_back();
        capture->streams.push_back(stream);
    }
    Item item;
    item.after.push_back(event.marker);
    item.after.back().capture = nullptr;  // no circle of owners
    return give(*stream, std::move(item));
}
int synchronize_event(void* handle) {
    Guard guard(machine().lock);
    auto found = machine().events.find(handle);
    if (found == machine().events.end()) return INVALID_HANDLE;
    Marker marker = found->second.marker;
    if (!found->second.recorded) return OK;
    if (marker.capture) return fail(*marker.capture, CAPTURED_EVENT);
    drain(*marker.stream, marker.count);
    return OK;
}
int query_event(void* handle) {
    Guard guard(machine().lock);
    auto found = machine().events.find(handle);
    if (found == machine().events.end()) return INVALID_HANDLE;
    Marker marker = found->second.marker;
    if (!found->second.recorded) return OK;
    if (marker.capture) return fail(*marker.capture, CAPTURED_EVENT);
    if (marker.stream->done >= marker.count) return OK;
    return not_ready(*marker.stream);
}
int elapsed_time(float* milliseconds, void* first, void* second) {
    Guard guard(machine().lock);
    Clock::time_point times[2];
    for (int i = 0; i < 2; ++i) {
        auto found = machine().events.find(i ? second : first);
        if (found == machine().events.end()) return INVALID_HANDLE;
        const Event& event = found->second;
        if (!event.recorded || !event.timed || event.marker.capture) return INVALID_HANDLE;
        if (event.marker.stream->done < event.marker.count) return NOT_READY;
        times[i] = *event.time;
    }
    *milliseconds = std::chrono::duration<float, std::milli>(times[1] - times[0]).count();
    return OK;
}

// ---- captures and graphs

int begin_capture(void* handle, int mode) {
    Guard guard(machine().lock);
    auto stream = find(handle);
    if (!stream) return INVALID_HANDLE;
    if (is_legacy(*stream)) return CAPTURE_UNSUPPORTED;
    if (stream->capture) return fail(*stream->capture, CAPTURE_UNSUPPORTED);
    auto capture = std::make_shared<Capture>();
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->origin = stream.get();
    capture->chains.emplace_back();
    capture->streams.push_back(stream);
    stream->capture = capture;
    stream->chain = 0;
    machine().captures.insert(capture);
    return OK;
}

namespace {
// How many items of each chain the first `count` items of one of them wait for.
void reach(const Capture& capture, size_t chain, size_t count, std::vector<size_t>& reached) {
    while (reached[chain] < count) {
        const Item& item = capture.chains[chain][reached[chain]++];
        for (const Marker& marker : item.after) reach(capture, marker.chain, marker.count, reached);
    }
}
}  // namespace

int end_capture(void* handle, void** graph) {
    Guard guard(machine().lock);
    *graph = nullptr;
    auto stream = find(handle);
    if (!stream) return INVALID_HANDLE;
    auto capture = stream->capture;
    if (!capture) return CAPTURE_UNMATCHED;
    if (capture->origin != stream.get()) return fail(*capture, CAPTURE_UNMATCHED);
    if (capture->mode != RELAXED && capture->thread != std::this_thread::get_id()) return fail(*capture, CAPTURE_WRONG_THREAD);
    for (auto& captured : capture->streams) captured->capture = nullptr;
    machine().captures.erase(capture);
    if (capture->invalidated) return CAPTURE_INVALIDATED;
    std::vector<size_t> reached(capture->chains.size());
    reach(*capture, 0, capture->chains[0].size(), reached);
    for (size_t chain = 0; chain < reached.size(); ++chain)
        if (reached[chain] < capture->chains[chain].size()) return CAPTURE_UNJOINED;
    *graph = machine().handle();
    machine().graphs[*graph] = capture;
    return OK;
}
int capture_status(void* handle) {
    Guard guard(machine().lock);
    auto stream = find(handle);
    return !stream || !stream->capture ? 0 : stream->capture->invalidated ? 2 : 1;
}
int refuse_in_capture() {
    Guard guard(machine().lock);
    for (auto& capture : machine().captures)
        if (capture->mode == GLOBAL || (capture->mode == THREAD_LOCAL && capture->thread == std::this_thread::get_id()))
            return fail(*capture, CAPTURE_UNSUPPORTED);
    return OK;
}
int instantiate_graph(void** executable, void* graph) {
    Guard guard(machine().lock);
    auto found = machine().graphs.find(graph);
    if (found == machine().graphs.end()) return INVALID_HANDLE;
    *executable = machine().handle();
    machine().graphs[*executable] = found->second;
    return OK;
}
namespace {
// Chains are run like streams: what another chain has to do is done when it is waited for.
void run(const Capture& graph, size_t chain, size_t count, std::vector<size_t>& done) {
    while (done[chain] < count) {
        const Item& item = graph.chains[chain][done[chain]++];
        for (const Marker& marker : item.after) run(graph, marker.chain, marker.count, done);
        if (item.on_host) call_host(item.task);
        else if (item.task) item.task();
    }
}
}  // namespace
int launch_graph(void* executable, void* stream) {
    Guard guard(machine().lock);
    auto found = machine().graphs.find(executable);
    if (found == machine().graphs.end()) return INVALID_HANDLE;
    auto graph = found->second;
    return enqueue(stream, [graph] {
        std::vector<size_t> done(graph->chains.size());
        run(*graph, 0, graph->chains[0].size(), done);
    });
}
int destroy_graph(void* graph) {
    Guard guard(machine().lock);
    return machine().graphs.erase(graph) ? OK : INVALID_HANDLE;
}

// ---- memory

namespace {
void forget(const char* address) {
    auto found = machine().pieces.find(address);
    if (found == machine().pieces.end()) return;
    if (found->second.kind != Kind::pinned) machine().allocated[found->second.device] -= found->second.size;
    machine().pieces.erase(found);
}
}  // namespace

void memory_of(int device, size_t* unused, size_t* total) {
    Guard guard(machine().lock);
    *total = machine().memory;
    *unused = machine().memory - machine().allocated[device];
}
int allocate(void** address, size_t size, Kind kind) {
    Guard guard(machine().lock);
    if (int status = refuse_in_capture()) return status;
    size_t& allocated = machine().allocated[current];
    if (kind != Kind::pinned && size > machine().memory - allocated) return OUT_OF_MEMORY;
    if (posix_memalign(address, kind == Kind::pinned ? 4096 : 512, size ? size : 512)) return OUT_OF_MEMORY;
    if (kind != Kind::pinned) {
        std::memset(*address, 0xA5, size);  // a GPU's memory comes with what was in it
        allocated += size;
    }
    machine().pieces[static_cast<char*>(*address)] = {size, kind, current};
    return OK;
}
int release(void* address) {
    if (!address) return OK;
    Guard guard(machine().lock);
    if (int status = refuse_in_capture()) return status;
    if (!machine().pieces.count(static_cast<char*>(address))) return INVALID_VALUE;
    for (int device = 0; device < machine().devices; ++device)
        if (int status = synchronize_device(device)) return status;
    forget(static_cast<char*>(address));
    std::free(address);
    return OK;
}
int release_later(void* address, void* stream) {
    return enqueue(stream, [address] {
        forget(static_cast<char*>(address));
        std::free(address);
    });
}
int add_pinned(void* address, size_t size) {
    Guard guard(machine().lock);
    machine().pieces[static_cast<char*>(address)] = {size, Kind::pinned, current};
    return OK;
}
int remove_pinned(void* address) {
    Guard guard(machine().lock);
    return machine().pieces.erase(static_cast<char*>(address)) ? OK : INVALID_VALUE;
}
Piece piece_at(const void* address) {
    Guard guard(machine().lock);
    auto next = machine().pieces.upper_bound(static_cast<const char*>(address));
    if (next != machine().pieces.begin()) {
        auto found = std::prev(next);
        if (static_cast<const char*>(address) < found->first + found->second.size) return found->second;
    }
    return {0, Kind::pageable, 0};
}

}  // namespace emulated
