"""MergeDim and PrependDim."""

from hypothesis import strategies as st

from netbuilder.ops.arrange.leading_axes import MergeDim, PrependDim
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, refusal


class TestMergeDim(OperatorSuite):
    operator = MergeDim
    no_gradient = "it has none in Caffe2"
    refusals = (refusal(MergeDim(), [f32(3)], r"data must have shape \(M, N, \*S\)"),)

    def draw(self, data):
        return MergeDim(), [data.draw(floats((0, 2), (1, 3), *data.draw(st.sampled_from([(), (2,), (2, 1)]))))]

    def reference(self, op, x):
        return [x.reshape(len(x) * x.shape[1], *x.shape[2:])]


class TestPrependDim(OperatorSuite):
    operator = PrependDim
    refusals = (
        refusal(PrependDim(), [f32(3)], "dim_size must be given, and be 1 or more, got 0", ArgumentError),
        refusal(PrependDim(dim_size=2), [f32(3)], "the first extent, 3, must be a multiple of dim_size=2"),
        refusal(PrependDim(dim_size=1), [f32()], r"data must have shape \(N, \*S\)"),
    )

    def draw(self, data):
        size = data.draw(st.integers(1, 3))
        shape = size * data.draw(st.integers(0, 2)), *data.draw(st.sampled_from([(), (2,)]))
        return PrependDim(dim_size=size), [data.draw(floats(*shape))]

    def reference(self, op, x):
        return [x.reshape(op.dim_size, len(x) // op.dim_size, *x.shape[1:])]
