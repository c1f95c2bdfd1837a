"""cuDNN: convolutions, normalization and products on NVIDIA GPUs, through the graphs of its frontend.

``graphs`` builds the graphs and knows tensors by shape, order and element type only; ``plans`` compiles each once for a
GPU; the modules ``kernels_...`` prepare operators with them. Images and filters are stored with channels last
(``layout``).
"""
