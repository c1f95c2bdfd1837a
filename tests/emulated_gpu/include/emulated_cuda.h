// CUDA C++ for g++ on the host: qualifiers, indices, barriers, shuffles, atomics, mathematics. Every kernel begins with it.
#pragma once
#include <cassert>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <math.h>
#include <stdlib.h>
#include <tuple>
#include <utility>

#include "emulated_kernel.h"

#define __global__
#define __device__
#define __host__
#define __constant__ __attribute__((visibility("default")))  // found by name, see cuModuleGetGlobal
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static  // one block at a time: a block's shared variable is one variable
#define __CUDA_ARCH__ 900
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 9

struct uint3 : EmulatedIndex {};
struct dim3 : EmulatedIndex {};

// ---- vectors: float4 and its like
#define EMULATED_VECTORS(T, name)                                                                                   \
    struct name##1 { T x; };                                                                                        \
    struct alignas(2 * sizeof(T)) name##2 { T x, y; };                                                              \
    struct alignas(sizeof(T) < 8 ? 4 * sizeof(T) : 16) name##4 { T x, y, z, w; };                                   \
    static inline name##1 make_##name##1(T x) { return {x}; }                                                       \
    static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                               \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMULATED_VECTORS(signed char, char)
EMULATED_VECTORS(unsigned char, uchar)
EMULATED_VECTORS(short, short)
EMULATED_VECTORS(unsigned short, ushort)
EMULATED_VECTORS(int, int)
EMULATED_VECTORS(unsigned, uint)
EMULATED_VECTORS(long long, longlong)
EMULATED_VECTORS(unsigned long long, ulonglong)
EMULATED_VECTORS(float, float)
EMULATED_VECTORS(double, double)
#undef EMULATED_VECTORS
struct float3 { float x, y, z; };
struct int3 { int x, y, z; };
static inline float3 make_float3(float x, float y, float z) { return {x, y, z}; }
static inline int3 make_int3(int x, int y, int z) { return {x, y, z}; }

#define threadIdx emulated_thread
#define blockIdx emulated_block
#define blockDim emulated_threads
#define gridDim emulated_blocks
static const int warpSize = 32;

// ---- barriers, shuffles, votes
static inline void __syncthreads() { emulated_sync_block(); }
static inline void __syncwarp(unsigned mask = 0xffffffffu) { emulated_sync_warp(mask); }
static inline void __threadfence() { emulated_fence(); }
static inline void __threadfence_block() {}
static inline void __threadfence_system() { emulated_fence(); }

static inline unsigned emulated_rank() {
    return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}
template <class T, class Choose> static inline T emulated_exchange(unsigned mask, T value, Choose choose) {
    static_assert(sizeof(T) <= sizeof(emulated_lane[0]), "a shuffle of more than 8 bytes");
    const unsigned rank = emulated_rank(), warp = rank & ~31u;
    std::memcpy(&emulated_lane[rank], &value, sizeof value);
    emulated_sync_warp(mask);
    std::memcpy(&value, &emulated_lane[warp + choose(rank & 31u)], sizeof value);
    emulated_sync_warp(mask);
    return value;
}
template <class T> static inline T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
    return emulated_exchange(mask, value, [=](unsigned lane) { return (lane & ~(width - 1)) + (unsigned(from) & (width - 1)); });
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    return emulated_exchange(mask, value, [=](unsigned lane) { return (lane & (width - 1)) < by ? lane : lane - by; });
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    return emulated_exchange(mask, value, [=](unsigned lane) { return (lane & (width - 1)) + by >= unsigned(width) ? lane : lane + by; });
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32) {
    return emulated_exchange(mask, value, [=](unsigned lane) { unsigned to = lane ^ by; return (to & ~(width - 1)) > (lane & ~(width - 1)) ? lane : to; });
}
static inline unsigned __activemask() { return 0xffffffffu; }
static inline unsigned __ballot_sync(unsigned mask, int predicate) {
    const unsigned rank = emulated_rank(), warp = rank & ~31u, count = blockDim.x * blockDim.y * blockDim.z;
    emulated_lane[rank] = predicate != 0;
    emulated_sync_warp(mask);
    unsigned votes = 0;
    for (unsigned lane = 0; lane < 32 && warp + lane < count; ++lane)
        if (mask >> lane & 1) votes |= unsigned(emulated_lane[warp + lane]) << lane;
    emulated_sync_warp(mask);
    return votes;
}
static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
static inline int __syncthreads_count(int predicate) {
    emulated_lane[emulated_rank()] = predicate != 0;
    __syncthreads();
    int sum = 0;
    for (unsigned i = 0; i < blockDim.x * blockDim.y * blockDim.z; ++i) sum += int(emulated_lane[i]);
    __syncthreads();
    return sum;
}
static inline int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) != 0; }
static inline int __syncthreads_and(int predicate) { return __syncthreads_count(!predicate) == 0; }

// ---- bits
template <class To, class From> static inline To emulated_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits of another size");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
static inline int __float_as_int(float x) { return emulated_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return emulated_bits<unsigned>(x); }
static inline float __int_as_float(int x) { return emulated_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return emulated_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return emulated_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return emulated_bits<double>(x); }
static inline int __double2hiint(double x) { return int(emulated_bits<unsigned long long>(x) >> 32); }
static inline int __double2loint(double x) { return int(emulated_bits<unsigned long long>(x)); }
static inline double __hiloint2double(int high, int low) {
    return emulated_bits<double>((unsigned long long)(unsigned)high << 32 | (unsigned)low);
}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline unsigned __brev(unsigned x) {
    unsigned result = 0;
    for (int bit = 0; bit < 32; ++bit) result |= (x >> bit & 1) << (31 - bit);
    return result;
}
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
template <class T> static inline T __ldg(const T* p) { return *p; }
template <class T> static inline T __ldcs(const T* p) { return *p; }
template <class T> static inline void __stcs(T* p, T value) { *p = value; }

// ---- mathematics beyond <cmath>; min and max return the number where the other side is NaN, as on a GPU
#define EMULATED_LEAST_MOST(T)                                     \
    static inline T min(T a, T b) { return b < a ? b : a; }        \
    static inline T max(T a, T b) { return a < b ? b : a; }
EMULATED_LEAST_MOST(int)
EMULATED_LEAST_MOST(unsigned)
EMULATED_LEAST_MOST(long)
EMULATED_LEAST_MOST(unsigned long)
EMULATED_LEAST_MOST(long long)
EMULATED_LEAST_MOST(unsigned long long)
#undef EMULATED_LEAST_MOST
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline double min(float a, double b) { return fmin(a, b); }
static inline double max(float a, double b) { return fmax(a, b); }
static inline double min(double a, float b) { return fmin(a, b); }
static inline double max(double a, float b) { return fmax(a, b); }

static inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
static inline float rsqrt(float x) { return float(1.0 / std::sqrt(double(x))); }
static inline float rsqrtf(float x) { return rsqrt(x); }
static inline double rcbrt(double x) { return 1.0 / std::cbrt(x); }
static inline float rcbrt(float x) { return float(1.0 / std::cbrt(double(x))); }
static inline float exp10(float x) { return ::exp10f(x); }
static inline double sinpi(double x) { return std::sin(M_PI * std::fmod(x, 2.0)); }
static inline float sinpi(float x) { return float(sinpi(double(x))); }
static inline double cospi(double x) { return std::cos(M_PI * std::fmod(x, 2.0)); }
static inline float cospi(float x) { return float(cospi(double(x))); }
static inline void sincos(float x, float* s, float* c) { ::sincosf(x, s, c); }
static inline double normcdf(double x) { return 0.5 * std::erfc(-x * M_SQRT1_2); }
static inline float normcdf(float x) { return float(normcdf(double(x))); }
static inline double erfinv(double y) {  // Newton's method on erf(x) = y
    if (!(std::fabs(y) < 1)) return y == 1 ? INFINITY : y == -1 ? -INFINITY : NAN;
    const double l = std::log1p(-y * y), a = 2 / (M_PI * 0.147) + l / 2;
    double x = std::copysign(std::sqrt(std::sqrt(a * a - l / 0.147) - a), y);
    for (int i = 0; i < 4; ++i) {
        const double error = std::fabs(y) < 0.5 ? std::erf(x) - y : std::copysign((1 - std::fabs(y)) - std::erfc(std::fabs(x)), y);
        x -= error / (M_2_SQRTPI * std::exp(-x * x));
    }
    return x;
}
static inline float erfinv(float y) { return float(erfinv(double(y))); }
static inline double erfcinv(double y) { return erfinv(1 - y); }
static inline float erfcinv(float y) { return float(erfcinv(double(y))); }
static inline double normcdfinv(double y) { return M_SQRT2 * erfinv(2 * y - 1); }
static inline float normcdfinv(float y) { return float(normcdfinv(double(y))); }
static inline double cyl_bessel_i0(double x) { return std::cyl_bessel_i(0, std::fabs(x)); }
static inline float cyl_bessel_i0(float x) { return float(cyl_bessel_i0(double(x))); }
static inline double cyl_bessel_i1(double x) { return std::copysign(std::cyl_bessel_i(1, std::fabs(x)), x); }
static inline float cyl_bessel_i1(float x) { return float(cyl_bessel_i1(double(x))); }
#define __expf ::expf  // glibc declares functions of these names
#define __logf ::logf
#define __powf ::powf
static inline float __fmaf_rn(float a, float b, float c) { return ::fmaf(a, b, c); }
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fsqrt_rn(float x) { return ::sqrtf(x); }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline int __float2int_rn(float x) { return int(::nearbyintf(x)); }
static inline int __float2int_rz(float x) { return int(x); }
static inline float __int2float_rn(int x) { return float(x); }

// ---- atomics: threads take turns, so plain code is atomic
#define EMULATED_UNCHECKED __attribute__((no_sanitize("thread")))
#define EMULATED_ATOMIC(name, T, result)                  \
    EMULATED_UNCHECKED static inline T name(T* place, T value) { \
        emulated_atomic(place, sizeof *place);            \
        const T old = *place;                             \
        *place = (result);                                \
        return old;                                       \
    }                                                     \
    static inline T name##_block(T* place, T value) { return name(place, value); }
#define EMULATED_ATOMICS(T)                               \
    EMULATED_ATOMIC(atomicAdd, T, old + value)            \
    EMULATED_ATOMIC(atomicExch, T, value)
EMULATED_ATOMICS(int)
EMULATED_ATOMICS(unsigned)
EMULATED_ATOMICS(unsigned long long)
EMULATED_ATOMICS(float)
EMULATED_ATOMIC(atomicAdd, double, old + value)
#undef EMULATED_ATOMICS
#define EMULATED_ATOMICS(T)                               \
    EMULATED_ATOMIC(atomicMin, T, value < old ? value : old) \
    EMULATED_ATOMIC(atomicMax, T, old < value ? value : old) \
    EMULATED_ATOMIC(atomicAnd, T, old & value)            \
    EMULATED_ATOMIC(atomicOr, T, old | value)             \
    EMULATED_ATOMIC(atomicXor, T, old ^ value)
EMULATED_ATOMICS(int)
EMULATED_ATOMICS(unsigned)
EMULATED_ATOMICS(long long)
EMULATED_ATOMICS(unsigned long long)
#undef EMULATED_ATOMICS
EMULATED_ATOMIC(atomicSub, int, old - value)
EMULATED_ATOMIC(atomicSub, unsigned, old - value)
EMULATED_ATOMIC(atomicInc, unsigned, old >= value ? 0 : old + 1)
EMULATED_ATOMIC(atomicDec, unsigned, old == 0 || old > value ? value : old - 1)
#undef EMULATED_ATOMIC
template <class T> EMULATED_UNCHECKED static inline T emulated_swap(T* place, T expected, T value) {
    emulated_atomic(place, sizeof *place);
    const T old = *place;
    if (old == expected) *place = value;
    return old;
}
static inline int atomicCAS(int* p, int a, int b) { return emulated_swap(p, a, b); }
static inline unsigned atomicCAS(unsigned* p, unsigned a, unsigned b) { return emulated_swap(p, a, b); }
static inline unsigned short atomicCAS(unsigned short* p, unsigned short a, unsigned short b) { return emulated_swap(p, a, b); }
static inline unsigned long long atomicCAS(unsigned long long* p, unsigned long long a, unsigned long long b) { return emulated_swap(p, a, b); }

// ---- launching: emulated_kernel<&kernel, barriers, flush> describes a kernel to the driver
#if defined(__x86_64__)
#include <xmmintrin.h>
struct EmulatedFlush {  // denormal floats are 0, as under -ftz=true
    unsigned before = _mm_getcsr();
    explicit EmulatedFlush(bool flush) { if (flush) _mm_setcsr(before | 0x8040); }
    ~EmulatedFlush() { _mm_setcsr(before); }
};
#else
struct EmulatedFlush { explicit EmulatedFlush(bool) {} };
#endif

template <auto kernel, class... A, std::size_t... place>
static inline void emulated_call(void (*)(A...), void** parameters, std::index_sequence<place...>) {
    kernel(*static_cast<std::remove_reference_t<A>*>(parameters[place])...);
}
template <class... A> constexpr std::index_sequence_for<A...> emulated_places(void (*)(A...)) { return {}; }

template <auto kernel> static void emulated_thread_body(void* parameters) {
    emulated_call<kernel>(kernel, static_cast<void**>(parameters), emulated_places(kernel));
}
template <auto kernel, bool barriers> static inline void emulated_block_body(void** parameters) {
    if (barriers) return emulated_run_block(emulated_thread_body<kernel>, parameters);
    for (unsigned k = 0; k < blockDim.z; ++k)
        for (unsigned j = 0; j < blockDim.y; ++j)
            for (unsigned i = 0; i < blockDim.x; ++i) {
                threadIdx = {i, j, k};
                emulated_thread_body<kernel>(parameters);
            }
}
template <auto kernel, bool barriers, bool flush> static void emulated_run(void** parameters) {
    EmulatedFlush mode(flush);
    for (unsigned z = 0; z < gridDim.z; ++z)
        for (unsigned y = 0; y < gridDim.y; ++y)
            for (unsigned x = 0; x < gridDim.x; ++x) {
                blockIdx = {x, y, z};
                emulated_begin_block();
                emulated_block_body<kernel, barriers>(parameters);
            }
}
template <class... A> struct EmulatedSizes { static constexpr std::size_t sizes[sizeof...(A) + 1] = {sizeof(A)..., 0}; };
template <class... A> constexpr EmulatedKernel emulated_describe(void (*)(A...), void (*run)(void**)) {
    return {run, sizeof...(A), EmulatedSizes<std::remove_reference_t<A>...>::sizes};
}
template <auto kernel, bool barriers, bool flush>
constexpr EmulatedKernel emulated_kernel = emulated_describe(kernel, emulated_run<kernel, barriers, flush>);
