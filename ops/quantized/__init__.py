"""Values stored in 8 bits or fewer: tables with a scale in each row, and codebooks.

For prediction: bytes and sums are Caffe2's to the last bit, and only the codebook has a gradient.
"""
