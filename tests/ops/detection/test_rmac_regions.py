"""RMACRegions; Caffe2's regions are golden cases."""

import numpy as np
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.detection.rmac_regions import RMACRegions
from suite import OperatorSuite, f32, refusal


class TestRMACRegions(OperatorSuite):
    """Squares of 2 by 4 images at one scale: two of them fit without an overlap."""

    operator = RMACRegions
    no_gradient = "its output does not depend on the values of X"
    refusals = (refusal(RMACRegions(), [f32(2, 3, 4)], r"X must be .N, C, H, W., got shape \(2, 3, 4\)"),)

    def draw(self, data):
        return RMACRegions(scales=1, overlap=0.0), [np.zeros((data.draw(st.integers(0, 3)), 2, 2, 4), np.float32)]

    def reference(self, op, x):
        rows = [[n, first, 0, first + 1, 1] for n in range(x.shape[0]) for first in (0, 2)]
        return [np.array(rows, float).reshape(-1, 5)]


def test_regions_lie_within_the_image_and_reach_its_ends():
    (rows,) = run_plain(RMACRegions(scales=4), [np.zeros((1, 1, 9, 13), np.float32)])
    assert (rows[:, 1:] >= 0).all() and rows[:, 3].max() == 12 and rows[:, 4].max() == 8
    assert (rows[:, 3] - rows[:, 1] == rows[:, 4] - rows[:, 2]).all()
    sides, counts = np.unique(rows[:, 3] - rows[:, 1] + 1, return_counts=True)
    assert sides.tolist() == [3, 4, 6, 9] and counts.tolist() == [20, 12, 6, 2]


def test_images_too_small_for_a_scale_have_no_regions_of_it():
    (rows,) = run_plain(RMACRegions(scales=3), [np.zeros((1, 1, 1, 1), np.float32)])
    assert rows.tolist() == [[0, 0, 0, 0, 0]]
