"""RotaryEmbedding, against complex numbers turned by their angles."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.dense.rotary import RotaryEmbedding
from suite import OperatorSuite, f32, floats, i32, refusal


class TestRotaryEmbedding(OperatorSuite):
    operator = RotaryEmbedding
    wrt = (0,)
    refusals = (
        refusal(RotaryEmbedding(), [f32(1, 2, 3), f32(2, 1), f32(2, 1)], "features must be even, got 3"),
        refusal(RotaryEmbedding(), [f32(1, 3, 4), f32(2, 2), f32(2, 2)], "have 2 rows, X has 3 positions"),
        refusal(RotaryEmbedding(), [f32(1, 3, 4), f32(3, 1), f32(3, 1)], r"cos .*must have shape \(3, 2\)"),
        refusal(RotaryEmbedding(), [f32(1, 3, 4), *[f32(3, 2)] * 2, i32(2)], r"positions must have shape \(3,\)"),
    )

    def draw(self, data):
        lead = [data.draw(st.integers(1, 2)) for _ in range(data.draw(st.integers(0, 2)))]
        steps, pairs, longer = (data.draw(st.integers(low, 3)) for low in (1, 1, 0))
        angles = data.draw(floats(steps + longer, pairs))
        inputs = [data.draw(floats(*lead, steps, 2 * pairs)), np.cos(angles), np.sin(angles)]
        if data.draw(st.booleans()):
            rows = st.lists(st.integers(0, steps + longer - 1), min_size=steps, max_size=steps)
            inputs.append(np.array(data.draw(rows), data.draw(st.sampled_from([np.int32, np.int64]))))
        return RotaryEmbedding(inverse=data.draw(st.booleans())), inputs

    def reference(self, op, x, cos, sin, positions=None):
        half, rows = x.shape[-1] // 2, np.arange(x.shape[-2]) if positions is None else positions
        turn = (cos + 1j * (-sin if op.inverse else sin))[rows]
        turned = (x[..., :half] + 1j * x[..., half:]) * turn
        return [np.concatenate([turned.real, turned.imag], axis=-1)]
