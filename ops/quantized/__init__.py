"""Values stored in 8 bits or fewer: tables with a scale per row, and codebooks.

For prediction: bytes and sums are bitwise those of Caffe2, and only the codebook has a gradient.
"""
