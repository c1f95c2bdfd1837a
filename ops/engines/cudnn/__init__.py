"""cuDNN: convolutions, normalization and products on NVIDIA GPUs, through the graphs of its frontend.

``graphs`` builds the graphs and knows tensors by shape, order and element type only; ``compiled`` compiles each once
for a GPU; the modules ``kernels_...`` prepare operators with them. What needs no cuDNN is in ``ops.engines.cuda``,
which imports nothing of this package: the layouts of values, and products by cuBLAS.
"""
