"""cuDNN: convolutions, normalization and products on NVIDIA GPUs, through the graphs of its frontend.

``graphs`` builds the graphs and knows tensors by shape, order and element type only; ``compiled`` compiles each once
for a GPU; the modules ``kernels_...`` prepare operators with them. The layouts of values, and dense layers on
cuBLAS, are those of ``netbuilder.engines.cuda``, which imports nothing of this package.
"""
