// What every kernel begins with; it is precompiled.
#pragma once
#include "emulated_cuda.h"

#include <cupy/complex.cuh>
#include <cupy/carray.cuh>
#include <cupy/atomics.cuh>
#include <cupy/math_constants.h>
