// What CUDA offers for half and for bfloat16 alike: both compute as floats and are rounded when they are stored.
//
// EMULATED_SHORT_FLOAT(T, T2, name, pair) declares it for a type, the vector of two of it, and their names in conversions.
#pragma once
#include "emulated_cuda.h"

#define EMULATED_SHORT_FLOAT(T, T2, name, pair)                                                                      \
    struct alignas(4) T2 { T x, y; };                                                                                \
    static inline T __float2##name(float x) { return T(x); }                                                         \
    static inline T __float2##name##_rn(float x) { return T(x); }                                                    \
    static inline T __double2##name(double x) { return T(float(x)); }                                                \
    static inline T __int2##name##_rn(int x) { return T(float(x)); }                                                 \
    static inline float __##name##2float(T x) { return float(x); }                                                   \
    static inline T2 __floats2##pair##_rn(float x, float y) { return {T(x), T(y)}; }                                 \
    static inline T2 __float22##pair##_rn(float2 v) { return {T(v.x), T(v.y)}; }                                     \
    static inline T2 __float2##pair##_rn(float x) { return {T(x), T(x)}; }                                           \
    static inline T2 __##name##2##pair(T x) { return {x, x}; }                                                       \
    static inline T2 make_##pair(T x, T y) { return {x, y}; }                                                        \
    static inline T2 __halves2##pair(T x, T y) { return {x, y}; }                                                    \
    static inline float __low2float(T2 v) { return float(v.x); }                                                     \
    static inline float __high2float(T2 v) { return float(v.y); }                                                    \
    static inline T __low2##name(T2 v) { return v.x; }                                                               \
    static inline T __high2##name(T2 v) { return v.y; }                                                              \
    static inline T __hadd(T a, T b) { return T(float(a) + float(b)); }                                              \
    static inline T __hsub(T a, T b) { return T(float(a) - float(b)); }                                              \
    static inline T __hmul(T a, T b) { return T(float(a) * float(b)); }                                              \
    static inline T __hdiv(T a, T b) { return T(float(a) / float(b)); }                                              \
    static inline T __hfma(T a, T b, T c) { return T(float(double(float(a)) * float(b) + float(c))); }               \
    static inline T __hneg(T a) { return T(-float(a)); }                                                             \
    static inline T __habs(T a) { return T(::fabsf(float(a))); }                                                     \
    static inline T __hmax(T a, T b) { return T(::fmaxf(float(a), float(b))); }                                      \
    static inline T __hmin(T a, T b) { return T(::fminf(float(a), float(b))); }                                      \
    static inline bool __heq(T a, T b) { return float(a) == float(b); }                                              \
    static inline bool __hne(T a, T b) { return float(a) != float(b); }                                              \
    static inline bool __hlt(T a, T b) { return float(a) < float(b); }                                               \
    static inline bool __hle(T a, T b) { return float(a) <= float(b); }                                              \
    static inline bool __hgt(T a, T b) { return float(a) > float(b); }                                               \
    static inline bool __hge(T a, T b) { return float(a) >= float(b); }                                              \
    static inline bool __hisnan(T a) { return float(a) != float(a); }                                                \
    static inline bool __hisinf(T a) { return std::isinf(float(a)); }                                                \
    static inline T hexp(T a) { return T(::expf(float(a))); }                                                        \
    static inline T hlog(T a) { return T(::logf(float(a))); }                                                        \
    static inline T hsqrt(T a) { return T(::sqrtf(float(a))); }                                                      \
    static inline T hrsqrt(T a) { return T(rsqrt(float(a))); }                                                       \
    static inline T2 __hadd2(T2 a, T2 b) { return {__hadd(a.x, b.x), __hadd(a.y, b.y)}; }                            \
    static inline T2 __hsub2(T2 a, T2 b) { return {__hsub(a.x, b.x), __hsub(a.y, b.y)}; }                            \
    static inline T2 __hmul2(T2 a, T2 b) { return {__hmul(a.x, b.x), __hmul(a.y, b.y)}; }                            \
    static inline T2 __hfma2(T2 a, T2 b, T2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }            \
    static inline T2 __hmax2(T2 a, T2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }                            \
    static inline T2 __hmin2(T2 a, T2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }                            \
    EMULATED_UNCHECKED static inline T atomicAdd(T* place, T value) {                                                \
        emulated_atomic(place, sizeof *place);                                                                       \
        const T old = *place;                                                                                        \
        *place = T(float(old) + float(value));                                                                       \
        return old;                                                                                                  \
    }                                                                                                                \
    static inline T2 atomicAdd(T2* place, T2 value) { return {atomicAdd(&place->x, value.x), atomicAdd(&place->y, value.y)}; }
