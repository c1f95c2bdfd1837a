"""Summarize."""

import numpy as np
import pytest

from netbuilder.ops.control.summarize import Summarize
from netbuilder.proto import NetDef, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, i32, refusal


class TestSummarize(OperatorSuite):
    operator = Summarize
    no_gradient = "it has none"
    refusals = (
        refusal(
            Summarize(), [i32(2)], "X must have elements of type float32, got int32; cast it first", ShapeError, n_out=1
        ),
        refusal(Summarize(), [f32(0)], r"must have elements, got the shape \(0,\)", ShapeError, n_out=1),
    )

    def draw(self, data):
        return Summarize(), [data.draw(floats((1, 3), (1, 4)))]

    def reference(self, op, x):
        return [np.array([x.min(), x.max(), x.mean(), x.std(ddof=1) if x.size > 1 else 0])]


def test_what_is_written(tmp_path, capsys):
    """The lines that Caffe2 wrote."""
    workspace = Workspace()
    workspace.root_folder = str(tmp_path)
    workspace.feed("x", np.arange(7, dtype=np.float32))
    ops = [
        make_op("Summarize", ["x"], [], to_file=1),
        make_op("Summarize", ["x"], []),
        make_op("Summarize", ["x"], ["s"]),
    ]
    workspace.create_net(NetDef(name="net", op=ops))
    workspace.run_net("net", 2)
    assert (tmp_path / "x.summary").read_text() == "0 6 3 2.16025\n" * 2
    assert capsys.readouterr().out == "x: 0 6 3 2.16025\n" * 2
    assert workspace.fetch("s").tolist() == pytest.approx([0, 6, 3, 2.1602468])
