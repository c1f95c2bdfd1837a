// libcuda.so.1 of the emulated GPU: modules are shared objects, and launches run on the host.
//
// A "cubin" is the text "emulated:" and the path of a shared object that kernels.py compiled; it has a descriptor
// emulated_kernel_NAME for each kernel. Other functions that CuPy may look up answer "not supported" (stubs.py).
#include "../include/emulated_kernel.h"
#include "machine.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>

using namespace emulated;

namespace {

constexpr unsigned SHARED = 48 << 10, SHARED_ON_REQUEST = 227 << 10;
enum Attribute { MOST_THREADS = 0, MOST_DYNAMIC_SHARED = 8 };

struct Function {
    const EmulatedKernel* kernel;
    const char* name;
    unsigned most_shared = SHARED;
};

// The values of a launch's parameters, which the caller may change when the call has returned.
struct Parameters {
    std::vector<char> bytes;
    std::vector<size_t> places;

    Parameters(const EmulatedKernel& kernel, void** values) {
        for (unsigned i = 0; i < kernel.parameter_count; ++i) {
            const size_t place = (bytes.size() + 15) & ~size_t(15);
            places.push_back(place);
            bytes.resize(place + kernel.parameter_sizes[i]);
            std::memcpy(&bytes[place], values[i], kernel.parameter_sizes[i]);
        }
    }
    void run(const EmulatedKernel& kernel) {
        const size_t addresses = places.size() * sizeof(void*);
        std::vector<char> mine(addresses + bytes.size() + 32);  // a kernel may write into its parameters
        char* start = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(mine.data()) + addresses + 15) & ~uintptr_t(15));
        void** pointers = reinterpret_cast<void**>(start) - places.size();
        std::memcpy(start, bytes.data(), bytes.size());
        for (size_t i = 0; i < places.size(); ++i) pointers[i] = start + places[i];
        allow(mine.data(), mine.size());
        kernel.run(pointers);
    }
};

}  // namespace

extern "C" {

int cuInit(unsigned) { return OK; }
int cuDriverGetVersion(int* version) { *version = 12090; return OK; }
int cuGetErrorName(int status, const char** text) { *text = status_name(status); return OK; }
int cuGetErrorString(int status, const char** text) { *text = status_text(status); return OK; }
int cuDeviceGetCount(int* count) { *count = device_count(); return OK; }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return ordinal < device_count() ? OK : INVALID_DEVICE; }
int cuCtxGetCurrent(void** context) { *context = reinterpret_cast<void*>(size_t(0x10 + current_device())); return OK; }
int cuCtxSetCurrent(void* context) { return context ? set_current_device(int(reinterpret_cast<size_t>(context)) - 0x10) : OK; }
int cuCtxGetDevice(int* device) { *device = current_device(); return OK; }
int cuDevicePrimaryCtxRelease(int) { return OK; }

int cuModuleLoadData(void** module, const void* image) {
    static const char mark[] = "emulated:";
    if (std::strncmp(static_cast<const char*>(image), mark, sizeof mark - 1)) return INVALID_IMAGE;
    *module = dlopen(static_cast<const char*>(image) + sizeof mark - 1, RTLD_NOW | RTLD_LOCAL);
    if (!*module) std::fprintf(stderr, "emulated GPU: %s\n", dlerror());
    return *module ? OK : INVALID_IMAGE;
}
int cuModuleUnload(void*) { return OK; }  // the same source gives the same file, so its kernels stay loaded
int cuModuleGetFunction(void** function, void* module, const char* name) {
    const void* kernel = dlsym(module, (std::string("emulated_kernel_") + name).c_str());
    if (!kernel) return NOT_FOUND;
    watch_module(kernel, dlsym(module, "emulated_has_globals"));
    *function = new Function{static_cast<const EmulatedKernel*>(kernel), lasting(name)};  // lives as long as its module
    return OK;
}
int cuModuleGetGlobal_v2(void** address, size_t* size, void* module, const char* name) {
    *address = dlsym(module, name);
    Dl_info about;
    const ElfW(Sym)* symbol = nullptr;
    if (!*address || !dladdr1(*address, &about, (void**)&symbol, RTLD_DL_SYMENT) || !symbol) return NOT_FOUND;
    if (size) *size = symbol->st_size;
    watch_module(*address, true);
    mark_global(*address, symbol->st_size);
    return OK;
}
int cuFuncGetAttribute(int* value, int attribute, void* function) {
    *value = attribute == MOST_THREADS ? 1024 : attribute == MOST_DYNAMIC_SHARED ? int(static_cast<Function*>(function)->most_shared) : 0;
    return OK;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
    if (attribute != MOST_DYNAMIC_SHARED) return OK;
    if (value < 0 || unsigned(value) > SHARED_ON_REQUEST) return INVALID_VALUE;
    static_cast<Function*>(function)->most_shared = value;
    return OK;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, size_t) { *blocks = 2; return OK; }
int cuOccupancyMaxPotentialBlockSize(int* grid, int* block, void*, void*, size_t, int) { *grid = 264; *block = 1024; return OK; }

int cuLaunchKernel(void* handle, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z, unsigned threads_x, unsigned threads_y,
                   unsigned threads_z, unsigned shared, void* stream, void** values, void**) {
    const Function* function = static_cast<Function*>(handle);
    const EmulatedIndex blocks{blocks_x, blocks_y, blocks_z}, threads{threads_x, threads_y, threads_z};
    const unsigned long long in_block = 1ull * threads.x * threads.y * threads.z;
    if (!blocks.x || !blocks.y || !blocks.z || !in_block || in_block > 1024 || threads.z > 64) return INVALID_VALUE;
    if (blocks.x > 2147483647u || blocks.y > 65535 || blocks.z > 65535) return INVALID_VALUE;
    if (shared > function->most_shared && shared > SHARED) return INVALID_VALUE;
    if (stream_device(stream) != current_device()) return INVALID_HANDLE;
    const EmulatedKernel& kernel = *function->kernel;
    auto parameters = std::make_shared<Parameters>(kernel, values);
    count(LAUNCHES, "launch " + std::to_string(current_device()) + " " + function->name);
    return enqueue(stream, function->name, [=, &kernel] {
        emulated_blocks = blocks;
        emulated_threads = threads;
        set_dynamic_shared(shared);
        parameters->run(kernel);
    }, true);
}

}  // extern "C"
