"""Operators that the tests of oneDNN's kernels share: shapes and arguments that reach its different implementations."""

import numpy as np

# Name -> shape of X, shape of W, arguments.
CONVOLUTIONS = {
    "3 channels": ((2, 3, 9, 8), (16, 3, 3, 3), {"kernel": 3, "pad": 1}),
    "odd channels": ((2, 5, 7, 7), (17, 5, 3, 3), {"kernel": 3}),
    "odd to odd": ((1, 17, 6, 6), (3, 17, 1, 1), {"kernel": 1}),
    "stride": ((2, 32, 9, 9), (16, 32, 3, 3), {"kernel": 3, "stride": 2, "pad": 1}),
    "1x1 stride": ((2, 32, 8, 8), (48, 32, 1, 1), {"kernel": 1, "stride": 2}),
    "groups": ((2, 32, 6, 6), (32, 16, 3, 3), {"kernel": 3, "pad": 1, "group": 2}),
    "odd groups": ((2, 9, 6, 6), (6, 3, 3, 3), {"kernel": 3, "group": 3}),
    "depthwise": ((2, 24, 6, 6), (24, 1, 3, 3), {"kernel": 3, "pad": 1, "group": 24}),
    "dilation": ((1, 16, 9, 9), (16, 16, 3, 3), {"kernel": 3, "dilation": 2, "pad": 2}),
    "asymmetric": (
        (1, 16, 7, 8),
        (16, 16, 3, 2),
        {"kernel_h": 3, "kernel_w": 2, "pad_t": 1, "pad_b": 2, "pad_r": 1, "stride_h": 2},
    ),
    "1-D": ((2, 17, 12), (5, 17, 3), {"kernels": [3], "strides": [2], "pads": [1, 0]}),
    "3-D": ((1, 16, 4, 5, 6), (8, 16, 2, 3, 3), {"kernels": [2, 3, 3], "pads": [0, 1, 1, 1, 1, 1]}),
    "7x7": ((1, 3, 20, 20), (64, 3, 7, 7), {"kernel": 7, "stride": 2, "pad": 3}),
}

TRANSPOSED = {
    "odd": ((2, 5, 4, 4), (5, 17, 3, 3), {"kernel": 3, "stride": 2, "pad": 1, "adj": 1}),
    "blocks": ((1, 32, 5, 5), (32, 16, 4, 4), {"kernel": 4, "stride": 2, "pad": 1}),
    "groups": ((2, 8, 4, 4), (8, 3, 3, 3), {"kernel": 3, "group": 2}),
}

POOLS = [
    {"kernel": 3, "stride": 2, "pad": 1},
    {"kernel": 2, "stride": 2},
    {"global_pooling": 1},
    {"kernel": 3, "stride": 2, "legacy_pad": 3},
]

ACTIVATIONS = [("Relu", {}), ("Sigmoid", {}), ("Tanh", {}), ("Elu", {"alpha": 0.5}), ("LeakyRelu", {"alpha": 0.2})]


def random(*shape, seed=0, low=-1.0, high=1.0):
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def normalization(shape, channels):
    """The inputs of a SpatialBN on images of this shape: x, s, b, rm, rv."""
    return {
        "x": random(*shape), "s": random(channels, seed=1, low=0.5), "b": random(channels, seed=2),
        "rm": random(channels, seed=3), "rv": random(channels, seed=4, low=0.5),
    }  # fmt: skip
