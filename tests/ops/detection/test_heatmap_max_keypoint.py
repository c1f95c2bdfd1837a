"""HeatmapMaxKeypoint."""

import numpy as np
from hypothesis import strategies as st

import box_reference
from checks import run_plain
from netbuilder.ops.detection.heatmap_max_keypoint import HeatmapMaxKeypoint
from suite import OperatorSuite, f32, floats, refusal


class TestHeatmapMaxKeypoint(OperatorSuite):
    operator = HeatmapMaxKeypoint
    no_gradient = "it has none"
    rtol, atol = 1e-3, 1e-3
    refusals = (
        refusal(HeatmapMaxKeypoint(), [f32(2, 3, 4, 5), f32(2, 4)], r"heatmaps must have shape \(R, K, S, S\)"),
        refusal(
            HeatmapMaxKeypoint(),
            [f32(2, 3, 4, 4), f32(2, 3)],
            r"bboxes_in must have rows of 4 numbers or more, got shape \(2, 3\)",
        ),
    )

    def draw(self, data):
        rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
        n, size = data.draw(st.integers(0, 2)), data.draw(st.integers(1, 5))
        maps = data.draw(floats(n, data.draw(st.integers(1, 2)), size, size, apart=0.05, low=-0.5))
        return HeatmapMaxKeypoint(should_output_softmax=data.draw(st.booleans())), [
            maps,
            box_reference.draw_boxes(rng, n),
        ]

    def reference(self, op, maps, boxes):
        result = np.zeros((maps.shape[0], 4, maps.shape[1]))
        size = maps.shape[2]
        for r, k in np.ndindex(maps.shape[:2]):
            m, (left, top, right, bottom) = maps[r, k], boxes[r]
            row, column = np.unravel_index(m.argmax(), m.shape)

            def at(i, j, m=m, row=row, column=column):
                mirrored = [abs(place + step) for place, step in ((row, i), (column, j))]
                mirrored = [2 * size - 2 - p if p >= size else p for p in mirrored]
                return m[tuple(np.clip(mirrored, 0, size - 1))]

            slope = np.array([at(0, 1) - at(0, -1), at(1, 0) - at(-1, 0)]) / 2
            mixed = (at(1, 1) - at(1, -1) - at(-1, 1) + at(-1, -1)) / 4
            bend = [[at(0, 1) - 2 * at(0, 0) + at(0, -1), mixed], [mixed, at(1, 0) - 2 * at(0, 0) + at(-1, 0)]]
            step = np.zeros(2)
            if abs(np.linalg.det(bend)) >= 1e-4:
                step = -np.linalg.solve(bend, slope)
                step /= max(abs(step).max() / 1.5, 1)
            height = m[row, column] + slope @ step + step @ bend @ step / 2
            extent = [max(right - left, 1), max(bottom - top, 1)]
            x, y = ((p + s + 0.5) * e / size for p, s, e in zip((column, row), step, extent))
            softmax = 1 / np.exp(m - m.max()).sum() if op.should_output_softmax else 0
            result[r, :, k] = left + x, top + y, height, softmax
        return [result]


def test_the_top_of_a_parabola_is_found():
    y, x = np.mgrid[:6, :6]
    maps = (5 - (x - 2.3) ** 2 - (y - 3.6) ** 2 + 0.3 * (x - 2.3) * (y - 3.6))[None, None].astype(np.float32)
    found = run_plain(HeatmapMaxKeypoint(), [maps, np.float32([[10, 20, 16, 32]])])[0]
    np.testing.assert_allclose(found[0, :, 0], [10 + 2.8, 20 + 2 * 4.1, 5, 0], rtol=1e-5)
