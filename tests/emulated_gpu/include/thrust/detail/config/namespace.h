// All that CuPy's complex numbers need of Thrust: its namespace.
#pragma once
#define THRUST_NAMESPACE_BEGIN namespace thrust {
#define THRUST_NAMESPACE_END }
