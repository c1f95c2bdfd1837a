"""Convolution and pooling under the names for a fixed number of axes, and oneDNN's kernels for them."""

from __future__ import annotations

import numpy as np
import pytest

from netbuilder.engines import onednn
from netbuilder.engines.onednn.registration import kernel_table
from netbuilder.ops.windows import conv_pool_nd as fixed_axes
from suite import OperatorSuite, f32, floats, refusal
from window_reference import correlate, correlate_gradients, pool, pool_gradient

EXTENTS = (3, 2, 2)


class _Windows(OperatorSuite):
    """Windows of 2 with stride 1 and, before each axis, one place of padding."""

    rtol, atol = 1e-4, 1e-5

    def draw_case(self, data, **more):
        axes = self.operator.axes
        x = data.draw(floats(1, 2, *EXTENTS[:axes], **({} if "Conv" in self.operator.__name__ else {"apart": 0.1})))
        return self.operator(kernel=2, pads=(1,) * axes + (0,) * axes, **more), x

    @property
    def geometry(self):
        """Strides, dilations, and pads before and after."""
        axes = self.operator.axes
        return (1,) * axes, (1,) * axes, (1,) * axes, (0,) * axes


class _Conv(_Windows):
    wrt = (0, 1, 2)

    def draw(self, data):
        op, x = self.draw_case(data)
        return op, [x, data.draw(floats(3, 2, *(2,) * op.axes)), data.draw(floats(3))]

    def reference(self, op, x, w, b):
        return [correlate(x, w, *self.geometry, 1) + b.reshape(-1, *(1,) * op.axes)]


class _ConvGradient(_Windows):
    no_gradient = "a gradient operator"

    def draw(self, data):
        op, x = self.draw_case(data)
        inputs = [x, data.draw(floats(3, 2, *(2,) * op.axes)), data.draw(floats(1, 3, *EXTENTS[: op.axes]))]
        return op.with_arity(3, 3), inputs

    def reference(self, op, x, w, dy):
        dw, dx = correlate_gradients(x, w, dy, *self.geometry, 1)
        return [dw, dy.sum(axis=(0, *range(2, dy.ndim))), dx]


class _Pool(_Windows):
    def draw(self, data):
        op, x = self.draw_case(data)
        return op, [x]

    def reference(self, op, x):
        kernel, (strides, _, begin, _) = (2,) * op.axes, self.geometry
        return [pool(x, self.kind, kernel, strides, begin, x.shape[2:])]


class _PoolGradient(_Windows):
    no_gradient = "a gradient operator"

    def draw(self, data):
        op, x = self.draw_case(data)
        kernel, (strides, _, begin, _) = (2,) * op.axes, self.geometry
        y = pool(x, self.kind, kernel, strides, begin, x.shape[2:]).astype(np.float32)
        return op, [x, y, data.draw(floats(*y.shape))]

    def reference(self, op, x, y, dy):
        kernel, (strides, _, begin, _) = (2,) * op.axes, self.geometry
        return [pool_gradient(x, dy, self.kind, kernel, strides, begin)]


def refused(cls, n_in):
    shape = (2, 2, *EXTENTS[: cls.axes % 3 + 1])
    return (refusal(cls(kernel=2), [f32(*shape)] * n_in, f"a batch, channels and {cls.axes} image axes"),)


class TestConv1D(_Conv):
    operator = fixed_axes.Conv1D
    refusals = refused(fixed_axes.Conv1D, 3)


class TestConv1DGradient(_ConvGradient):
    operator = fixed_axes.Conv1DGradient
    refusals = refused(fixed_axes.Conv1DGradient, 3)


class TestConv2D(_Conv):
    operator = fixed_axes.Conv2D
    refusals = refused(fixed_axes.Conv2D, 3)


class TestConv2DGradient(_ConvGradient):
    operator = fixed_axes.Conv2DGradient
    refusals = refused(fixed_axes.Conv2DGradient, 3)


class TestConv3D(_Conv):
    operator = fixed_axes.Conv3D
    refusals = refused(fixed_axes.Conv3D, 3)


class TestConv3DGradient(_ConvGradient):
    operator = fixed_axes.Conv3DGradient
    refusals = refused(fixed_axes.Conv3DGradient, 3)


class TestMaxPool1D(_Pool):
    operator = fixed_axes.MaxPool1D
    kind = "max"
    refusals = refused(fixed_axes.MaxPool1D, 1)


class TestMaxPool1DGradient(_PoolGradient):
    operator = fixed_axes.MaxPool1DGradient
    kind = "max"
    refusals = refused(fixed_axes.MaxPool1DGradient, 3)


class TestMaxPool2D(_Pool):
    operator = fixed_axes.MaxPool2D
    kind = "max"
    refusals = refused(fixed_axes.MaxPool2D, 1)


class TestMaxPool2DGradient(_PoolGradient):
    operator = fixed_axes.MaxPool2DGradient
    kind = "max"
    refusals = refused(fixed_axes.MaxPool2DGradient, 3)


class TestMaxPool3D(_Pool):
    operator = fixed_axes.MaxPool3D
    kind = "max"
    refusals = refused(fixed_axes.MaxPool3D, 1)


class TestMaxPool3DGradient(_PoolGradient):
    operator = fixed_axes.MaxPool3DGradient
    kind = "max"
    refusals = refused(fixed_axes.MaxPool3DGradient, 3)


class TestAveragePool1D(_Pool):
    operator = fixed_axes.AveragePool1D
    kind = "mean"
    refusals = refused(fixed_axes.AveragePool1D, 1)


class TestAveragePool1DGradient(_PoolGradient):
    operator = fixed_axes.AveragePool1DGradient
    kind = "mean"
    refusals = refused(fixed_axes.AveragePool1DGradient, 3)


class TestAveragePool2D(_Pool):
    operator = fixed_axes.AveragePool2D
    kind = "mean"
    refusals = refused(fixed_axes.AveragePool2D, 1)


class TestAveragePool2DGradient(_PoolGradient):
    operator = fixed_axes.AveragePool2DGradient
    kind = "mean"
    refusals = refused(fixed_axes.AveragePool2DGradient, 3)


class TestAveragePool3D(_Pool):
    operator = fixed_axes.AveragePool3D
    kind = "mean"
    refusals = refused(fixed_axes.AveragePool3D, 1)


class TestAveragePool3DGradient(_PoolGradient):
    operator = fixed_axes.AveragePool3DGradient
    kind = "mean"
    refusals = refused(fixed_axes.AveragePool3DGradient, 3)


@pytest.mark.skipif(not onednn.available(), reason="needs oneDNN")
def test_onednn_serves_every_name():
    table = kernel_table()
    for name in fixed_axes.__all__:
        for digit in "123":
            plain = name.replace(f"{digit}D", "")
            if plain != name:
                assert table[name] is table[plain]
