"""Where only the data tell the size of a result: one that memory cannot hold is refused before it is tried."""

import numpy as np
import pytest

from netbuilder.proto import NetError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace

HUGE = np.int64([1 << 45])
ROW = np.ones((1, 2), np.float32)

CASES = [
    ("LengthsTile", ["x", "l"], ["y"], {}),
    ("LengthsToSegmentIds", ["l"], ["y"], {}),
    ("LengthsToWeights", ["l"], ["y"], {}),
    ("SegmentIdsToLengths", ["l"], ["y"], {}),
    ("SegmentIdsToRanges", ["l"], ["y"], {}),
    ("PadEmptySamples", ["l", "x"], ["m", "y"], {}),
    ("LengthsSumGradient", ["x", "l"], ["y"], {}),
    ("CTCBeamSearchDecoder", ["logits"], ["a", "b", "c"], {"num_candidates": 1 << 45}),
    ("LRN", ["image"], ["y", "scale"], {"size": (1 << 45) + 1, "alpha": 1.0, "beta": 0.5}),
    ("MergeSingleListFeatureTensors", ["l", "v", "p"], ["a", "b", "c", "d"], {"feature_ids": [1]}),
]


@pytest.mark.parametrize(("kind", "inputs", "outputs", "arguments"), CASES, ids=[case[0] for case in CASES])
def test_what_memory_cannot_hold_is_refused(kind, inputs, outputs, arguments):
    workspace = Workspace(threads=1)
    values = {
        "l": HUGE, "x": ROW, "v": np.ones(1, np.float32), "p": np.ones(1, bool),
        "logits": np.ones((2, 1, 3), np.float32), "image": np.ones((1, 2, 2, 2), np.float32),
    }  # fmt: skip
    for name in inputs:
        workspace.feed(name, values[name])
    with pytest.raises(NetError, match=rf"{kind}: .*(takes \S+ bytes|no array can|arrays? can have)|LRN: the padded"):
        workspace.run_operator_once(make_op(kind, inputs, outputs, **arguments))
