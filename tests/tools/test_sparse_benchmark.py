"""The benchmark of sparse sums: messages about results that agree or differ."""

import json
import sys

import numpy as np
import pytest

from netbuilder.tools.bench import sparse
from netbuilder.tools.bench.pairs import Comparison
from netbuilder.tools.bench.sparse import Sums, SumsFound, sparse_sums
from netbuilder.tools.bench.sparse_work import arrays

SMALL = Sums(1, rows=50, width=4, indices=30, segments=8)

# A peer that computes by NumPy; {factor} makes it right or wrong.
PEER = """
import json, sys
import numpy as np
sys.path[:0] = {path}
from netbuilder.tools.bench.sparse_work import arrays
from netbuilder.tools.bench.worker import serve
work = json.loads(sys.argv[2])
made = arrays(work)
which = np.repeat(np.arange(work["segments"]), made["lengths"])
sums = np.zeros((work["segments"], work["width"]), np.float32)
np.add.at(sums, which, made["table"][made["indices"]])
np.savez(sys.argv[3] + "/peer.npz", sums={factor} * sums, values=made["slope"][which])
serve(lambda: None, warmup=int(sys.argv[1]), info={{"version": "1.0"}})
"""


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "good"), [(1, True), (2, False)])
def test_results_are_compared(factor, good, tmp_path):
    script = tmp_path / "peer.py"
    script.write_text(PEER.format(path=[p for p in sys.path if p], factor=factor))
    found = sparse_sums(SMALL, sys.executable, pairs=1, steps=1, script=script)
    assert found.good == good
    assert ("NOT the same work" in found.text) != good
    assert found.record["kind"] == "sparse"
    json.dumps(found.record)


def test_the_line():
    found = SumsFound(Sums(2), "2.0", Comparison([0.002], [[0.001]]), 0.0)
    assert "forward and backward, threads 2: netbuilder 2.00 ms, torch 2.0 1.00 ms; 0.50 x as fast" in found.text


def test_the_arrays_fit():
    made = arrays({"rows": 50, "width": 4, "indices": 30, "segments": 8})
    assert made["lengths"].sum() == 30
    assert made["lengths"].size == 8
    assert made["indices"].max() < 50
    assert made["slope"].shape == (8, 4)
    np.testing.assert_array_equal(
        made["table"], arrays({"rows": 50, "width": 4, "indices": 30, "segments": 8})["table"]
    )


def test_the_peer_is_there():
    assert sparse._PEER.is_file()
