"""SpaceToBatch and BatchToSpace."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.images.space_to_batch import BatchToSpace, SpaceToBatch
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, refusal


def draw_blocks(data, cls):
    """Return an operator and the extents of the images that SpaceToBatch takes."""
    block = data.draw(st.integers(1, 3))
    pads = [data.draw(st.integers(0, 1)) for _ in range(4)]
    if data.draw(st.booleans()):
        sides, pads = {"pad": pads[0]}, pads[:1] * 4
    else:
        sides = dict(zip(("pad_t", "pad_b", "pad_l", "pad_r"), pads))
    height, width = (block * data.draw(st.integers(2, 3)) for _ in range(2))
    return cls(block_size=block, **sides), (height - pads[0] - pads[1], width - pads[2] - pads[3]), pads


def pads_of(op):
    pads = (op.pad_t, op.pad_b), (op.pad_l, op.pad_r)
    return pads if any(map(any, pads)) else ((op.pad, op.pad),) * 2


class TestSpaceToBatch(OperatorSuite):
    operator = SpaceToBatch
    refusals = (
        refusal(SpaceToBatch(), [f32(1, 1, 5, 4)], r"must be multiples of block_size=2, got \(5, 4\)"),
        refusal(SpaceToBatch(), [f32(1, 4, 4)], "X must have 4 axes"),
        refusal(SpaceToBatch(order="NHWC"), [f32(1, 4, 4, 1)], "order must be NCHW", ArgumentError),
        refusal(SpaceToBatch(block_size=0), [f32(1, 1, 4, 4)], "block_size must be 1 or more", ArgumentError),
    )

    def draw(self, data):
        op, extents, _ = draw_blocks(data, SpaceToBatch)
        return op, [data.draw(floats((1, 2), (1, 2), *extents))]

    def reference(self, op, x):
        padded = np.pad(x, [(0, 0), (0, 0), *pads_of(op)])
        block = op.block_size
        return [np.concatenate([padded[:, :, i::block, j::block] for i in range(block) for j in range(block)])]


class TestBatchToSpace(OperatorSuite):
    operator = BatchToSpace
    refusals = (
        refusal(BatchToSpace(), [f32(6, 1, 2, 2)], "must be a multiple of block_size"),
        refusal(BatchToSpace(pad=2), [f32(4, 1, 1, 1)], "pads must not be larger than the images"),
        refusal(BatchToSpace(pad=-1), [f32(4, 1, 1, 1)], "pads must not be negative", ArgumentError),
    )

    def draw(self, data):
        op, (height, width), pads = draw_blocks(data, BatchToSpace)
        block = op.block_size
        small = (height + pads[0] + pads[1]) // block, (width + pads[2] + pads[3]) // block
        return op, [data.draw(floats(block * block * data.draw(st.integers(1, 2)), (1, 2), *small))]

    def reference(self, op, x):
        block = op.block_size
        n = len(x) // block**2
        whole = np.zeros((n, x.shape[1], x.shape[2] * block, x.shape[3] * block))
        for k in range(block**2):
            whole[:, :, k // block :: block, k % block :: block] = x[k * n : (k + 1) * n]
        (top, bottom), (left, right) = pads_of(op)
        return [whole[:, :, top : whole.shape[2] - bottom, left : whole.shape[3] - right]]
