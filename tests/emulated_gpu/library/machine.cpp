// Devices, streams, events, graphs and memory of the emulated machine; machine.h describes them.
#include "machine.h"

#include "../include/emulated_kernel.h"

#include <algorithm>
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

using Time = std::chrono::steady_clock;
constexpr size_t PAGE = 4096;
constexpr size_t MOST_RELEASED = size_t(256) << 20;
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
    bool host_knows = false;      // when it is done
    bool checked = false;         // its accesses are
    Work work;
    std::vector<Range> touches;
    std::vector<size_t> reached;  // in a graph: how many items of each chain come before it
};

struct Stream : std::enable_shared_from_this<Stream> {
    int device;
    bool blocking;
    size_t number;
    Known known;
    int priority = 0;
    std::deque<Item> queue;
    size_t given = 0, done = 0;
    bool busy = false;  // a thread does an item, and may have given up the lock to call a function of the host
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

struct Executable {
    std::shared_ptr<Capture> graph;
    std::vector<size_t> numbers;  // of the chains, as if each were a stream
    size_t launches = 0;
};

struct Event {
    bool timed;
    int device;
    bool recorded = false;
    Marker marker;
    Known known;
    std::shared_ptr<Time::time_point> time;
};

struct Machine {
    Lock lock;
    int devices = 4;
    size_t memory = size_t(4) << 30;  // of each device
    bool eager = false;
    std::map<void*, std::shared_ptr<Stream>> streams;
    Known ended[MOST_DEVICES];  // the work of streams that were destroyed
    std::vector<std::shared_ptr<Stream>> legacy;
    std::map<void*, Event> events;
    std::map<void*, std::shared_ptr<Capture>> graphs;
    std::map<void*, std::shared_ptr<Executable>> executables;
    std::set<std::shared_ptr<Capture>> captures;  // under way
    std::map<const char*, Piece> pieces;
    std::vector<void*> released;  // arrays that work may still use
    size_t released_bytes = 0;
    Known host;  // what the host knows to be done
    size_t numbers = 0;
    size_t allocated[MOST_DEVICES] = {};
    size_t handles = 0x1000;
    int queries = 0;  // without any other call between them


    Machine() {
        if (const char* count = std::getenv("EMULATED_GPUS")) devices = std::max(1, std::min(MOST_DEVICES, std::atoi(count)));
        if (const char* bytes = std::getenv("EMULATED_GPU_MEMORY")) memory = std::strtoull(bytes, nullptr, 10);
        eager = std::getenv("EMULATED_GPU_EAGER") != nullptr;
        for (int device = 0; device < devices; ++device) legacy.push_back(make_stream(device, true));
        watch(emulated_shared, sizeof emulated_shared, Owner::shared, 0);
    }
    std::shared_ptr<Stream> make_stream(int device, bool blocking) {
        auto stream = std::make_shared<Stream>();
        stream->device = device;
        stream->blocking = blocking;
        stream->number = ++numbers;
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

// Whether to wait where another thread is at work. CUDA returns at once from some functions, and so CuPy calls these with
// Python's lock: the other thread may be in a function of the host that needs it.
enum class Patience { waits, returns };
bool drain(Stream& stream, size_t count, Patience patience = Patience::waits);
void free_released();

// Without the lock: a function of the host takes Python's, which another thread may hold while it waits for this one.
void call_host(const Task& task) { machine().lock.call_without(task); }

void do_item(const Item& item, const Work& work) {
    if (item.checked) {
        begin_work(work);
        for (const Range& range : item.touches) touch(range.start, range.size, range.writes);
        if (!item.on_host) item.task();
        end_work();
        if (!item.on_host) return;
    }
    if (item.on_host) call_host(item.task);
    else if (item.task) item.task();
}

void host_knows(const Stream& stream, size_t count, const Known& known) {
    machine().host = with(merged(machine().host, known), stream.number, count);
}

// Do the first `count` items of all that the stream was ever given; return whether they are done.
bool drain(Stream& stream, size_t count, Patience patience) {
    while (stream.done < count) {
        if (stream.busy) {
            if (patience == Patience::returns) return false;
            machine().lock.call_without([] { std::this_thread::yield(); });
            continue;
        }
        Item item = std::move(stream.queue.front());
        stream.queue.pop_front();
        stream.busy = true;
        bool ready = true;
        for (const Marker& marker : item.after) ready = ready && drain(*marker.stream, marker.count, patience);
        if (ready) do_item(item, item.work);
        stream.busy = false;
        if (!ready) {
            stream.queue.push_front(std::move(item));
            return false;
        }
        ++stream.done;
        if (item.host_knows) host_knows(stream, item.work.index, item.work.after);
    }
    return true;
}

void drain_all() {
    auto& all = machine();
    for (auto& stream : all.legacy) drain(*stream, stream->given);
    const auto streams = all.streams;  // a function of the host may change them
    for (auto& [handle, stream] : streams) drain(*stream, stream->given);
    free_released();
}

// Arrays that were released go when no work is left that might use them; until then they are no memory to kernels.
void free_released() {
    auto& all = machine();
    if (all.released.empty()) return;
    for (auto& stream : all.legacy)
        if (stream->done < stream->given) return;
    for (auto& [handle, stream] : all.streams)
        if (stream->done < stream->given) return;
    for (void* address : all.released) {
        auto found = all.pieces.find(static_cast<char*>(address));
        forget_memory(address, found->second.size);
        all.pieces.erase(found);
        std::free(address);
    }
    all.released.clear();
    all.released_bytes = 0;
}

Marker end_of(Stream& stream) { return {stream.shared_from_this(), nullptr, 0, stream.given}; }

// The legacy stream waits for the blocking streams of its device, and they for it.
void add_implicit_order(Stream& stream, Item& item) {
    auto wait_for = [&](Stream& other) {
        stream.known = with(merged(stream.known, other.known), other.number, other.given);
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
    if (++machine().queries > 2) drain(stream, stream.done + 1, Patience::returns);
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
    ++stream.given;
    stream.known = merged(stream.known, machine().host);
    item.work.stream = stream.number;
    item.work.index = stream.given;
    item.work.device = stream.device;
    item.work.after = stream.known;
    stream.queue.push_back(std::move(item));
    if (machine().eager || stream.queue.size() > LONGEST_QUEUE) drain(stream, stream.given, Patience::returns);
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
    bool finished = true;
    if (stream->capture) fail(*stream->capture, OK);
    else finished = drain(*stream, stream->given, Patience::returns);
    Known& ended = machine().ended[stream->device];
    ended = with(merged(ended, stream->known), stream->number, stream->given);
    machine().streams.erase(handle);
    if (!finished) machine().streams[machine().handle()] = stream;  // with a handle that nobody has, until it is done
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
int enqueue(void* handle, const char* name, Task task, bool is_kernel) {
    Guard guard(machine().lock);
    auto stream = find(handle);
    if (!stream) return INVALID_HANDLE;
    Item item;
    item.task = std::move(task);
    item.checked = true;
    item.work.name = name;
    item.work.is_kernel = is_kernel;
    return give(*stream, std::move(item));
}
int enqueue_host_call(void* handle, Task task) {
    Guard guard(machine().lock);
    auto stream = find(handle);
    if (!stream) return INVALID_HANDLE;
    Item item;
    item.task = std::move(task);
    item.on_host = item.host_knows = true;
    return give(*stream, std::move(item));
}
int enqueue_library_call(void* handle, const char* name, std::vector<Range> touches, Task task) {
    Guard guard(machine().lock);
    auto stream = find(handle);
    if (!stream) return INVALID_HANDLE;
    Item item;
    item.task = std::move(task);
    item.on_host = item.checked = true;
    item.work.name = name;
    item.touches = std::move(touches);
    return give(*stream, std::move(item));
}
namespace {
Marker marker_of(Stream& stream) {
    if (!stream.capture) return end_of(stream);
    return {nullptr, stream.capture, stream.chain, stream.capture->chains[stream.chain].size()};
}
Item after(const std::vector<Marker>& markers) {
    Item item;
    item.after = markers;
    for (Marker& marker : item.after) marker.capture = nullptr;  // no circle of owners
    return item;
}
}  // namespace

// The first stream computes when all have come; each of them has the results when it goes on.
int enqueue_collective(void* const* handles, size_t count, const char* name, const std::vector<std::vector<Range>>& touches, Task task) {
    Guard guard(machine().lock);
    std::vector<std::shared_ptr<Stream>> streams;
    for (size_t i = 0; i < count; ++i) {
        streams.push_back(find(handles[i]));
        if (!streams[i]) return INVALID_HANDLE;
        if (streams[i]->capture != streams[0]->capture) return CAPTURE_ISOLATION;
    }
    std::vector<Marker> arrived;
    Known known;
    for (auto& stream : streams) {
        if (int status = give(*stream, {})) return status;
        arrived.push_back(marker_of(*stream));
        if (!stream->capture) known = with(merged(known, stream->known), stream->number, stream->given);
    }
    std::vector<Marker> computed;
    for (size_t i = 0; i < count; ++i) {
        Stream& stream = *streams[i];
        Item item = after(i ? computed : arrived);
        if (i == 0) item.task = task;
        else item.task = [] {};
        item.on_host = i == 0;
        item.checked = true;
        item.work.name = name;
        item.touches = touches[i];
        stream.known = merged(stream.known, known);
        if (int status = give(stream, std::move(item))) return status;
        if (i == 0) computed = {marker_of(stream)};
    }
    return OK;
}
void finish_all() {
    Guard guard(machine().lock);
    drain_all();
}
int finish_stream(void* handle) {
    Guard guard(machine().lock);
    auto stream = find(handle);
    if (!stream) return INVALID_HANDLE;
    if (stream->capture) return fail(*stream->capture, CAPTURE_UNSUPPORTED);
    drain(*stream, stream->given);
    return OK;
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
    host_knows(*stream, stream->given, stream->known);
    free_released();
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
    for (auto& stream : all) {
        drain(*stream, stream->given);
        host_knows(*stream, stream->given, stream->known);
    }
    machine().host = merged(machine().host, machine().ended[device]);
    free_released();
    return OK;
}
int query_stream(void* handle) {
    Guard guard(machine().lock);
    auto stream = find(handle);
    if (!stream) return INVALID_HANDLE;
    if (stream->capture) return fail(*stream->capture, CAPTURE_UNSUPPORTED);
    if (stream->done < stream->given) return not_ready(*stream);
    host_knows(*stream, stream->given, stream->known);
    return OK;
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
    auto time = std::make_shared<Time::time_point>();
    event.time = time;
    Item item;
    if (event.timed) item.task = [time] { *time = Time::now(); };
    if (int status = give(*stream, std::move(item))) return status;
    event.marker = end_of(*stream);
    event.known = stream->known;
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
        stream->known = with(merged(stream->known, event.known), event.marker.stream->number, event.marker.count);
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
    host_knows(*marker.stream, marker.count, found->second.known);
    return OK;
}
int query_event(void* handle) {
    Guard guard(machine().lock);
    auto found = machine().events.find(handle);
    if (found == machine().events.end()) return INVALID_HANDLE;
    Marker marker = found->second.marker;
    if (!found->second.recorded) return OK;
    if (marker.capture) return fail(*marker.capture, CAPTURED_EVENT);
    if (marker.stream->done < marker.count) return not_ready(*marker.stream);
    host_knows(*marker.stream, marker.count, found->second.known);
    return OK;
}
int elapsed_time(float* milliseconds, void* first, void* second) {
    Guard guard(machine().lock);
    Time::time_point times[2];
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
    for (size_t chain = 0; chain < capture->chains.size(); ++chain)
        for (size_t i = 0; i < capture->chains[chain].size(); ++i) {
            std::vector<size_t> before(capture->chains.size());
            reach(*capture, chain, i + 1, before);
            before[chain] = i;
            capture->chains[chain][i].reached = std::move(before);
        }
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
    auto made = std::make_shared<Executable>();
    made->graph = found->second;
    for (size_t chain = 0; chain < made->graph->chains.size(); ++chain) made->numbers.push_back(++machine().numbers);
    machine().executables[*executable] = made;
    return OK;
}
namespace {

struct Replay {
    std::shared_ptr<Executable> executable;
    Known before;
    size_t launch;  // how many came before
    int device;
    std::vector<size_t> done;

    const std::vector<Item>& chain(size_t i) const { return executable->graph->chains[i]; }
    // What is known where so many items of each chain are done.
    Known after(const std::vector<size_t>& reached) const {
        Known known = before;
        for (size_t i = 0; i < reached.size(); ++i) known = with(known, executable->numbers[i], launch * chain(i).size() + reached[i]);
        return known;
    }
    // Chains are run like streams: what another chain has to do is done when it is waited for.
    void run(size_t i, size_t count) {
        while (done[i] < count) {
            const Item& item = chain(i)[done[i]++];
            for (const Marker& marker : item.after) run(marker.chain, marker.count);
            Work work = item.work;
            work.stream = executable->numbers[i];
            work.index = launch * chain(i).size() + item.reached[i] + 1;
            work.device = device;
            if (item.checked) work.after = after(item.reached);
            do_item(item, work);
        }
    }
};

}  // namespace
int launch_graph(void* handle, void* stream_handle) {
    Guard guard(machine().lock);
    auto found = machine().executables.find(handle);
    auto stream = find(stream_handle);
    if (found == machine().executables.end() || !stream) return INVALID_HANDLE;
    if (stream->capture) return fail(*stream->capture, CAPTURE_UNSUPPORTED);
    auto executable = found->second;
    const size_t launch = executable->launches++;
    Item item;
    add_implicit_order(*stream, item);
    const Known before = with(merged(stream->known, machine().host), stream->number, stream->given);
    Replay replay{executable, before, launch, stream->device, std::vector<size_t>(executable->numbers.size())};
    item.task = [replay]() mutable { replay.run(0, replay.chain(0).size()); };
    if (int status = give(*stream, std::move(item))) return status;
    std::vector<size_t> all;
    for (const auto& chain : executable->graph->chains) all.push_back(chain.size());
    stream->known = merged(stream->known, replay.after(all));
    return OK;
}
int destroy_graph(void* graph) {
    Guard guard(machine().lock);
    return machine().graphs.erase(graph) + machine().executables.erase(graph) ? OK : INVALID_HANDLE;
}

// ---- memory

namespace {
void forget(const char* address) {
    auto found = machine().pieces.find(address);
    if (found == machine().pieces.end()) return;
    forget_memory(address, found->second.size);
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
    if (posix_memalign(address, PAGE, (std::max(size, size_t(1)) + PAGE - 1) & ~(PAGE - 1))) return OUT_OF_MEMORY;
    if (kind != Kind::pinned) {
        std::memset(*address, 0xA5, size);  // a GPU's memory comes with what was in it
        allocated += size;
    }
    machine().pieces[static_cast<char*>(*address)] = {size, kind, current, static_cast<char*>(*address)};
    watch(*address, size, kind == Kind::pinned ? Owner::pinned : Owner::device, current);
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
int release_later(void* address, void* handle) {
    Guard guard(machine().lock);
    auto stream = find(handle);
    if (!stream) return INVALID_HANDLE;
    Item item;
    item.task = [address] {
        forget(static_cast<char*>(address));
        std::free(address);
    };
    return give(*stream, std::move(item));
}
int allocate_array(void** address, size_t size, void* handle) {
    Guard guard(machine().lock);
    if (machine().released_bytes > MOST_RELEASED) drain_all();
    auto stream = find(handle);
    if (!stream) return INVALID_HANDLE;
    if (int status = allocate(address, size, Kind::device)) return status;
    mark_made(*address, size, stream->number, stream->given);
    return OK;
}
int release_array(void* address, void* handle) {
    Guard guard(machine().lock);
    auto found = machine().pieces.find(static_cast<char*>(address));
    if (found == machine().pieces.end()) return INVALID_VALUE;
    // Without its stream, whoever uses the memory next knows what the host knows, and the work of streams that have ended.
    auto stream = is_legacy_stream(handle) ? machine().legacy[found->second.device] : find(handle);
    const Known known = stream ? with(merged(stream->known, machine().host), stream->number, stream->given) : merged(machine().host, machine().ended[found->second.device]);
    const Piece piece = found->second;
    mark_free(address, piece.size, known);
    machine().allocated[piece.device] -= piece.size;
    machine().released_bytes += piece.size;
    machine().released.push_back(address);
    return OK;
}
int add_pinned(void* address, size_t size) {
    Guard guard(machine().lock);
    machine().pieces[static_cast<char*>(address)] = {size, Kind::pinned, current, static_cast<char*>(address)};
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
    return {0, Kind::pageable, 0, nullptr};
}

void pieces_around(const void* address, Piece* before, Piece* after) {
    Guard guard(machine().lock);
    *before = *after = {0, Kind::pageable, 0, nullptr};
    auto next = machine().pieces.upper_bound(static_cast<const char*>(address));
    if (next != machine().pieces.end()) *after = next->second;
    if (next != machine().pieces.begin()) *before = std::prev(next)->second;
}

}  // namespace emulated
