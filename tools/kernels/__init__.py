"""Parts of the tool that compiles CUDA kernels without a GPU."""
