"""Machine code for the CPU by LLVM: plain kernels of elementwise operators, traced, become vectorized loops."""
