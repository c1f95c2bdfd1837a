"""Machine code for the CPU by LLVM: of plain kernels that are traced, and of copies, rows, products, convolutions."""
