// libcudart.so.12 of the emulated GPU: device memory is the host's, streams are queues (machine.h).
//
// Four devices of compute capability 9.0, or as many as EMULATED_GPUS says. What is not here answers "not supported".
#include "machine.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

using namespace emulated;

namespace {

cudaError_t answer(int status) { return cudaError_t(status); }
bool on_device(const Piece& piece) { return piece.kind == Kind::device || piece.kind == Kind::managed; }

std::string place(const Piece& piece) {
    return on_device(piece) ? std::to_string(piece.device) : piece.kind == Kind::pinned ? "pinned" : "host";
}

size_t digest(const void* bytes, size_t size) { return std::hash<std::string_view>()({static_cast<const char*>(bytes), size}); }

int copy_later(void* to, const void* from, size_t size, cudaStream_t stream) {
    const Piece target = piece_at(to), source = piece_at(from);
    const bool uploads = source.kind == Kind::pinned && on_device(target) && !capture_status(stream);
    if (target.kind == Kind::pinned && on_device(source) && !capture_status(stream)) std::memset(to, 0xA5, size);  // until it arrives
    const size_t given = uploads ? digest(from, size) : 0;
    return enqueue(stream, "copy", [=] {
        if (uploads && digest(from, size) != given) fault("pinned memory is overwritten before it is copied to GPU " + std::to_string(target.device));
        if (source.kind != Kind::pageable) touch(from, size, false);
        if (target.kind != Kind::pageable) touch(to, size, true);
        std::memmove(to, from, size);
    });
}

// In the legacy stream, a copy between two devices comes after all that both were given, and before what follows.
cudaError_t copy_between_devices(void* to, const void* from, size_t size) {
    for (const void* end : {static_cast<const void*>(to), from})
        if (int status = synchronize_device(piece_at(end).device)) return answer(status);
    std::memmove(to, from, size);
    return cudaSuccess;
}

// A copy returns before it is done, except where memory of the host that is not pinned takes part.
cudaError_t copy_async(void* to, const void* from, size_t size, cudaStream_t stream) {
    if (!size) return cudaSuccess;
    const Piece target = piece_at(to), source = piece_at(from);
    count(COPIES, "copy " + place(source) + " " + place(target) + " " + std::to_string(size));
    if ((target.kind == Kind::pageable || source.kind == Kind::pageable) && capture_status(stream)) return answer(CAPTURE_UNSUPPORTED);
    if (source.kind == Kind::pageable) {
        auto staged = std::make_shared<std::vector<char>>(static_cast<const char*>(from), static_cast<const char*>(from) + size);
        const int status = enqueue(stream, "copy from the host", [=] {
            if (target.kind != Kind::pageable) touch(to, size, true);
            std::memcpy(to, staged->data(), size);
        });
        return answer(status || target.kind != Kind::pageable ? status : synchronize_stream(stream));
    }
    if (is_legacy_stream(stream) && on_device(target) && on_device(source) && target.device != source.device)
        return copy_between_devices(to, from, size);
    if (int status = copy_later(to, from, size, stream)) return answer(status);
    if (target.kind != Kind::pageable) return cudaSuccess;
    count(READS);
    return answer(synchronize_stream(stream));
}
cudaError_t copy_now(void* to, const void* from, size_t size) {
    if (int status = refuse_in_capture()) return answer(status);
    if (cudaError_t status = copy_async(to, from, size, nullptr)) return status;
    if (on_device(piece_at(to)) && on_device(piece_at(from))) return cudaSuccess;
    count(READS);
    return answer(synchronize_stream(nullptr));
}
cudaError_t set_async(void* to, int value, size_t size, cudaStream_t stream) {
    count(SETS, "set " + std::to_string(stream_device(stream)) + " " + std::to_string(size));
    return answer(enqueue(stream, "set", [=] {
        touch(to, size, true);
        std::memset(to, value, size);
    }));
}
cudaError_t allocate_counted(void** p, size_t size, Kind kind) {
    if (kind != Kind::pinned) count(ALLOCATIONS, "allocate " + std::to_string(current_device()) + " " + std::to_string(size));
    return answer(allocate(p, size, kind));
}
cudaError_t synchronized(int status) {
    count(SYNCHRONIZATIONS);
    return answer(status);
}

}  // namespace

extern "C" {

// ---- memory

cudaError_t cudaMalloc(void** p, size_t size) { return allocate_counted(p, size, Kind::device); }
cudaError_t cudaMallocManaged(void** p, size_t size, unsigned) { return allocate_counted(p, size, Kind::managed); }
cudaError_t cudaMallocAsync(void** p, size_t size, cudaStream_t stream) {
    return capture_status(stream) ? cudaErrorNotSupported : allocate_counted(p, size, Kind::device);
}
cudaError_t cudaFree(void* p) { return answer(release(p)); }
cudaError_t cudaFreeAsync(void* p, cudaStream_t stream) {
    return capture_status(stream) ? cudaErrorNotSupported : answer(release_later(p, stream));
}
cudaError_t cudaHostAlloc(void** p, size_t size, unsigned) { return allocate_counted(p, size, Kind::pinned); }
cudaError_t cudaFreeHost(void* p) { return answer(release(p)); }
cudaError_t cudaHostRegister(void* p, size_t size, unsigned) { return answer(add_pinned(p, size)); }
cudaError_t cudaHostUnregister(void* p) { return answer(remove_pinned(p)); }
cudaError_t cudaMemGetInfo(size_t* unused, size_t* total) {
    memory_of(current_device(), unused, total);
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* p) {
    const Piece piece = piece_at(p);
    void* address = const_cast<void*>(p);
    switch (piece.kind) {
        case Kind::device: *found = {cudaMemoryTypeDevice, piece.device, address, nullptr}; break;
        case Kind::managed: *found = {cudaMemoryTypeManaged, piece.device, address, address}; break;
        case Kind::pinned: *found = {cudaMemoryTypeHost, piece.device, address, address}; break;
        case Kind::pageable: *found = {cudaMemoryTypeUnregistered, -2, nullptr, address}; break;
    }
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) { return copy_now(to, from, size); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t stream) {
    return copy_async(to, from, size, stream);
}
cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t size) { return copy_now(to, from, size); }
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, cudaStream_t stream) {
    return copy_async(to, from, size, stream);
}
cudaError_t cudaMemset(void* to, int value, size_t size) {
    return set_async(to, value, size, nullptr);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) {
    return set_async(to, value, size, stream);
}

// ---- devices

cudaError_t cudaGetDeviceCount(int* count) { *count = device_count(); return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { *device = current_device(); return cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return answer(set_current_device(device)); }
cudaError_t cudaDeviceSynchronize() { return synchronized(synchronize_device(current_device())); }
cudaError_t cudaDriverGetVersion(int* version) { *version = 12090; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { *version = 12090; return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    switch (attribute) {
        case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
        case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
        case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *value = 1024; break;
        case cudaDevAttrMaxBlockDimZ: *value = 64; break;
        case cudaDevAttrWarpSize: *value = 32; break;
        case cudaDevAttrMultiProcessorCount: *value = 132; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 << 10; break;
        case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
        case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = 65535; break;
        default: *value = 0;
    }
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties_v2(cudaDeviceProp* about, int device) {
    if (device < 0 || device >= device_count()) return cudaErrorInvalidDevice;
    std::memset(about, 0, sizeof *about);
    std::strcpy(about->name, "emulated GPU");
    size_t unused;
    memory_of(device, &unused, &about->totalGlobalMem);
    about->sharedMemPerBlock = 48 << 10;
    about->sharedMemPerBlockOptin = 227 << 10;
    about->sharedMemPerMultiprocessor = 228 << 10;
    about->regsPerBlock = about->regsPerMultiprocessor = 65536;
    about->warpSize = 32;
    about->maxThreadsPerBlock = 1024;
    about->maxThreadsDim[0] = about->maxThreadsDim[1] = 1024;
    about->maxThreadsDim[2] = 64;
    about->maxGridSize[0] = 2147483647;
    about->maxGridSize[1] = about->maxGridSize[2] = 65535;
    about->major = 9;
    about->multiProcessorCount = 132;
    about->maxThreadsPerMultiProcessor = 2048;
    about->concurrentKernels = 1;
    about->pciDeviceID = device;
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { *can = 1; return cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int device, unsigned) {
    if (device < 0 || device >= device_count()) return cudaErrorInvalidDevice;
    allow_peer(current_device(), device, true);
    return cudaSuccess;
}
cudaError_t cudaDeviceDisablePeerAccess(int device) {
    if (device < 0 || device >= device_count()) return cudaErrorInvalidDevice;
    allow_peer(current_device(), device, false);
    return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t status) { return status_name(status); }
const char* cudaGetErrorString(cudaError_t status) { return status_text(status); }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

// ---- streams and events

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    count(STREAMS);
    return answer(create_stream(reinterpret_cast<void**>(stream), flags != cudaStreamNonBlocking, priority));
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return answer(destroy_stream(stream)); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return synchronized(synchronize_stream(stream)); }
cudaError_t cudaStreamQuery(cudaStream_t stream) { return answer(query_stream(stream)); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    count(WAITS);
    return answer(wait_event(stream, event));
}
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
    *flags = stream_blocks(stream) ? cudaStreamDefault : cudaStreamNonBlocking;
    return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) { *priority = stream_priority(stream); return cudaSuccess; }
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t call, void* with) {
    return answer(enqueue_host_call(stream, [=] { call(with); }));
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t call, void* with, unsigned) {
    if (capture_status(stream)) return answer(CAPTURE_UNSUPPORTED);
    return answer(enqueue_host_call(stream, [=] { call(stream, cudaSuccess, with); }));
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    count(EVENTS);
    return answer(create_event(reinterpret_cast<void**>(event), !(flags & cudaEventDisableTiming)));
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return answer(destroy_event(event)); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    count(RECORDS);
    return answer(record_event(event, stream));
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return answer(query_event(event)); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return synchronized(synchronize_event(event)); }
cudaError_t cudaEventElapsedTime(float* time, cudaEvent_t first, cudaEvent_t second) { return answer(elapsed_time(time, first, second)); }

// ---- graphs

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) { return answer(begin_capture(stream, mode)); }
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    return answer(end_capture(stream, reinterpret_cast<void**>(graph)));
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    const int found = capture_status(stream);
    *status = found == 0 ? cudaStreamCaptureStatusNone : found == 1 ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
    return answer(instantiate_graph(reinterpret_cast<void**>(executable), graph));
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    count(REPLAYS, "replay " + std::to_string(stream_device(stream)));
    return answer(launch_graph(executable, stream));
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return answer(destroy_graph(graph)); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return answer(destroy_graph(graph)); }

}  // extern "C"
