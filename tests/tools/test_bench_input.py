"""netbuilder-benchmark input: the timed loaders return the same kind of batches; the printed figures."""

import numpy as np
import pytest

from netbuilder.data import image_libraries
from netbuilder.tools.bench.input import Inputs, _bare_loops, _photo, input_rates

pytestmark = pytest.mark.skipif(not image_libraries(), reason="needs a library for images")


def test_a_line_for_each_interpolation():
    lines = list(input_rates(Inputs(images=4, batch=2, pairs=1, turns=1)))
    assert [line.record["interpolation"] for line in lines] == ["linear", "area"]
    for line in lines:
        assert all(len(line.record[side]) == 1 and line.record[side][0] > 0 for side in ("ours", "bare", "decoded"))
        assert "goal 0.9" in line.text and "without mirroring and normalizing" in line.text


def test_the_plain_loop_fills_whole_batches():
    out = np.full((2, 3, 224, 224), np.nan, np.float32)
    whole, decoded = _bare_loops([_photo(k) for k in range(2)], "linear", out)
    decoded()
    assert np.isnan(out).all()
    whole()
    assert np.isfinite(out).all() and out.std() > 0.1
