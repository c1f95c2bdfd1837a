"""Our own CUDA kernels: elementwise operators, updates of many parameters, sums of rows, checks of indices.

CuPy compiles them when they are first used. It passes ``-ftz=true`` to the compiler, so float32 numbers below 2**-126
are 0 on a GPU.
"""
