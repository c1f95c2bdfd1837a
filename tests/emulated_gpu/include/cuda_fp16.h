// half on the host: the 16 bits of IEEE's binary16.
#pragma once
#include "emulated_short_floats.h"

static inline unsigned short emulated_half_of(double value) {  // to the nearest, ties to even, without rounding twice
    const unsigned long long bits = emulated_bits<unsigned long long>(value);
    const unsigned short sign = bits >> 48 & 0x8000;
    const double size = std::fabs(value);
    if (size != size) return sign | 0x7e00;
    if (size >= 65520.0) return sign | 0x7c00;
    if (size == 0) return sign;
    int exponent;
    std::frexp(size, &exponent);                            // size = f * 2^exponent, 0.5 <= f < 1
    const int unit = exponent < -13 ? -24 : exponent - 11;  // the last bit's exponent
    const unsigned steps = unsigned(std::nearbyint(std::ldexp(size, -unit)));
    if (unit == -24) return sign | (unsigned short)steps;  // denormal, or the smallest normal number
    return sign | (unsigned short)((unsigned(unit + 25) << 10) + steps - 1024);
}
static inline float emulated_half_value(unsigned short bits) {
    const int exponent = bits >> 10 & 31, part = bits & 1023;
    const float size = exponent == 31 ? (part ? NAN : INFINITY)
                       : exponent ? std::ldexp(float(part + 1024), exponent - 25) : std::ldexp(float(part), -24);
    return bits & 0x8000 ? -size : size;
}

struct __half_raw { unsigned short x; };
struct __half {
    unsigned short bits;
    __half() = default;
    __half(float value) : bits(emulated_half_of(value)) {}
    __half(double value) : bits(emulated_half_of(value)) {}
    __half(int value) : bits(emulated_half_of(value)) {}
    __half(unsigned value) : bits(emulated_half_of(value)) {}
    __half(long long value) : bits(emulated_half_of(double(value))) {}
    __half(unsigned long long value) : bits(emulated_half_of(double(value))) {}
    __half(const __half_raw& raw) : bits(raw.x) {}
    operator float() const { return emulated_half_value(bits); }
    operator __half_raw() const { return {bits}; }
};
typedef __half half;
EMULATED_SHORT_FLOAT(__half, __half2, half, half2)
typedef __half2 half2;
static inline float2 __half22float2(half2 v) { return {float(v.x), float(v.y)}; }
static inline unsigned short __half_as_ushort(half x) { return x.bits; }
static inline half __ushort_as_half(unsigned short bits) { return half(__half_raw{bits}); }
