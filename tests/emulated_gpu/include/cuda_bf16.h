// bfloat16 on the host: the upper half of a float's bits.
#pragma once
#include "emulated_short_floats.h"

struct __nv_bfloat16_raw { unsigned short x; };
struct __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float value) {
        const unsigned all = emulated_bits<unsigned>(value);
        bits = value != value ? 0x7fff : (unsigned short)((all + 0x7fff + (all >> 16 & 1)) >> 16);
    }
    __nv_bfloat16(double value) : __nv_bfloat16(float(value)) {}
    __nv_bfloat16(int value) : __nv_bfloat16(float(value)) {}
    __nv_bfloat16(const __nv_bfloat16_raw& raw) : bits(raw.x) {}
    operator float() const { return emulated_bits<float>(unsigned(bits) << 16); }
    operator __nv_bfloat16_raw() const { return {bits}; }
};
EMULATED_SHORT_FLOAT(__nv_bfloat16, __nv_bfloat162, bfloat16, bfloat162)
static inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {float(v.x), float(v.y)}; }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return __nv_bfloat16(__nv_bfloat16_raw{bits}); }
